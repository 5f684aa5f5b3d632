// Arguments of the kernels of neighbour sampling: a graph's in-edges, and one hop of a sample.
#pragma once
#include <cstdint>

namespace mgg {

// The kernels of a hop, in the order of their launches; of those that draw one is launched. STAGES of
// runtime/backends/cuda/sampling.py.
enum class SampleStage : int { count, evenly, by_weight, enter, mark, number };
constexpr int sample_stages = 6;

// HOP of runtime/backends/cuda/sampling.py: each field has 8 bytes. Between launches the caller replaces the counts that
// a kernel has written, from the second value on, by their running sums.
struct DeviceHop {
  // A row's edges are in one of two memories: among `near` ones from near_first on, where that is not -1; else among
  // those of the whole graph.
  const int64_t* indptr;                        // [N + 1]
  const int64_t* near_first;                    // [N], or null: no row has near edges
  const void *near_source, *source;             // int64 if wide, else int32
  const float *near_weight, *weight;            // or null: edges are drawn evenly
  const int64_t* ids;                           // [N], or null: rows are numbered by them
  int64_t wide;
  uint64_t seed, step, stream;                  // of the draws; step: from 1
  int64_t fanout;                               // that of "all edges" is above all degrees
  int64_t count;                                // destinations
  const int64_t* nodes;                         // [count]
  int64_t* slot;                                // [count + 1], first of each destination's draws
  uint32_t *place, *kept;                       // [draws], places in the row; [draws + count], those by weight so far
  double* key;                                  // [draws + count], of the latter
  double* limit;                                // [count], by weight: the smallest key that was not drawn
  int64_t* begin;                               // [count + 1], first of each destination's sampled edges
  int64_t edges;
  int64_t* edge;                                // [edges], positions in the graph, or null
  double* factor;                               // of each destination; by weight of each edge
  // A hash table of rows with open addressing: its slot's `first` is the number of a destination, or count + e, where
  // e is the first edge from this row.
  uint64_t *row, *first;
  uint64_t shift;                               // 64 - bits of a slot's number
  int64_t* entry;                               // [edges], slots of their sources
  int64_t* rank;                                // [edges + 1], number of new rows before each edge
  int32_t* indices;                             // [edges]
  int64_t* found;                               // rows of the batch, destinations first
};

}  // namespace mgg
