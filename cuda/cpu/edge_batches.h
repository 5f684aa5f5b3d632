// Kernels over edges (cpu/edges.h) take the edges of a destination in batches, whose rows a core's first cache holds
// while they are read several times.
//
// An Op defines the computation:
//   state()              number of values of A of a destination's intermediate result
//   begin(state)         initialises it
//   room()               number of values of A that `take` may use
//   take(batch, v, state, room)  adds a batch of edges of destination v
//   merge(into, from)    adds two states: parts of a hub, in the order of their edges
//   finish(state, v)     stores the result
// Batches, and with them all bits, follow from the schedule alone. Compiled once for each instruction set (MGG_ISA).
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cpu/edges.h"
#include "mgg/semantics.h"
#include "cpu/stages.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int most_edges = 32;  // of a batch: 32 rows of 512 bytes are half of a first cache

// Rows of a batch as values of A: `values`, then the tail, then the id's bytes.
template <class A>
struct Batch {
  int count = 0;
  const A* row[most_edges];
  int64_t edge[most_edges];

  uint64_t id(int i, int64_t columns) const {
    uint64_t value;
    std::memcpy(&value, row[i] + columns, sizeof value);
    return value;
  }
};

template <class S, class Op>
class EdgeWorker {
  using A = Accumulator<S>;

 public:
  EdgeWorker(const EdgeCall<S>& call, const Op& op) : call_(call), op_(op), state_(op.state()), room_(op.room()) {
    if constexpr (!std::is_same_v<S, A>) widened_.resize(most_edges * wide());
  }
  void read_from(const S* const* sources) { call_.sources = sources; }

  void block(const Block& block, int64_t) {
    const Segment* segments = call_.schedule->segments.data();
    if (block.hub >= 0) {
      A* part = call_.partials + block.slot * op_.state();
      op_.begin(part);
      run(segments + block.first, segments + block.last, part);
      if (last_of_hub(*call_.schedule, block)) add_parts(call_.schedule->hubs[block.hub]);
      return;
    }
    for (const Segment *at = segments + block.first, *last = segments + block.last; at != last;) {
      const Segment* end = at + 1;
      while (end != last && end->destination == at->destination) ++end;
      A* state = opened(*at);
      run(at, end, state);
      closed(*at, state);
      at = end;
    }
  }

 private:
  // A destination's state in this stage: from the one before where that has begun it.
  A* opened(const Segment& head) {
    A* state = call_.states ? call_.states + head.destination * op_.state() : state_.data();
    if (!call_.states || head.flags & first_stage) op_.begin(state);
    return state;
  }
  void closed(const Segment& head, A* state) {
    if (!call_.states || head.flags & last_stage) op_.finish(state, head.destination);
  }

  void add_parts(const Hub& hub) {
    const Segment& head = call_.schedule->segments[hub.first_segment];
    A* state = opened(head);
    for (int64_t slot = 0; slot < hub.slots; ++slot)
      op_.merge(state, call_.partials + (hub.first_slot + slot) * op_.state());
    closed(head, state);
  }

  void run(const Segment* first, const Segment* last, A* state) {
    const int64_t v = first->destination;
    for (const Segment* segment = first; segment != last; ++segment) {
      const S* base = call_.sources[segment->chunk];
      const int64_t end = segment->first_edge + segment->count;
      const int64_t ahead = end + call_.prefetch <= call_.edges ? call_.prefetch : 0;
      for (int64_t edge = segment->first_edge; edge < end; ++edge) {
        if (ahead) prefetch(base + call_.indices[edge + ahead] * call_.stride);
        put(base + call_.indices[edge] * call_.stride, edge);
        if (batch_.count == most_edges) flush(v, state);
      }
    }
    flush(v, state);
  }

  void flush(int64_t v, A* state) {
    if (batch_.count == 0) return;
    op_.take(batch_, v, state, room_.data());
    batch_.count = 0;
  }

  void prefetch(const S* row) const {
    const char* line = reinterpret_cast<const char*>(row);
    const int64_t bytes = call_.stride * static_cast<int64_t>(sizeof(S));
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at);
  }

  // Values of A that a widened row takes, its id included.
  int64_t wide() const { return call_.values + call_.tail + 8 / static_cast<int64_t>(sizeof(A)); }

  void put(const S* row, int64_t edge) {
    const int i = batch_.count++;
    batch_.edge[i] = edge;
    if constexpr (std::is_same_v<S, A>) {
      batch_.row[i] = row;
    } else {
      A* to = widened_.data() + i * wide();
      for (int64_t c = 0; c < call_.values; ++c) to[c] = widen(row[c]);
      const int64_t narrow_bytes = call_.values * static_cast<int64_t>(sizeof(S)), size = sizeof(A);
      const int64_t tail = (narrow_bytes + size - 1) / size * size, left = call_.stride * int64_t(sizeof(S)) - tail;
      std::memcpy(to + call_.values, reinterpret_cast<const char*>(row) + tail,
                  std::min<int64_t>(left, (wide() - call_.values) * size));
      batch_.row[i] = to;
    }
  }

  EdgeCall<S> call_;
  const Op& op_;
  std::vector<A> state_, room_, widened_;
  Batch<A> batch_;
};

template <class S, class Op>
struct EdgeWork {
  const EdgeCall<S>& call;
  const Op& op;
  static int64_t sweeps() { return 1; }
  EdgeWorker<S, Op> worker() const { return {call, op}; }
};

template <class S, class Op>
void run_edges(const EdgeCall<S>& call, const Op& op) {
  run_schedule<S>(EdgeWork<S, Op>{call, op});
}

// ---- columns of a head, `LANES` at a time

template <class A, int LANES>
using Lanes = Vector<A, LANES * static_cast<int>(sizeof(A))>;

// Calls body with the widest number of lanes that divides `channels`, as a constant: vectors do not cross heads then.
template <class A, class Body>
inline void with_lanes(int64_t channels, Body&& body) {
  constexpr int most = vector_bytes / static_cast<int>(sizeof(A));
  if constexpr (most >= 16)
    if (channels % 16 == 0) return body(std::integral_constant<int, 16>{});
  if constexpr (most >= 8)
    if (channels % 8 == 0) return body(std::integral_constant<int, 8>{});
  if constexpr (most >= 4)
    if (channels % 4 == 0) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 1>{});
}

// How many heads go into one vector; one by one unless all of them do, or half.
template <class A, int HEADS>
constexpr int lanes_of_heads = HEADS == 8 ? (vector_bytes >= 8 * static_cast<int>(sizeof(A)) ? 8 : 4) : 1;

template <class A, int LANES>
inline auto lanes_at(const A* from) {
  if constexpr (LANES == 1)
    return *from;
  else
    return load<LANES * static_cast<int>(sizeof(A))>(from);
}
template <class A, int LANES, class V>
inline void put_lanes(A* to, V value) {
  if constexpr (LANES == 1)
    *to = value;
  else
    store<LANES * static_cast<int>(sizeof(A))>(to, value);
}

template <int FIRST, class V, size_t... I>
inline auto some_lanes(V value, std::index_sequence<I...>) {
  return __builtin_shufflevector(value, value, (FIRST + I)...);
}

template <class A, int LANES, class V>
inline A sum_of_lanes(V value) {
  if constexpr (LANES == 1) {
    return value;
  } else if constexpr (LANES == 2) {
    return value[0] + value[1];
  } else {
    constexpr std::make_index_sequence<LANES / 2> half{};
    return sum_of_lanes<A, LANES / 2>(some_lanes<0>(value, half) + some_lanes<LANES / 2>(value, half));
  }
}

// The sums of the lanes of as many vectors as each has lanes, in their order: pairs of vectors become one.
template <class A, int LANES, int COUNT, class V>
inline V sums_of_lanes(V* vectors) {
  if constexpr (COUNT == 1) {
    return vectors[0];
  } else {
    constexpr std::make_index_sequence<LANES> all{};
#pragma GCC unroll 8
    for (int i = 0; i < COUNT / 2; ++i)
      vectors[i] = every_second<0>(vectors[2 * i], vectors[2 * i + 1], all) +
                   every_second<1>(vectors[2 * i], vectors[2 * i + 1], all);
    return sums_of_lanes<A, LANES, COUNT / 2>(vectors);
  }
}

// sum[h C + c] += the sum over the batch of weight[i H + h] row_i[offset + h C + c]
template <class A>
inline void add_weighted(const Batch<A>& batch, int heads, int64_t channels, int64_t offset, const A* weight, A* sum) {
  with_lanes<A>(channels, [&](auto lanes) {
    constexpr int L = decltype(lanes)::value;
    for (int h = 0; h < heads; ++h)
      for (int64_t c = h * channels; c < (h + 1) * channels; c += L) {
        auto total = lanes_at<A, L>(batch.row[0] + offset + c) * weight[h];
        for (int i = 1; i < batch.count; ++i) total += lanes_at<A, L>(batch.row[i] + offset + c) * weight[i * heads + h];
        put_lanes<A, L>(sum + c, lanes_at<A, L>(sum + c) + total);
      }
  });
}

// The same into two sums with weights of their own, which reads the rows once.
template <class A>
inline void add_weighted_twice(const Batch<A>& batch, int heads, int64_t channels, const A* weight, A* sum,
                               const A* other_weight, A* other) {
  with_lanes<A>(channels, [&](auto lanes) {
    constexpr int L = decltype(lanes)::value;
    for (int h = 0; h < heads; ++h)
      for (int64_t c = h * channels; c < (h + 1) * channels; c += L) {
        const auto first = lanes_at<A, L>(batch.row[0] + c);
        auto total = first * weight[h], second = first * other_weight[h];
        for (int i = 1; i < batch.count; ++i) {
          const auto values = lanes_at<A, L>(batch.row[i] + c);
          total += values * weight[i * heads + h];
          second += values * other_weight[i * heads + h];
        }
        put_lanes<A, L>(sum + c, lanes_at<A, L>(sum + c) + total);
        put_lanes<A, L>(other + c, lanes_at<A, L>(other + c) + second);
      }
  });
}

// The products of a head's columns, to be summed.
template <class A, int L>
inline auto head_products(const A* row, const A* mine, int64_t channels) {
  auto total = lanes_at<A, L>(row) * lanes_at<A, L>(mine);
  for (int64_t c = L; c < channels; c += L) total += lanes_at<A, L>(row + c) * lanes_at<A, L>(mine + c);
  return total;
}

// out[i H + h] = <row_i[offset ..], y> over the columns of head h
template <class A>
inline void dot_products(const Batch<A>& batch, int heads, int64_t channels, int64_t offset, const A* y, A* out) {
  with_lanes<A>(channels, [&](auto lanes) {
    constexpr int L = decltype(lanes)::value;
    if constexpr (L == 8)
      if (heads == L) {
        for (int i = 0; i < batch.count; ++i) {
          Lanes<A, L> products[L];
#pragma GCC unroll 8
          for (int h = 0; h < L; ++h)
            products[h] = head_products<A, L>(batch.row[i] + offset + h * channels, y + h * channels, channels);
          put_lanes<A, L>(out + i * L, sums_of_lanes<A, L, L>(products));
        }
        return;
      }
    for (int i = 0; i < batch.count; ++i)
      for (int h = 0; h < heads; ++h)
        out[i * heads + h] =
            sum_of_lanes<A, L>(head_products<A, L>(batch.row[i] + offset + h * channels, y + h * channels, channels));
  });
}

// Calls body with the number of heads as a constant where rows of S and that number are usual, so that loops over heads
// unroll; else with 0.
template <class S, class Body>
inline void with_heads(int heads, Body&& body) {
  if constexpr (std::is_same_v<S, float>) {
    if (heads == 8) return body(std::integral_constant<int, 8>{});
    if (heads == 1) return body(std::integral_constant<int, 1>{});
  }
  body(std::integral_constant<int, 0>{});
}

template <class A>
inline void add_all(A* into, const A* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] += from[i];
}

// This rank's row as values of A: as it is, or widened into `room`.
template <class S, class A>
inline const A* as_accumulators(const S* row, int64_t count, A* room) {
  if constexpr (std::is_same_v<S, A>) {
    return row;
  } else {
    for (int64_t c = 0; c < count; ++c) room[c] = widen(row[c]);
    return room;
  }
}

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
