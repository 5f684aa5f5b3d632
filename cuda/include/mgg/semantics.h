// Everything that changes a number. Schedules decide only who computes it and when.
// mgg_hpc/reference.py says the same a second time, in float64 NumPy, independently.
#pragma once
#include <cmath>
#include <cstdint>

#include "mgg/both.h"

namespace mgg {

// Sums of n terms are taken in blocks whose totals are then added. A chain of b additions errs by at most about
// b / 4 eps of what it sums (each rounds a partial sum of half that size by eps / 2), so blocks of 3.5 sqrt(n) terms
// and their sqrt(n) / 3.5 totals together stay below eps * sqrt(n) * sum(|w h|).
MGG_BOTH int64_t summation_block(int64_t terms) {
  return terms <= 16 ? 16 : static_cast<int64_t>(3.5f * ::sqrtf(static_cast<float>(terms)));
}

// What a mean divides by, and what the maximum of nothing is: nodes without edges give 0.
template <class T>
MGG_BOTH T mean_divisor(int64_t edges) {
  return edges > 0 ? static_cast<T>(edges) : T(1);
}

// What is stored for a destination: its sum, scaled (GCN's d_v^-1/2), plus bias, through ReLU.
// V: one value, or a vector of them.
template <class V, class T>
MGG_BOTH V epilogue(V sum, T scale, V bias, bool relu) {
  const V value = sum * scale + bias;
  return relu ? (value < 0 ? V{} : value) : value;  // NaN stays NaN
}

// Philox4x32-10 (Salmon et al., SC '11): a counter of 128 bits and a key of 64 give four 32-bit words.
struct Philox {
  uint32_t word[4];
};

MGG_BOTH Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1), c3 = static_cast<uint32_t>(p0);
    c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The four words of columns 4*quad .. 4*quad+3 of one node: the counter holds (column, node, stream, epoch).
// Nodes are named by their original ids, so that no draw depends on ranks or on the numbering of rows.
MGG_BOTH Philox draw(uint64_t seed, uint32_t epoch, uint32_t stream, uint64_t node, uint64_t quad) {
  const uint32_t high = static_cast<uint32_t>(node >> 32) & 0xFFFFu;
  return philox(static_cast<uint32_t>(quad), static_cast<uint32_t>(node), high << 16 | (stream & 0xFFFFu), epoch,
                seed);
}

// Dropout keeps a value where its word is at least p * 2^32, and scales what it keeps by 1 / (1 - p).
MGG_BOTH uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// A word as a number in [0, 1), exact in float32.
MGG_BOTH double unit_interval(uint32_t word) { return (word >> 8) * (1.0 / 16777216.0); }

}  // namespace mgg
