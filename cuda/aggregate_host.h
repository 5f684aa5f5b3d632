// What a host schedule works on: one call of Backend.aggregate on one rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "mgg/layout.h"

namespace mgg {

// A block is what one thread claims at once: whole destinations, or a part of a hub.
struct Block {
  int64_t first, last;  // positions in Schedule::order
  int32_t hub;          // -1: whole destinations
  int32_t slot;         // where a part of a hub leaves its partial sum
};

// A destination with more edges than a block: its parts are summed by several threads; the last to arrive adds
// the partial sums in the order of their slots.
struct Hub {
  int32_t destination;
  int32_t first_slot, slots;
  int64_t edges;
};

// Who sums what: made once for a plan, independent of width and type.
struct Schedule {
  std::vector<Chunk> chunks;
  std::vector<Segment> segments;  // by destination, then chunk, then edge
  std::vector<Block> blocks;
  std::vector<Hub> hubs;
  std::unique_ptr<std::atomic<int32_t>[]> pending;  // parts of each hub that have not arrived
  std::vector<int64_t> chunk_end;                   // one past each chunk's last edge
  const int32_t* indices = nullptr;                 // row within the chunk, an edge each
  int64_t edges = 0, destinations = 0;
  int32_t slots = 0;
  int prefetch = 0;  // edges ahead whose rows are prefetched
};

template <class T>
struct Aggregation {
  Schedule* schedule;
  const T* const* sources;  // row 0 of each chunk
  const T* weight;          // an edge each, or null
  T* out;
  const T* scale;  // a destination each, or null
  const T* bias;   // stride values, or null
  T* partials;     // slots x stride
  int64_t stride;  // values between rows, of sources and out alike
  bool relu;
  int threads;
};

#define MGG_DECLARE(isa)                               \
  namespace isa {                                      \
  void aggregate(const Aggregation<float>& call);      \
  void aggregate(const Aggregation<double>& call);     \
  }
MGG_DECLARE(baseline)
MGG_DECLARE(avx2)
MGG_DECLARE(avx512)
#undef MGG_DECLARE

}  // namespace mgg
