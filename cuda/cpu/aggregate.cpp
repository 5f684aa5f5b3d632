// Sums the rows of each destination's neighbours, on the cores of one host.
//
// A destination's segments (its local and remote neighbour partitions, MGG section 3.3) are summed by one thread
// into registers and stored once, with scale, bias and ReLU. Rows are prefetched `dist` edges ahead. Hubs are
// split over threads and their partial sums added in a fixed order: the same input gives the same bits whatever
// the threads do. With halo, destinations are summed in stages, each as its rows arrive; with gets, a block's
// remote rows are fetched while the block before is summed. This file is compiled once for each instruction set
// (MGG_ISA).
#include "cpu/aggregate.h"

#include <algorithm>

#include "mgg/semantics.h"
#include "cpu/stages.h"
#include "cpu/tile.h"

namespace mgg {
namespace MGG_ISA {
namespace {

// The hardware prefetches the second half of a long row once the first half is loaded.
template <class T>
inline void prefetch(const typename T::S* row) {
  constexpr int lines = (T::row_bytes + 63) / 64;
  const char* line = reinterpret_cast<const char*>(row);
#pragma GCC unroll 16
  for (int i = 0; i < (lines > 8 ? lines / 2 : lines); ++i) __builtin_prefetch(line + 64 * i);
}

// The rows of edges `edge` to `stop` - 1, all of one chunk, added to a sum.
template <class T, class R, bool WEIGHTED>
inline void add_rows(const Aggregation<typename T::S>& call, const typename T::S* base, int64_t edge, int64_t stop,
                     int64_t ahead, const typename T::Edge& valid, T& sum) {
  for (; edge < stop; ++edge) {
    prefetch<T>(base + call.indices[edge + ahead] * call.stride);
    const auto* row = base + call.indices[edge] * call.stride;
    if constexpr (WEIGHTED)
      sum.template combine<R>(row, valid, [weight = call.weight[edge]](auto values) { return values * weight; });
    else
      sum.template combine<R>(row, valid, [](auto values) { return values; });
  }
}

// One tile of columns over a run of segments of one destination, `edges` in all.
template <class T, class R, bool WEIGHTED>
__attribute__((noinline)) T sum_run(const Aggregation<typename T::S>& call, const Segment* first, const Segment* last,
                                    int64_t edges, int64_t column, const typename T::Edge& valid) {
  const int64_t block = summation_block(edges);
  T total, sum;
  total.template clear<R>();
  sum.template clear<R>();
  int64_t left = block;
  for (const Segment* segment = first; segment != last; ++segment) {
    const auto* base = call.sources[segment->chunk] + column;
    const int64_t end = segment->first_edge + segment->count, ahead = call.ahead(end);
    for (int64_t edge = segment->first_edge; edge < end;) {
      const int64_t stop = std::min(end, edge + left);
      add_rows<T, R, WEIGHTED>(call, base, edge, stop, ahead, valid, sum);
      left -= stop - edge;
      edge = stop;
      if (left > 0) continue;
      total.template combine<R>(sum);
      sum.template clear<R>();
      left = block;
    }
  }
  sum.template combine<R>(total);
  return sum;
}

// The same for a destination of one segment.
template <class T, class R, bool WEIGHTED>
inline T sum_one(const Aggregation<typename T::S>& call, const Segment& segment, int64_t column,
                 const typename T::Edge& valid) {
  const int64_t end = segment.first_edge + segment.count, ahead = call.ahead(end);
  const int64_t block = summation_block(segment.count);
  const auto* base = call.sources[segment.chunk] + column;
  int64_t edge = segment.first_edge;
  T total, sum;
  sum.template clear<R>();
  if (segment.count <= block) {
    add_rows<T, R, WEIGHTED>(call, base, edge, end, ahead, valid, sum);
    return sum;
  }
  total.template clear<R>();
  for (; edge + block <= end; edge += block) {
    add_rows<T, R, WEIGHTED>(call, base, edge, edge + block, ahead, valid, sum);
    total.template combine<R>(sum);
    sum.template clear<R>();
  }
  add_rows<T, R, WEIGHTED>(call, base, edge, end, ahead, valid, sum);
  sum.template combine<R>(total);
  return sum;
}

// Keeps a destination's sum for its next stage, or finishes it. Returns true if it is to be stored.
template <class T, class R>
__attribute__((noinline)) bool finish(const Aggregation<typename T::S>& call, const Segment& head, int64_t column,
                                      const typename T::Edge& valid, T& sum) {
  using A = typename T::A;
  using V = typename T::V;
  const int64_t destination = head.destination;
  if (call.accumulators) {
    A* accumulator = call.accumulators + destination * call.stride + column;
    if (!(head.flags & first_stage)) sum.template combine_kept<R>(accumulator, valid);
    if (!(head.flags & last_stage)) {
      sum.keep(accumulator, valid);
      return false;
    }
  }
  const int64_t degree = call.reduce == Reduce::sum ? 0 : call.schedule->degree[destination];
  if (call.reduce == Reduce::max && degree == 0) sum.template clear<Sum>();
  A scale = call.scale ? call.scale[destination] : A(1);
  if (call.reduce == Reduce::mean) scale /= mean_divisor<A>(degree);
  const A* bias = call.bias ? call.bias + column : nullptr;
#pragma GCC unroll 16
  for (int i = 0; i < T::count; ++i)
    sum.value[i] = epilogue(sum.value[i], scale, bias ? T::in_order(bias, i, valid) : V{}, call.relu);
  return true;
}

template <class T>
inline void store_sum(const Aggregation<typename T::S>& call, int64_t destination, int64_t column,
                      const typename T::Edge& valid, const T& sum) {
  auto* out = call.out + destination * call.stride + column;
  if (call.streams)
    sum.stream_to(out, valid);
  else
    sum.write(out, valid);
}

// plain: call.stores_sums()
template <class T, class R>
inline void emit(const Aggregation<typename T::S>& call, bool plain, const Segment& head, int64_t column,
                 const typename T::Edge& valid, const T& sum) {
  if (plain) return store_sum(call, head.destination, column, valid, sum);
  T finished = sum;  // in memory, while a sum that is only stored stays in registers
  if (finish<T, R>(call, head, column, valid, finished))
    store_sum(call, head.destination, column, valid, finished);
}

// A run of columns that one tile covers, with the kernels made for it.
template <class S>
struct Panel {
  int64_t column, columns;
  void (*sum)(const Aggregation<S>&, const Block&, const Panel&);
  void (*add_partials)(const Aggregation<S>&, const Hub&, const Panel&);
};

template <class T, class R, bool WEIGHTED>
void sum_block(const Aggregation<typename T::S>& shared, const Block& block, const Panel<typename T::S>& panel) {
  // A copy that no store can change, so that its fields stay in registers.
  const Aggregation<typename T::S> call = shared;
  const Segment* segments = call.schedule->segments.data();
  const typename T::Edge valid(panel.columns);
  const int64_t column = panel.column;
  if (block.hub >= 0) {
    const int64_t edges = call.schedule->hubs[block.hub].edges;
    const T sum =
        sum_run<T, R, WEIGHTED>(shared, segments + block.first, segments + block.last, edges, column, valid);
    return sum.keep(call.partials + block.slot * call.stride + column, valid);
  }
  const bool plain = call.stores_sums();
  const Segment* const last = segments + block.last;
  for (const Segment* at = segments + block.first; at != last;) {
    const Segment* end = at + 1;
    if (end == last || end->destination != at->destination) {
      emit<T, R>(call, plain, *at, column, valid, sum_one<T, R, WEIGHTED>(call, *at, column, valid));
    } else {
      int64_t edges = at->count;
      for (; end != last && end->destination == at->destination; ++end) edges += end->count;
      emit<T, R>(shared, plain, *at, column, valid, sum_run<T, R, WEIGHTED>(shared, at, end, edges, column, valid));
    }
    at = end;
  }
}

template <class T, class R>
void add_partials(const Aggregation<typename T::S>& call, const Hub& hub, const Panel<typename T::S>& panel) {
  const typename T::Edge valid(panel.columns);
  const int64_t block = summation_block(hub.slots);
  T total, part;
  total.template clear<R>();
  for (int64_t slot = 0; slot < hub.slots;) {
    part.template clear<R>();
    for (int64_t end = std::min<int64_t>(slot + block, hub.slots); slot < end; ++slot)
      part.template combine_kept<R>(call.partials + (hub.first_slot + slot) * call.stride + panel.column, valid);
    total.template combine<R>(part);
  }
  emit<T, R>(call, call.stores_sums(), call.schedule->segments[hub.first_segment], panel.column, valid, total);
}

// ---- which tiles cover a row

template <class T, class R>
Panel<typename T::S> panel_with(const Aggregation<typename T::S>& call, int64_t column, int64_t columns) {
  return {column, columns, call.weight ? sum_block<T, R, true> : sum_block<T, R, false>, add_partials<T, R>};
}

template <class T>
Panel<typename T::S> panel_of(const Aggregation<typename T::S>& call, int64_t column, int64_t columns) {
  return call.reduce == Reduce::max ? panel_with<T, Max>(call, column, columns)
                                    : panel_with<T, Sum>(call, column, columns);
}

// The tiles of columns `column` to `end` - 1: whole ones, widest first; with masks, one tile that reaches beyond the
// row's end takes a remainder of any width.
template <class S>
std::vector<Panel<S>> panels(const Aggregation<S>& call, int64_t column, int64_t end) {
  constexpr int lanes = vector_bytes / sizeof(Accumulator<S>);
  std::vector<Panel<S>> found;
  const auto left = [&] { return end - column; };
  const auto cover = [&](auto count) {
    constexpr int64_t width = decltype(count)::value * lanes;
    using Whole = Tile<S, vector_bytes, decltype(count)::value, false>;
    while (left() >= width && (width == registers * lanes || left() == width || !has_masks)) {
      found.push_back(panel_of<Whole>(call, column, width));
      column += width;
    }
    if constexpr (has_masks) {
      using Part = Tile<S, vector_bytes, decltype(count)::value, true>;
      if (left() > width / 2 && left() < width) {
        found.push_back(panel_of<Part>(call, column, left()));
        column = end;
      }
    }
  };
  if constexpr (registers >= 16) cover(std::integral_constant<int, 16>{});
  cover(std::integral_constant<int, 8>{});
  cover(std::integral_constant<int, 4>{});
  cover(std::integral_constant<int, 2>{});
  cover(std::integral_constant<int, 1>{});
  if (left() > 0) {
    // Without masks: rows are padded to 16 bytes, half a vector of 32.
    using Last = std::conditional_t<has_masks, Tile<S, vector_bytes, 1, true>, Tile<S, 16, 1, false>>;
    found.push_back(panel_of<Last>(call, column, left()));
  }
  return found;
}

// The sweeps over all edges that a call makes, each for some of the columns. The last one takes a remainder, too.
template <class S>
std::vector<std::vector<Panel<S>>> sweeps_of(const Aggregation<S>& call) {
  std::vector<std::vector<Panel<S>>> found;
  for (int64_t column = 0; column < call.stride;) {
    const int64_t end = call.stride - column < 2 * call.sweep ? call.stride : column + call.sweep;
    found.push_back(panels(call, column, end));
    column = end;
  }
  return found;
}

// ---- blocks

// The worker of a thread; the thread that finishes the last part of a hub adds all of them.
template <class S>
struct SumWorker {
  Aggregation<S> call;
  const std::vector<std::vector<Panel<S>>>* columns;  // of each sweep

  void read_from(const S* const* sources) { call.sources = sources; }
  void block(const Block& block, int64_t sweep) {
    const auto& panels = (*columns)[sweep];
    for (const auto& panel : panels) panel.sum(call, block, panel);
    if (block.hub < 0 || !last_of_hub(*call.schedule, block)) return;
    for (const auto& panel : panels) panel.add_partials(call, call.schedule->hubs[block.hub], panel);
  }
};

template <class S>
struct SumWork {
  const Aggregation<S>& call;
  std::vector<std::vector<Panel<S>>> columns = sweeps_of(call);

  int64_t sweeps() const { return static_cast<int64_t>(columns.size()); }
  SumWorker<S> worker() const { return {call, &columns}; }
};

template <class S>
void run(const Aggregation<S>& call) {
  run_schedule<S>(SumWork<S>{call});
}

}  // namespace

void aggregate(const Aggregation<float>& call) { run(call); }
void aggregate(const Aggregation<double>& call) { run(call); }
void aggregate(const Aggregation<Float16>& call) { run(call); }
void aggregate(const Aggregation<BFloat16>& call) { run(call); }

}  // namespace MGG_ISA
}  // namespace mgg
