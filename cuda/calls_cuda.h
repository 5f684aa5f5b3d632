// What each GPU kernel works on. All pointers are the device's.
#pragma once
#include <cstdint>

#include "mgg/layout.h"
#include "mgg/schedule.h"

namespace mgg {

// Sums of neighbours' rows.
template <class S>
struct DeviceAggregation {
  const Block* tasks;  // a destination each, or a part of a hub
  int64_t count;
  const Segment* segments;
  const Hub* hubs;
  int64_t hub_count;
  int32_t* pending;  // passes x hubs: parts that have not arrived; as many as slots between calls
  const int32_t* degree;
  const S* const* sources;  // row 0 of each chunk
  const int32_t* remote;    // whether a chunk's rows are another PE's
  const int32_t* indices;
  const float* weight;  // an edge each, or null
  S* out;
  const float* scale;  // a destination each, or null
  const float* bias;   // dim values, or null
  float* partials;     // slots x stride
  int64_t dim, stride;  // values of a row, and between rows: a multiple of 16 bytes
  bool mean, relu;
};

constexpr int ring_rows = 4;  // remote rows under way, of each worker

// What a block of `threads` takes of shared memory: a ring for each thread's packs, and behind all of them a barrier
// for each of a worker's rows (bulk copies), of four lanes at least.
constexpr int64_t ring_bytes(int64_t threads, int packs) {
  return threads * packs * ring_rows * 16 + threads / 4 * ring_rows * 8;
}

// The dot product of destination and source row for each edge (SDDMM), both of this type.
template <class S>
struct DeviceSddmm {
  const Block* tasks;
  int64_t count;
  const Segment* segments;
  const S* const* sources;  // row 0 of each chunk
  const int32_t* indices;
  const S* destinations;  // this PE's rows
  float* out;             // an edge each
  int64_t dim, stride;
};

// out[e] = exp(score[e] - maximum) / total over the edges of each destination, in two kernels.
struct DeviceSoftmax {
  const Block* tasks;
  int64_t count;
  const Segment* segments;
  const Hub* hubs;
  int32_t* pending;  // parts of each hub that have not arrived; as many as slots between calls
  const float* scores;
  float* out;      // may be the scores
  float* maximum;  // a destination each
  float* total;    // a destination each: the sum of exp(score - maximum)
  float* partials;  // slots x 2: the same of each part
};

// Rows of PE p are numbered bounds[p] .. bounds[p + 1] - 1.
struct DeviceGather {
  const int64_t* ids;
  int64_t count;
  const int64_t* bounds;      // pes + 1
  const char* const* tables;  // each PE's row 0; null where no pointer reaches it
  const char* mine;           // this PE's row 0, by which others' rows are asked for; `out` must be symmetric then
  char* out;                  // count rows
  int64_t row_bytes;          // a multiple of 16
  int32_t pes;
};

// Reads the rows of `indices` in their order and stores nothing, unless `seen` is there: the exclusive or of all words
// that a thread has read. No compiler knows that it is not, so all of them are read.
struct DeviceFloor {
  const int32_t* indices;
  int64_t edges;
  const char* rows;
  int64_t row_bytes;
  uint32_t* seen;  // a thread each, or null
};

}  // namespace mgg
