// Philox4x32-10 of many counters at a time, on whole vectors. Processors multiply every second lane of 32 bits to one
// of 64; compilers multiply all lanes as 64 bits wide instead, which takes several times as long.
#pragma once
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "mgg/semantics.h"
#include "cpu/tile.h"

namespace mgg {
namespace MGG_ISA {
namespace {

using Words = Bits<vector_bytes>;
using WideWords = Vector<uint64_t, vector_bytes>;

// Products of lanes 0, 2, 4 .. and the factor.
inline WideWords even_products(WideWords lanes, uint32_t factor) {
#if defined(__AVX512F__)
  return reinterpret_cast<WideWords>(_mm512_mul_epu32(reinterpret_cast<__m512i>(lanes), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
  return reinterpret_cast<WideWords>(_mm256_mul_epu32(reinterpret_cast<__m256i>(lanes), _mm256_set1_epi64x(factor)));
#elif defined(__SSE2__)
  const __m128i factors = _mm_set1_epi32(static_cast<int>(factor));
  return reinterpret_cast<WideWords>(_mm_mul_epu32(reinterpret_cast<__m128i>(lanes), factors));
#else
  WideWords products;
  for (int i = 0; i < vector_bytes / 8; ++i) products[i] = (lanes[i] & 0xFFFFFFFFu) * uint64_t(factor);
  return products;
#endif
}

// The upper and lower halves of each lane's product with the factor.
inline void multiply(Words lanes, uint32_t factor, Words& high, Words& low) {
  constexpr uint64_t lower = 0xFFFFFFFFu, upper = lower << 32;
  const auto pairs = reinterpret_cast<WideWords>(lanes);
  const WideWords even = even_products(pairs, factor), odd = even_products(pairs >> 32, factor);
  low = reinterpret_cast<Words>((even & lower) | odd << 32);
  high = reinterpret_cast<Words>(even >> 32 | (odd & upper));
}

// LANES counters, and the four words of each, one draw after the other. LANES: whole vectors. Words of lanes that were
// not set are not used.
template <int LANES>
struct Counters {
  uint32_t c0[LANES] = {}, c1[LANES] = {}, c2[LANES] = {}, c3[LANES] = {};
  uint32_t word[4 * LANES];

  void set(int lane, const Counter& counter) {
    c0[lane] = counter.word[0], c1[lane] = counter.word[1], c2[lane] = counter.word[2], c3[lane] = counter.word[3];
  }

  // The words of the first `count`, and of others up to a whole vector.
  void draw(int count, uint64_t seed) {
    constexpr int step = vector_bytes / 4;
    static_assert(LANES % step == 0, "whole vectors");
    for (int first = 0; first < count; first += step) {
      Words w0 = at(c0 + first), w1 = at(c1 + first), w2 = at(c2 + first), w3 = at(c3 + first);
      uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
      for (int round = 0; round < philox_rounds; ++round) {
        Words high0, low0, high2, low2;
        multiply(w0, philox_factor0, high0, low0);
        multiply(w2, philox_factor2, high2, low2);
        w0 = high2 ^ w1 ^ k0, w1 = low2;
        w2 = high0 ^ w3 ^ k1, w3 = low0;
        k0 += philox_key0, k1 += philox_key1;
      }
      alignas(vector_bytes) uint32_t drawn[4][step];
      at(drawn[0]) = w0, at(drawn[1]) = w1, at(drawn[2]) = w2, at(drawn[3]) = w3;
      uint32_t* out = word + 4 * first;
#pragma omp simd
      for (int i = 0; i < step; ++i) {
        out[4 * i] = drawn[0][i], out[4 * i + 1] = drawn[1][i];
        out[4 * i + 2] = drawn[2][i], out[4 * i + 3] = drawn[3][i];
      }
    }
  }

 private:
  static Words& at(uint32_t* from) { return *reinterpret_cast<Words*>(from); }
};

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
