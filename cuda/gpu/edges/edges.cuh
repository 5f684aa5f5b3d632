// The loop that runs an Op over the edges of each destination on a GPU, over pointers or over rows that have arrived;
// edge_ops.cuh and attention.cuh have the Ops.
//
// A worker is a group of lanes that takes a head of a destination, or of a part of a hub, and one pass over the head's
// columns. Workers of neighbouring heads lie side by side, so that together they read whole rows. Four edges are under
// way to registers at a time, of whatever chunks. Where all heads begin on multiples of 16 bytes (PACKED) a lane takes
// 16 bytes of columns side by side, else four columns that lie `lanes` apart, each loaded for itself.
//
// An Op says what is computed, by the same words as cpu/edge_batches.h:
//   State                    floats: a lane's result so far
//   begin(state)             of nothing
//   take(state, batch)       adds up to four edges
//   merge(into, from)        adds two states: parts of a hub, in the order of their edges
//   finish(state)            stores the result
// An Op whose results do not fit a lane (in_memory) has rows for them: of destinations, or of parts of hubs, which it
// merges itself (keep, merge_slots).
// Sums are taken in the plan's order, four edges at a time: the same input gives the same bits, by any transfer.
#pragma once
#include <cstring>

#include "gpu/edge_arguments.h"
#include "gpu/hub_groups.h"
#include "runtime/device.h"
#include "mgg/half.h"
#include "mgg/semantics.h"

namespace mgg {

constexpr int edges_ahead = 4;

// The first values of a pack.
template <class S, int VALUES>
MGG_DEVICE void widen(const device::Pack& pack, float (&to)[VALUES]) {
  S values[VALUES];
  memcpy(values, &pack, sizeof values);
#pragma unroll
  for (int i = 0; i < VALUES; ++i) to[i] = widen(values[i]);
}

// A worker's place: its lanes (a power of two), and what it takes.
template <class S, bool PACKED>
struct HeadWorker {
  static constexpr int values = lane_columns<S>(PACKED);

  const DeviceEdges<S>& edges;
  int lane;
  uint32_t mask;
  int32_t head = 0, pass = 0;
  int32_t destination = 0;
  int32_t slot = -1;  // of a part of a hub

  MGG_DEVICE explicit HeadWorker(const DeviceEdges<S>& edges) : edges(edges) {
    const int in_warp = device::thread() % 32;
    lane = device::thread() & (edges.lanes - 1);
    mask = (edges.lanes == 32 ? 0xFFFFFFFFu : (1u << edges.lanes) - 1) << (in_warp - lane);
  }
  MGG_DEVICE int64_t number() const {
    return (int64_t(device::block()) * device::threads() + device::thread()) / edges.lanes;
  }
  MGG_DEVICE int64_t workers() const { return int64_t(device::blocks()) * device::threads() / edges.lanes; }

  // Returns the i-th of the head's columns that this lane processes in a pass.
  MGG_DEVICE int32_t column(int i, int32_t of_pass) const {
    const int32_t first = of_pass * edges.lanes;
    return PACKED ? (first + lane) * values + i : first * values + i * edges.lanes + lane;
  }
  MGG_DEVICE bool has(int i, int32_t of_pass) const { return column(i, of_pass) < edges.channels; }
  MGG_DEVICE int64_t offset() const { return int64_t(head) * edges.channels; }  // of the head in a row

  MGG_DEVICE const S* chunk(int32_t number) const {
    if (edges.sources) return edges.sources[number];
    if (number == 0) return edges.own;
    return reinterpret_cast<const S*>(edges.staging + (edges.state->calls & 1) * edges.staging_bytes);
  }

  // This lane's columns of a head that begins at `from`; 0 where there are none.
  MGG_DEVICE device::Pack load(const S* from, int32_t of_pass) const {
    device::Pack pack{};
    if constexpr (PACKED) {
      if (has(0, of_pass)) pack = device::load_pack_constant(from + column(0, of_pass));
    } else {
      S held[values];
#pragma unroll
      for (int i = 0; i < values; ++i) held[i] = has(i, of_pass) ? from[column(i, of_pass)] : S{};
      memcpy(&pack, held, sizeof held);
    }
    return pack;
  }
  // The same of one of this PE's rows, which may begin anywhere, in this pass.
  template <class T>
  MGG_DEVICE void load_near(const DeviceNear<const T>& near, float (&to)[values]) const {
    const T* from = near.rows + destination * near.stride + offset();
#pragma unroll
    for (int i = 0; i < values; ++i) to[i] = has(i, pass) ? widen(from[column(i, pass)]) : 0.0f;
  }
  template <class T>
  MGG_DEVICE void store_near(const DeviceNear<T>& near, const float (&from)[values]) const {
    T* to = near.rows + destination * near.stride + offset();
#pragma unroll
    for (int i = 0; i < values; ++i)
      if (has(i, pass)) narrow(from[i], to[column(i, pass)]);
  }
  // A value of the destination's head.
  MGG_DEVICE float of_head(const DeviceNear<const float>& near) const {
    return near.rows[destination * near.stride + head];
  }
  // By one lane, in the first pass: all have the same.
  MGG_DEVICE void store_of_head(const DeviceNear<float>& near, float value) const {
    if (lane == 0 && pass == 0) near.rows[destination * near.stride + head] = value;
  }

  MGG_DEVICE float over_lanes(float value) const {
    for (int other = edges.lanes / 2; other > 0; other /= 2) value += device::from_lane_xor(mask, value, other);
    return value;
  }
};

// The edges of a task, one after another.
template <class S, bool PACKED>
struct EdgeCursor {
  const HeadWorker<S, PACKED>& worker;
  const Segment *segment, *last;
  const S* rows = nullptr;  // row 0 of the segment's chunk
  int64_t edge = 0, end = 0;

  MGG_DEVICE bool more() {
    for (; edge == end; ++segment) {
      if (segment == last) return false;
      rows = worker.chunk(segment->chunk);
      edge = segment->first_edge, end = edge + segment->count;
    }
    return true;
  }
};

// Up to four edges of one destination. Beyond `count` the last one is there again, and takes no part.
template <class S, bool PACKED>
struct EdgeBatch {
  static constexpr int values = HeadWorker<S, PACKED>::values;
  int count = 0;
  int64_t edge[edges_ahead];
  const S* row[edges_ahead];

  MGG_DEVICE explicit EdgeBatch(EdgeCursor<S, PACKED>& next) {
    const DeviceEdges<S>& edges = next.worker.edges;
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      if (next.more()) {
        edge[u] = next.edge++, count = u + 1;
        row[u] = next.rows + device::load_constant(edges.indices + edge[u]) * edges.stride;
      } else {
        edge[u] = u ? edge[u - 1] : 0, row[u] = u ? row[u - 1] : nullptr;
      }
    }
  }
  MGG_DEVICE const float* tail(const DeviceEdges<S>& edges, int u) const {
    return reinterpret_cast<const float*>(row[u]) + edges.tail;
  }
  // A value of an edge and the worker's head, of [E, H].
  MGG_DEVICE float of_head(const HeadWorker<S, PACKED>& worker, const float* values, int u) const {
    return values[edge[u] * worker.edges.heads + worker.head];
  }
  MGG_DEVICE uint64_t id(const DeviceEdges<S>& edges, int u) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(row[u]) + edges.id;  // maybe no multiple of 8 bytes
    return uint64_t(words[1]) << 32 | words[0];
  }
  // The worker's columns of each row, from a column of the row on.
  MGG_DEVICE void load(const HeadWorker<S, PACKED>& worker, int64_t from, device::Pack (&to)[edges_ahead]) const {
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) to[u] = worker.load(row[u] + from + worker.offset(), worker.pass);
  }
  // Dot products over the head's columns of each row, from a column of the row on, with this PE's row `mine`; of this
  // pass both are there already.
  MGG_DEVICE void dots(const HeadWorker<S, PACKED>& worker, int64_t from, const device::Pack (&held)[edges_ahead],
                       const DeviceNear<const S>& near, const float (&mine)[values], float (&found)[edges_ahead]) const {
    const S* own = near.rows + worker.destination * near.stride + worker.offset();
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      float sum = 0.0f, theirs[values];
      for (int32_t pass = 0; pass < worker.edges.passes; ++pass) {
        if (pass == worker.pass) {
          widen<S>(held[u], theirs);
#pragma unroll
          for (int i = 0; i < values; ++i) sum += theirs[i] * mine[i];
        } else {
          widen<S>(worker.load(row[u] + from + worker.offset(), pass), theirs);
#pragma unroll
          for (int i = 0; i < values; ++i)
            if (worker.has(i, pass)) sum += theirs[i] * widen(own[worker.column(i, pass)]);
        }
      }
      found[u] = worker.over_lanes(sum);
    }
  }
};

// sum += the weighted rows of a batch, which are added to each other first.
template <class S, int VALUES>
MGG_DEVICE void add_weighted(int count, const device::Pack (&rows)[edges_ahead], const float (&weight)[edges_ahead],
                             float (&sum)[VALUES]) {
  float added[VALUES] = {}, row[VALUES];
#pragma unroll
  for (int u = 0; u < edges_ahead; ++u) {
    if (u >= count) break;
    widen<S>(rows[u], row);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) added[i] += row[i] * weight[u];
  }
#pragma unroll
  for (int i = 0; i < VALUES; ++i) sum[i] += added[i];
}

template <int COUNT>
MGG_DEVICE void add_each(float (&into)[COUNT], const float (&from)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) into[i] += from[i];
}

// The loop of an Op over the plan.
template <class Op>
struct EdgeLoop {
  using S = typename Op::Row;
  using State = typename Op::State;
  static constexpr bool packed = Op::packed;
  static constexpr int floats = static_cast<int>(sizeof(State) / sizeof(float));
  static_assert(Op::in_memory || floats <= most_state<S>, "partials have room for that");

  const DeviceEdges<S>& edges;
  HeadWorker<S, packed>& worker;

  MGG_DEVICE void add_task(const Block& task, const Op& op, State& state) const {
    EdgeCursor<S, packed> next{worker, edges.segments + task.first, edges.segments + task.last};
    while (next.more()) op.take(state, EdgeBatch<S, packed>(next));
  }

  // A lane's floats of a part of a hub.
  MGG_DEVICE float* partial(int32_t slot, int32_t part) const {
    return edges.partials + ((int64_t(slot) * edges.parts + part) * edges.lanes + worker.lane) * most_state<S>;
  }
  MGG_DEVICE void keep(const Op& op, const State& state, int32_t slot, int32_t part) const {
    if constexpr (Op::in_memory)
      op.keep(state, slot);
    else
      memcpy(partial(slot, part), &state, sizeof state);
  }
  // Leaves a part's state in its slot. The last part of a group to arrive merges the group's, and the last group all.
  MGG_DEVICE void part_of_hub(const Block& task, int32_t part, const Op& op, State& state) const {
    const Hub& hub = edges.hubs[task.hub];
    int32_t* counters = edges.pending + int64_t(part) * edges.counters + hub.first_counter;
    const int32_t groups = hub_groups(hub.slots), group = (task.slot - hub.first_slot) / group_slots;
    const int32_t first = hub.first_slot + group * group_slots;
    keep(op, state, task.slot, part);
    if (!is_last(counters, hub.slots, group)) return;
    merge(op, state, first, slots_of_group(hub.slots, group), 1, part);
    if (groups > 1) {
      keep(op, state, first, part);
      if (!is_last(counters, hub.slots, groups)) return;
      merge(op, state, hub.first_slot, groups, group_slots, part);
    }
    op.finish(state);
  }
  // Returns true if this worker is the last that a counter of a hub waits for.
  MGG_DEVICE bool is_last(int32_t* counters, int32_t slots, int32_t counter) const {
    device::sync_lanes(worker.mask);
    int32_t before = 0;
    if (worker.lane == 0) before = device::add_in_order(counters + counter, -1);
    before = device::from_lane(worker.mask, before, device::thread() % 32 - worker.lane);
    device::sync_lanes(worker.mask);  // what lane 0 may see now, the others may see too
    if (before != 1) return false;
    if (worker.lane == 0) counters[counter] = counter_start(slots, counter);  // for the next call
    return true;
  }
  // Merges `count` parts, `step` slots apart.
  MGG_DEVICE void merge(const Op& op, State& state, int32_t slot, int32_t count, int32_t step, int32_t part) const {
    if constexpr (Op::in_memory) {
      op.merge_slots(state, slot, count, step);
    } else {
      op.begin(state);
      for (int32_t at = 0; at < count; ++at) {
        float held[floats];
        const float* from = partial(slot + at * step, part);
#pragma unroll
        for (int i = 0; i < floats; ++i) held[i] = device::load_fresh(from + i);
        State other;
        memcpy(&other, held, sizeof other);
        op.merge(state, other);
      }
    }
  }

  MGG_DEVICE void run(const typename Op::Call& call) {
    for (int64_t number = worker.number(); number < edges.count * edges.parts; number += worker.workers()) {
      const Block& task = edges.tasks[number / edges.parts];
      const auto part = static_cast<int32_t>(number % edges.parts);
      worker.head = part % edges.heads, worker.pass = part / edges.heads;
      worker.destination = edges.segments[task.first].destination;
      if constexpr (Op::in_memory) worker.slot = task.hub >= 0 ? task.slot : -1;
      const Op op(call, worker);
      State state;
      op.begin(state);
      add_task(task, op, state);
      if (Op::merges && task.hub >= 0)
        part_of_hub(task, part, op, state);
      else
        op.finish(state);
    }
  }
};

template <class Op>
MGG_KERNEL void over_edges(typename Op::Call call) {
  HeadWorker<typename Op::Row, Op::packed> worker(call.edges);
  EdgeLoop<Op>{call.edges, worker}.run(call);
}

// The members that all Ops have.
template <class S, bool PACKED, class CALL>
struct EdgeOp {
  using Row = S;
  using Call = CALL;
  using Worker = HeadWorker<S, PACKED>;
  using Batch = EdgeBatch<S, PACKED>;
  static constexpr bool packed = PACKED, merges = true;  // merges: whether parts of a hub are more than their edges
  static constexpr bool in_memory = false;
  static constexpr int values = Worker::values;

  const Call& of;
  const Worker& worker;
  MGG_DEVICE EdgeOp(const Call& of, const Worker& worker) : of(of), worker(worker) {}
};

}  // namespace mgg
