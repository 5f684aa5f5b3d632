// Everything that changes a number. Schedules decide only which thread computes it and when.
// tests/reference.py says the same a second time, in float64 NumPy, independently.
#pragma once
#include <cmath>
#include <cstdint>

#include "mgg/host_device.h"

namespace mgg {

// Sums of n terms are taken in blocks whose totals are then added. A chain of b additions errs by at most about
// b / 4 eps of its sum (each rounds a partial sum of half that size by eps / 2), so blocks of 3.5 sqrt(n) terms
// and their sqrt(n) / 3.5 totals together stay below eps * sqrt(n) * sum(|w h|).
MGG_BOTH int64_t summation_block(int64_t terms) {
  return terms <= 16 ? 16 : static_cast<int64_t>(3.5f * ::sqrtf(static_cast<float>(terms)));
}

// The divisor of a mean; the mean and the maximum of a node without edges are 0.
template <class T>
MGG_BOTH T mean_divisor(int64_t edges) {
  return edges > 0 ? static_cast<T>(edges) : T(1);
}

// Returns the value that is stored for a destination: its sum, scaled (GCN's d_v^-1/2), plus bias, through ReLU.
// V: one value, or a vector of them.
template <class V, class T>
MGG_BOTH V epilogue(V sum, T scale, V bias, bool relu) {
  const V value = sum * scale + bias;
  return relu ? (value < 0 ? V{} : value) : value;  // NaN stays NaN
}

// The activation of attention scores; its derivative at 0 is the slope, as torch has it.
// V: one value, or a vector of them.
template <class V, class T>
MGG_BOTH V leaky_relu(V score, T slope) {
  return score > 0 ? score : score * slope;
}
template <class V, class T>
MGG_BOTH V leaky_relu_slope(V score, T slope) {
  return score > 0 ? V{} + T(1) : V{} + slope;
}

// Operators of tapes (mgg/tape.h), but for additions and the like, and for elementary functions, which are each device's.
// V: one value, or a vector of them. Maxima and minima of NaN and anything else are NaN.
template <class V>
MGG_BOTH V magnitude(V x) {
  return x < 0 ? -x : x;
}
// 1 / (1 + exp(-x)), from exp(-x).
template <class V>
MGG_BOTH V logistic(V falling) {
  return 1 / (1 + falling);
}
template <class V>
MGG_BOTH V larger_of(V x, V y) {
  return x != x ? x : x < y || y != y ? y : x;
}
template <class V>
MGG_BOTH V smaller_of(V x, V y) {
  return x != x ? x : x > y || y != y ? y : x;
}
template <class V, class T>
MGG_BOTH V where_positive(V x, V y, T slope) {
  return y > 0 ? x : x * slope;
}
template <class V>
MGG_BOTH V times_sign(V x, V y) {
  return y > 0 ? x : y < 0 ? -x : V{};
}
// The derivative of larger_of(x, y) by x: equal values share it.
template <class V, class T>
MGG_BOTH V above(V x, V y, T one) {
  return x > y ? V{} + one : x == y ? V{} + one / 2 : V{};
}
template <class V, class T>
MGG_BOTH V equal(V x, V y, T one) {
  return x == y ? V{} + one : V{};
}

// Philox4x32-10 (Salmon et al., SC '11): a counter of 128 bits and a key of 64 give four 32-bit words.
struct Philox {
  uint32_t word[4];
};
using Counter = Philox;

constexpr int philox_rounds = 10;
constexpr uint32_t philox_factor0 = 0xD2511F53u, philox_factor2 = 0xCD9E8D57u;
constexpr uint32_t philox_key0 = 0x9E3779B9u, philox_key1 = 0xBB67AE85u;  // added to the key each round

MGG_BOTH Philox philox(const Counter& counter, uint64_t seed) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < philox_rounds; ++round) {
    const uint64_t p0 = uint64_t(philox_factor0) * c0, p1 = uint64_t(philox_factor2) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1), c3 = static_cast<uint32_t>(p0);
    c0 = n0, c2 = n2;
    k0 += philox_key0, k1 += philox_key1;
  }
  return {{c0, c1, c2, c3}};
}

// The counter of columns 4*quad .. 4*quad+3 of one node: (column, node, stream, epoch). Nodes are named by their original
// ids, so that no draw depends on ranks or on the numbering of rows.
MGG_BOTH Counter node_counter(uint32_t epoch, uint32_t stream, uint64_t node, uint64_t quad) {
  const uint32_t high = static_cast<uint32_t>(node >> 32) & 0xFFFFu;
  return {{static_cast<uint32_t>(quad), static_cast<uint32_t>(node), high << 16 | (stream & 0xFFFFu), epoch}};
}

// The counter of an edge and heads 4*quad .. 4*quad+3, by the original ids of both ends (below 2^36).
MGG_BOTH Counter edge_counter(uint32_t epoch, uint32_t stream, uint64_t source, uint64_t target, uint32_t quad) {
  const uint32_t high = static_cast<uint32_t>(source >> 32 & 0xFu) << 12 |
                        static_cast<uint32_t>(target >> 32 & 0xFu) << 8 | (quad & 0xFFu);
  return {{static_cast<uint32_t>(source), static_cast<uint32_t>(target), high << 16 | (stream & 0xFFFFu), epoch}};
}

MGG_BOTH Philox draw(uint64_t seed, uint32_t epoch, uint32_t stream, uint64_t node, uint64_t quad) {
  return philox(node_counter(epoch, stream, node, quad), seed);
}

MGG_BOTH Philox draw_edge(uint64_t seed, uint32_t epoch, uint32_t stream, uint64_t source, uint64_t target,
                          uint32_t quad) {
  return philox(edge_counter(epoch, stream, source, target, quad), seed);
}

// Dropout keeps a value where its word is at least p * 2^32, and scales it by 1 / (1 - p).
MGG_BOTH uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// Random streams of sampling: one for each hop from a batch's own rows, and one for the order of an epoch's rows. The
// epoch of a hop's draws is the number of the step, from 1 on: in epoch 0 initial values are drawn, of which learned rows
// (nn/inputs/features.py) reach these streams in graphs of 2^29 nodes; in others dropout is, in streams below 0x8000.
constexpr uint32_t sampling_stream = 0xE000, shuffling_stream = 0xF000;
constexpr int most_hops = shuffling_stream - sampling_stream;

// Lemire (ACM TOMACS 2019): takes a word to 0 .. range - 1, each as likely as any other, or refuses it (returns false).
MGG_BOTH bool bounded(uint32_t word, uint32_t range, uint32_t& value) {
  const uint64_t product = uint64_t(word) * range;
  value = static_cast<uint32_t>(product >> 32);
  const auto low = static_cast<uint32_t>(product);
  return low >= range || low >= (0u - range) % range;
}

// Lengths of edges that have none: integers 8 .. 72, as EMOGI's (Min's dissertation, section 2.5.2), by the original
// ids of both ends; without `directed` an edge and its reverse are as long.
constexpr uint32_t length_stream = 0xD000, shortest_edge = 8, longest_edge = 72;
MGG_BOTH uint32_t drawn_length(uint64_t seed, uint64_t source, uint64_t target, bool directed) {
  const bool turned = !directed && source > target;
  const Philox words = draw_edge(seed, 0, length_stream, turned ? target : source, turned ? source : target, 0);
  return shortest_edge + static_cast<uint32_t>(uint64_t(words.word[0]) * (longest_edge - shortest_edge + 1) >> 32);
}

// A word as a number in [0, 1), exact in float32.
MGG_BOTH double unit_interval(uint32_t word) { return (word >> 8) * (1.0 / 16777216.0); }

}  // namespace mgg
