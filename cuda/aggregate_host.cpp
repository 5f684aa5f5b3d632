// Sums the rows of each destination's neighbours, on the cores of one host.
//
// A destination's segments (its local and remote neighbour partitions, MGG section 3.3) are summed by one thread
// into registers and stored once, with scale, bias and ReLU. Rows are prefetched `dist` edges ahead. Hubs are
// split over threads and their partial sums added in a fixed order: the same input gives the same bits whatever
// the threads do. This file is compiled once for each instruction set (MGG_ISA).
#include "aggregate_host.h"

#include <algorithm>

#include "mgg/semantics.h"

namespace mgg {
namespace MGG_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class T, int BYTES>
struct Vector {
  typedef T type __attribute__((vector_size(BYTES), aligned(16), may_alias));
};

// A run of columns that fits in registers: 512 bytes of float32 are 128 columns, 8 AVX-512 registers.
template <class T, int BYTES>
struct Tile {
  static constexpr int step = BYTES < vector_bytes ? BYTES : vector_bytes;
  static constexpr int count = BYTES / step;
  static constexpr int columns = BYTES / sizeof(T);
  static constexpr int lanes = step / sizeof(T);
  using Lanes = typename Vector<T, step>::type;
  Lanes value[count];

  void clear() {
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) value[i] = Lanes{};
  }
  void add(const Tile& other) {
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) value[i] += other.value[i];
  }
  void add(const T* row) {
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) value[i] += *reinterpret_cast<const Lanes*>(row + i * lanes);
  }
  void add(const T* row, T weight) {
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) value[i] += *reinterpret_cast<const Lanes*>(row + i * lanes) * weight;
  }
  void store(T* row) const {
#pragma GCC unroll 32
    for (int i = 0; i < count; ++i) *reinterpret_cast<Lanes*>(row + i * lanes) = value[i];
  }
};

template <int BYTES>
inline void prefetch(const void* row) {
  const char* line = static_cast<const char*>(row);
#pragma GCC unroll 16
  for (int at = 0; at < BYTES; at += 64) __builtin_prefetch(line + at);
}

// The sum of one tile of columns over a run of segments of one destination.
template <class T, int BYTES, bool WEIGHTED>
inline Tile<T, BYTES> sum_run(const Aggregation<T>& call, const Segment* first, const Segment* last, int64_t block,
                              int64_t column) {
  const Schedule& schedule = *call.schedule;
  const int32_t* indices = schedule.indices;
  Tile<T, BYTES> total, part;
  total.clear();
  part.clear();
  int64_t left = block;
  for (const Segment* segment = first; segment != last; ++segment) {
    const T* base = call.sources[segment->chunk] + column;
    const int64_t limit = schedule.chunk_end[segment->chunk] - 1;
    const int64_t end = segment->first_edge + segment->count;
    for (int64_t edge = segment->first_edge; edge < end; ++edge) {
      const int64_t ahead = std::min(edge + schedule.prefetch, limit);
      prefetch<BYTES>(base + indices[ahead] * call.stride);
      const T* row = base + indices[edge] * call.stride;
      if constexpr (WEIGHTED)
        part.add(row, call.weight[edge]);
      else
        part.add(row);
      if (--left == 0) {
        total.add(part);
        part.clear();
        left = block;
      }
    }
  }
  total.add(part);
  return total;
}

template <class T, int BYTES>
inline void finish(const Aggregation<T>& call, int64_t destination, int64_t column, Tile<T, BYTES> sum) {
  alignas(64) T value[Tile<T, BYTES>::columns];
  sum.store(value);
  const T scale = call.scale ? call.scale[destination] : T(1);
  T* out = call.out + destination * call.stride + column;
  if (!call.scale && !call.bias && !call.relu) return sum.store(out);
  const T* bias = call.bias ? call.bias + column : nullptr;
  for (int i = 0; i < Tile<T, BYTES>::columns; ++i)
    out[i] = epilogue(value[i], scale, bias ? bias[i] : T(0), call.relu);
}

template <class T, int BYTES>
void tile_of_run(const Aggregation<T>& call, const Segment* first, const Segment* last, int64_t edges,
                 int64_t column, T* partial) {
  const int64_t block = summation_block(edges);
  const auto sum = call.weight ? sum_run<T, BYTES, true>(call, first, last, block, column)
                               : sum_run<T, BYTES, false>(call, first, last, block, column);
  if (partial)
    sum.store(partial + column);
  else
    finish<T, BYTES>(call, first->destination, column, sum);
}

// Calls visit<BYTES>(column) for tiles that cover a row exactly, widest first.
template <class T, class Visit>
inline void for_each_tile(int64_t stride, Visit visit) {
  constexpr int64_t item = sizeof(T);
  int64_t column = 0;
  const auto run = [&](auto bytes) {
    constexpr int64_t width = decltype(bytes)::value / item;
    while (stride - column >= width) visit(bytes, column), column += width;
  };
  run(std::integral_constant<int, 512>{});
  run(std::integral_constant<int, 256>{});
  run(std::integral_constant<int, 128>{});
  run(std::integral_constant<int, 64>{});
  run(std::integral_constant<int, 32>{});
  run(std::integral_constant<int, 16>{});
}

// One destination's segments, or a part of a hub's: to out, or to a partial sum.
template <class T>
inline void run_of_destination(const Aggregation<T>& call, const Segment* first, const Segment* last,
                               int64_t edges, T* partial) {
  for_each_tile<T>(call.stride, [&](auto bytes, int64_t column) {
    tile_of_run<T, decltype(bytes)::value>(call, first, last, edges, column, partial);
  });
}

template <class T>
void add_partials(const Aggregation<T>& call, const Hub& hub) {
  const int64_t block = summation_block(hub.slots);
  for_each_tile<T>(call.stride, [&](auto bytes, int64_t column) {
    using Columns = Tile<T, decltype(bytes)::value>;
    Columns total, part;
    total.clear();
    for (int64_t slot = 0; slot < hub.slots;) {
      part.clear();
      for (int64_t end = std::min<int64_t>(slot + block, hub.slots); slot < end; ++slot)
        part.add(call.partials + (hub.first_slot + slot) * call.stride + column);
      total.add(part);
    }
    finish<T, decltype(bytes)::value>(call, hub.destination, column, total);
  });
}

template <class T>
void run_block(const Aggregation<T>& call, const Block& block) {
  Schedule& schedule = *call.schedule;
  const Segment* segments = schedule.segments.data();
  if (block.hub >= 0) {
    const Hub& hub = schedule.hubs[block.hub];
    run_of_destination(call, segments + block.first, segments + block.last, hub.edges,
                       call.partials + block.slot * call.stride);
    auto& pending = schedule.pending[block.hub];
    if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      pending.store(hub.slots, std::memory_order_relaxed);  // for the next call
      add_partials(call, hub);
    }
    return;
  }
  for (int64_t at = block.first; at < block.last;) {
    int64_t end = at, edges = 0;
    for (; end < block.last && segments[end].destination == segments[at].destination; ++end)
      edges += segments[end].count;
    run_of_destination(call, segments + at, segments + end, edges, static_cast<T*>(nullptr));
    at = end;
  }
}

template <class T>
void run(const Aggregation<T>& call) {
  const auto& blocks = call.schedule->blocks;
  const int64_t count = static_cast<int64_t>(blocks.size());
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads) if (call.threads > 1)
  for (int64_t i = 0; i < count; ++i) run_block(call, blocks[i]);
}

}  // namespace

void aggregate(const Aggregation<float>& call) { run(call); }
void aggregate(const Aggregation<double>& call) { run(call); }

}  // namespace MGG_ISA
}  // namespace mgg
