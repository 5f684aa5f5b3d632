// A run of columns of one row in vector registers, of the instruction set that this file is compiled for.
// Rows of S (float32, float64, float16 or bfloat16) are widened as they are loaded; sums are in float32 or float64.
#pragma once
#include <cstdint>
#include <type_traits>
#include <utility>

#include "mgg/half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace mgg {
namespace MGG_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64, registers = 16;  // registers of sums; as many remain for loaded values
constexpr bool has_masks = true;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32, registers = 8;
constexpr bool has_masks = false;
#else
constexpr int vector_bytes = 16, registers = 8;
constexpr bool has_masks = false;
#endif

template <class T, int BYTES>
struct VectorOf {
  typedef T type __attribute__((vector_size(BYTES), aligned(2), may_alias));
};
template <class T, int BYTES>
using Vector = typename VectorOf<T, BYTES>::type;

// ---- one vector of values from memory, and to it

template <int BYTES>
inline Vector<float, BYTES> load(const float* from) {
  return *reinterpret_cast<const Vector<float, BYTES>*>(from);
}
template <int BYTES>
inline Vector<double, BYTES> load(const double* from) {
  return *reinterpret_cast<const Vector<double, BYTES>*>(from);
}
template <int BYTES>
inline void store(float* to, Vector<float, BYTES> value) {
  *reinterpret_cast<Vector<float, BYTES>*>(to) = value;
}
template <int BYTES>
inline void store(double* to, Vector<double, BYTES> value) {
  *reinterpret_cast<Vector<double, BYTES>*>(to) = value;
}

template <int BYTES>
using Bits = Vector<uint32_t, BYTES>;

template <int BYTES>
inline Bits<BYTES> rounded_to_bfloat16(Vector<float, BYTES> value) {
  const Bits<BYTES> bits = reinterpret_cast<Bits<BYTES>>(value);
  return value == value ? bits + 0x7FFFu + (bits >> 16 & 1u) : bits | 0x400000u;  // NaN stays NaN
}

template <int BYTES>
inline Vector<float, BYTES> load(const BFloat16* from) {
#if defined(__AVX512F__)
  if constexpr (BYTES == 64) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return (Vector<float, BYTES>)_mm512_slli_epi32(wide, 16);
  }
#endif
#if defined(__AVX2__)
  if constexpr (BYTES == 32) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return (Vector<float, BYTES>)_mm256_slli_epi32(wide, 16);
  }
#endif
  constexpr int lanes = BYTES / 4;
  const auto narrow = *reinterpret_cast<const typename VectorOf<uint16_t, 2 * lanes>::type*>(from);
  return reinterpret_cast<Vector<float, BYTES>>(__builtin_convertvector(narrow, Vector<uint32_t, BYTES>) << 16);
}
template <int BYTES>
inline void store(BFloat16* to, Vector<float, BYTES> value) {
  const Bits<BYTES> narrow = rounded_to_bfloat16<BYTES>(value) >> 16;
  typedef typename VectorOf<uint16_t, BYTES / 2>::type Narrow;
  *reinterpret_cast<Narrow*>(to) = __builtin_convertvector(narrow, Narrow);
}

template <int BYTES>
inline Vector<float, BYTES> load(const Float16* from) {
  Vector<float, BYTES> value;
#if defined(__AVX512F__)
  if constexpr (BYTES == 64)
    return (Vector<float, BYTES>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
#if defined(__F16C__)
  if constexpr (BYTES == 32)
    return (Vector<float, BYTES>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  for (int i = 0; i < BYTES / 4; ++i) value[i] = widen(from[i]);
  return value;
}
template <int BYTES>
inline void store(Float16* to, Vector<float, BYTES> value) {
#if defined(__AVX512F__)
  if constexpr (BYTES == 64)
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)value, 0));
#endif
#if defined(__F16C__)
  if constexpr (BYTES == 32)
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value, 0));
#endif
  for (int i = 0; i < BYTES / 4; ++i) narrow(value[i], to[i]);
}

// Stores past the caches, to memory aligned to a vector. An ordinary store first reads the line that it overwrites, in
// vain for values that are not read soon.
template <int BYTES, class S>
inline void stream(S* to, Vector<Accumulator<S>, BYTES> value) {
#if defined(__AVX512F__)
  if constexpr (BYTES == 64 && std::is_same_v<S, float>) return _mm512_stream_ps(to, (__m512)value);
  if constexpr (BYTES == 64 && std::is_same_v<S, double>) return _mm512_stream_pd(to, (__m512d)value);
  if constexpr (BYTES == 64 && sizeof(S) == 2) {
    alignas(32) S narrow[16];
    store<64>(narrow, value);
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), *reinterpret_cast<const __m256i*>(narrow));
  }
#elif defined(__AVX2__)
  if constexpr (BYTES == 32 && std::is_same_v<S, float>) return _mm256_stream_ps(to, (__m256)value);
  if constexpr (BYTES == 32 && std::is_same_v<S, double>) return _mm256_stream_pd(to, (__m256d)value);
#endif
  store<BYTES>(to, value);
}

// Streamed values are seen by other threads after this.
inline void end_streams() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// The first `lanes` values only; nothing else is touched.
#if defined(__AVX512F__)
inline __m512 load_part(const float* from, uint32_t mask) { return _mm512_maskz_loadu_ps(mask, from); }
inline __m512d load_part(const double* from, uint32_t mask) { return _mm512_maskz_loadu_pd(mask, from); }
inline __m512 load_part(const BFloat16* from, uint32_t mask) {
  const __m256i narrow = _mm256_maskz_loadu_epi16(mask, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}
inline __m512 load_part(const Float16* from, uint32_t mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}
inline void store_part(float* to, __m512 value, uint32_t mask) { _mm512_mask_storeu_ps(to, mask, value); }
inline void store_part(double* to, __m512d value, uint32_t mask) { _mm512_mask_storeu_pd(to, mask, value); }
template <class S>
inline void store_part(S* to, __m512 value, uint32_t mask) {
  S all[16];
  store<64>(all, (Vector<float, 64>)value);
  _mm256_mask_storeu_epi16(to, mask, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(all)));
}
#endif

// ---- bfloat16 by pairs: a vector of them is two of float32, of even and of odd columns, for a shift and a mask

// The columns of `first` and `second` that are even (PHASE 0) or odd (1), and the other way round.
template <int PHASE, class V, size_t... I>
inline V every_second(V first, V second, std::index_sequence<I...>) {
  return __builtin_shufflevector(first, second, (2 * I + PHASE)...);
}

// ---- tiles

struct Sum {
  template <class V>
  static V start() {
    return V{};
  }
  template <class V>
  static V combine(V a, V b) {
    return a + b;
  }
};

struct Max {
  template <class V>
  static V start() {
    using T = std::remove_reference_t<decltype(V{}[0])>;
    return V{} - static_cast<std::remove_cv_t<T>>(__builtin_inf());
  }
  template <class V>
  static V combine(V a, V b) {
    return (a >= b) | (a != a) ? a : b;  // NaN stays NaN
  }
};

// COUNT vectors of BYTES. PART: the row ends within the tile, and the values beyond its end are masked away. For bfloat16
// rows two vectors may hold the even and the odd columns of a pair; sums that are kept between stages or
// parts of hubs (`keep`, `combine_kept`) stay in that order.
template <class S_, int BYTES_, int COUNT, bool PART>
struct Tile {
  using S = S_;
  using A = Accumulator<S>;
  static constexpr int BYTES = BYTES_;
  static constexpr int count = COUNT, lanes = BYTES / sizeof(A), columns = COUNT * lanes;
  static constexpr int row_bytes = columns * sizeof(S);
  static constexpr bool paired = std::is_same_v<S, BFloat16> && COUNT % 2 == 0 && !PART;
  using V = Vector<A, BYTES>;
  V value[COUNT];

  // The masks of a row that ends `valid` columns into the tile.
  struct Edge {
    uint32_t mask[PART ? COUNT : 1];
    explicit Edge([[maybe_unused]] int64_t valid) {
      if constexpr (PART)
        for (int i = 0; i < COUNT; ++i) {
          const int64_t left = valid - i * lanes;
          mask[i] = left >= lanes ? (1u << lanes) - 1 : left > 0 ? (1u << left) - 1 : 0;
        }
    }
  };

  template <class R>
  void clear() {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) value[i] = R::template start<V>();
  }
  template <class R>
  void combine(const Tile& other) {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) value[i] = R::combine(value[i], other.value[i]);
  }

  // Rows of S; `message` maps each vector before it is added.
  template <class R, class Message>
  void combine(const S* row, const Edge& edge, Message message) {
    if constexpr (paired) {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i += 2) {
        const auto both = *reinterpret_cast<const Bits<BYTES>*>(row + i * lanes);
        value[i] = R::combine(value[i], message(reinterpret_cast<V>(both << 16)));
        value[i + 1] = R::combine(value[i + 1], message(reinterpret_cast<V>(both & 0xFFFF0000u)));
      }
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; ++i) value[i] = R::combine(value[i], message(at(row, i, edge)));
    }
  }
  void write(S* row, const Edge& edge) const { put<false>(row, edge); }
  // Values that a mask hides must not be overwritten, so rows with a mask are written and not streamed.
  void stream_to(S* row, const Edge& edge) const { put<!PART>(row, edge); }

  // Sums that only this tile reads again.
  template <class R>
  void combine_kept(const A* row, const Edge& edge) {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) value[i] = R::combine(value[i], at(row, i, edge));
  }
  void keep(A* row, const Edge& edge) const {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) put_one(row, i, edge);
  }

  // Vector i's columns of values in their own order.
  static V in_order(const A* row, int i, const Edge& edge) {
    if constexpr (paired) {
      constexpr std::make_index_sequence<lanes> columns_of{};
      const V first = load<BYTES>(row + i / 2 * 2 * lanes), second = load<BYTES>(row + (i / 2 * 2 + 1) * lanes);
      return i % 2 ? every_second<1>(first, second, columns_of) : every_second<0>(first, second, columns_of);
    } else {
      return at(row, i, edge);
    }
  }

 private:
  template <class T>
  static V at(const T* row, int i, [[maybe_unused]] const Edge& edge) {
#if defined(__AVX512F__)
    if constexpr (PART) return (V)load_part(row + i * lanes, edge.mask[i]);
#endif
    return load<BYTES>(row + i * lanes);
  }
  template <class T>
  void put_one(T* row, int i, [[maybe_unused]] const Edge& edge) const {
#if defined(__AVX512F__)
    if constexpr (PART) return store_part(row + i * lanes, value[i], edge.mask[i]);
#endif
    store<BYTES>(row + i * lanes, value[i]);
  }
  template <bool STREAM>
  void put(S* row, const Edge& edge) const {
    if constexpr (paired) {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i += 2) {
        const Bits<BYTES> both = rounded_to_bfloat16<BYTES>(value[i]) >> 16 |
                                 (rounded_to_bfloat16<BYTES>(value[i + 1]) & 0xFFFF0000u);
        float* to = reinterpret_cast<float*>(row + i * lanes);
        if constexpr (STREAM)
          stream<BYTES>(to, reinterpret_cast<V>(both));
        else
          store<BYTES>(to, reinterpret_cast<V>(both));
      }
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; ++i)
        if constexpr (STREAM)
          stream<BYTES>(row + i * lanes, value[i]);
        else
          put_one(row, i, edge);
    }
  }
};

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
