// Arguments of the edge kernels (edges/edges.cuh, edges/attention.cuh); cpu/edges.h has the formulas. All pointers are
// addresses in device memory.
#pragma once
#include <cstddef>

#include "gpu/arguments.h"

namespace mgg {

// Rows [n, any] of this PE's destinations; without an address where a call has none.
template <class T>
struct DeviceNear {
  T* rows;
  int64_t stride;  // values between rows
};

// The edges and rows that all of them work on. A source's row holds columns of S, and then a tail of floats: scores, and
// in the end, where attention drops edges, its node's original id in 8 bytes.
template <class S>
struct DeviceEdges {
  const Block* tasks;
  int64_t count;
  const Segment* segments;
  const Hub* hubs;
  int64_t counters;  // number of hub counters of a part
  int32_t* pending;  // parts x counters of hubs: what has not arrived (hub_groups.h)
  const int32_t* degree;
  const int32_t* indices;
  const S* const* sources;  // row 0 of each chunk; or null, for `own` and what has arrived in the last call of a halo
  const S* own;
  const char* staging;
  int64_t staging_bytes;
  const HaloState* state;
  int64_t stride;   // of the source rows
  int64_t tail;     // where it begins, in floats
  int64_t id;       // where the id begins, in floats
  int32_t channels;  // columns of a head
  int32_t heads, lanes, passes;  // lanes of a worker; passes over a head's columns
  int32_t parts;                 // of a task, which workers take: heads, times passes where each is for itself
  float* partials;  // slots x parts x lanes x most_state<S>
};

// Columns of a head that a lane takes in a pass: 16 bytes of them where all heads begin on multiples of 16 bytes, else
// four, each of which has a load of its own.
template <class S>
constexpr int lane_columns(bool packed) {
  return packed ? 16 / static_cast<int>(sizeof(S)) : 4;
}
// Floats of a lane's result so far, at most: two of each column, and three of a head.
template <class S>
constexpr int most_state = 2 * lane_columns<S>(true) + 3;

// By heads of `channels` columns; scores are float32 [n, H].
template <class S>
struct DeviceAttend {
  DeviceEdges<S> edges;  // rows: h; tail of additive scores: source scores, H
  float slope, scale;    // of LeakyReLU; of dot products
  DeviceNear<const float> score;  // additive
  const float* edge_score;        // [E, H], or null where edges have none
  DeviceNear<const S> h;          // of dot products
  const float* bias;              // or null
  DeviceNear<S> out;
  DeviceNear<float> log_sum, above, above_weight;  // or none
  const int64_t* ids;  // of this PE's destinations; null where nothing is dropped
  RngKey key;
};

template <class S>
struct DeviceAttendBack {
  DeviceEdges<S> edges;  // rows: g, or for dot products g and h, or h; tails as in cpu/edges.h
  float slope, scale;
  DeviceNear<const float> score;
  const float* edge_score;
  float* edge_score_gradient;  // [E, H], with edge_score
  DeviceNear<const S> h, gradient;
  DeviceNear<const float> log_sum, dot;
  DeviceNear<S> out;
  DeviceNear<float> score_gradient;
  const int64_t* ids;
  RngKey key;
};

template <class S>
struct DeviceMaxTies {
  DeviceEdges<S> edges;
  DeviceNear<S> out;
  DeviceNear<float> ties;
};

template <class S>
struct DeviceMaxBack {
  DeviceEdges<S> edges;  // rows: gradient / ties, and maximum
  DeviceNear<const S> x;
  DeviceNear<S> out;
};

template <class S>
struct DeviceWeighted {
  DeviceEdges<S> edges;
  const float* weight;  // [E, H]
  DeviceNear<S> out;
};

template <class S>
struct DeviceSddmm {
  DeviceEdges<S> edges;
  DeviceNear<const S> y;
  float* out;  // [E, H]
};

}  // namespace mgg
