// The arguments of a host schedule: one call of Backend.aggregate on one rank.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/exchange.h"
#include "mgg/half.h"
#include "mgg/layout.h"
#include "mgg/schedule.h"
#include "runtime/transport_host.h"
#include "cpu/column_slices.h"

namespace mgg {

// Blocks that can run once the chunks before them have arrived: all of them in one stage where rows are read
// through pointers; with halo the owned rows are the first stage, and each round of arriving rows another, as
// is each streamed chunk.
struct Stage {
  int64_t first_block, last_block;
};

// Segment::flags of the first segment of a destination in a stage.
enum SegmentFlag : int32_t { first_stage = 1, last_stage = 2 };

// The order of a plan's segments, and the blocks of them that threads claim; independent of the width and type of rows.
struct Schedule {
  std::vector<Chunk> chunks;
  std::vector<Segment> segments;  // by stage, then destination, then chunk, then edge
  std::vector<Block> blocks;
  std::vector<Stage> stages;
  std::vector<Hub> hubs;
  std::unique_ptr<std::atomic<int32_t>[]> pending;  // parts of each hub that have not arrived
  std::vector<int32_t> degree;                      // edges of each destination
  const int32_t* indices = nullptr;                 // row within the chunk, an edge each
  int64_t edges = 0, destinations = 0;
  int32_t slots = 0;
  int dist = -1;  // edges ahead whose rows are prefetched; negative: by the width of rows
  // For gets: a remote edge's place among its block's remote rows; for local edges the same as indices.
  std::vector<int32_t> place;
  int64_t most_remote = 0;  // remote edges of one block
  Sweeps sweeps;
};

enum class Reduce { sum, mean, max };

template <class S>
struct Aggregation {
  using A = Accumulator<S>;
  Schedule* schedule;
  const S* const* sources;  // row 0 of each chunk; of remote chunks on their owner if they are fetched by gets
  const int32_t* indices;   // row within the chunk, or where a get puts it; an edge each
  int64_t edges;
  const A* weight;          // an edge each, or null
  S* out;
  const A* scale;   // a destination each, or null
  const A* bias;    // stride values, or null
  A* partials;      // slots x stride
  A* accumulators;  // destinations x stride, between stages; null for a single stage
  int64_t stride;   // values between rows, of sources and out alike
  int64_t sweep;    // columns that one sweep over the edges takes: the stride, or a multiple of 64 bytes
  Reduce reduce;
  int prefetch;  // edges ahead
  bool relu;
  bool streams;  // results go past the caches; rows begin with a cache line then
  int threads;
  Exchange* exchange;    // with halo and streamed chunks
  Transport* transport;    // with gets
  std::mutex* calling;     // held while the transport is called

  // How far ahead of edges up to `end` rows are prefetched: the last edges of all have nothing ahead of them.
  int64_t ahead(int64_t end) const { return end + prefetch <= edges ? prefetch : 0; }
  // Returns true if sums are stored as they are.
  bool stores_sums() const { return !accumulators && !scale && !bias && !relu && reduce == Reduce::sum; }
};

#define MGG_DECLARE(isa)                              \
  namespace isa {                                     \
  void aggregate(const Aggregation<float>& call);     \
  void aggregate(const Aggregation<double>& call);    \
  void aggregate(const Aggregation<Float16>& call);   \
  void aggregate(const Aggregation<BFloat16>& call);  \
  }
MGG_DECLARE(baseline)
MGG_DECLARE(avx2)
MGG_DECLARE(avx512)
#undef MGG_DECLARE

}  // namespace mgg
