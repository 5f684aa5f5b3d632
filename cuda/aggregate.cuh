// Sums the rows of each destination's neighbours on a GPU: the transfer `direct`.
//
// A worker is a group of LANES lanes: a warp, or a part of one where rows are narrow. It takes a destination, or a part
// of a hub, and walks its columns PACKS packs of 16 bytes a lane at a time. Rows of other PEs are read through their
// pointers into a ring in shared memory, asynchronously: the first few are asked for before local rows are summed, so
// that they travel meanwhile (MGG section 3.3). From sm_90 on one lane asks for a row by a bulk copy, and all wait at
// its barrier; before, every lane copies what it reads itself, and none waits for another. Local rows go to registers,
// `unroll` independent loads at a time.
//
// Sums are taken in the order of the plan, local rows first, in blocks (summation_block), and a hub's parts are added
// in the order of their slots by the last one to arrive: the same input gives the same bits.
#pragma once
#include <cstring>

#include "calls_cuda.h"
#include "mgg/half.h"
#include "mgg/semantics.h"
#include "worker.cuh"

namespace mgg {

constexpr int unroll = 4;  // local rows under way, of each worker

struct DeviceSum {
  MGG_DEVICE static float start() { return 0.0f; }
  MGG_DEVICE static float combine(float a, float b) { return a + b; }
};
struct DeviceMax {
  MGG_DEVICE static float start() { return float_of_bits(0xFF800000u); }
  MGG_DEVICE static float combine(float a, float b) { return a >= b || a != a ? a : b; }  // NaN stays NaN
};

// The columns of one lane: PACKS packs, LANES packs apart.
template <class S, int PACKS>
struct Columns {
  static constexpr int values = 16 / static_cast<int>(sizeof(S));
  float value[PACKS][values];

  template <class R>
  MGG_DEVICE void clear() {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < values; ++i) value[p][i] = R::start();
  }
  template <class R>
  MGG_DEVICE void combine(const Columns& other) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < values; ++i) value[p][i] = R::combine(value[p][i], other.value[p][i]);
  }
  template <class R>
  MGG_DEVICE void combine(int p, const device::Pack& pack, float weight) {
    S row[values];
    memcpy(row, &pack, sizeof row);
#pragma unroll
    for (int i = 0; i < values; ++i) value[p][i] = R::combine(value[p][i], widen(row[i]) * weight);
  }
};

// Adds terms in blocks of a length that keeps the error of long sums small (semantics.h).
template <class S, class R, int PACKS>
struct BlockedSum {
  Columns<S, PACKS> sum, total;
  int32_t block, left;
  MGG_DEVICE explicit BlockedSum(int64_t terms) : block(static_cast<int32_t>(summation_block(terms))), left(block) {
    sum.template clear<R>();
    total.template clear<R>();
  }
  MGG_DEVICE void took_one() {
    if (--left > 0) return;
    total.template combine<R>(sum);
    sum.template clear<R>();
    left = block;
  }
  MGG_DEVICE const Columns<S, PACKS>& result() {
    sum.template combine<R>(total);
    return sum;
  }
};

// Walks the remote edges of a task: first to copy rows into the ring, and once more to sum them.
struct RemoteEdges {
  const Segment *at, *end;
  int64_t edge;
  MGG_DEVICE bool next(const int32_t* remote, int32_t& chunk, int64_t& found) {
    while (at != end && (!remote[at->chunk] || edge >= at->count)) ++at, edge = 0;
    if (at == end) return false;
    chunk = at->chunk, found = at->first_edge + edge++;
    return true;
  }
};

template <class S, class R, int LANES, int PACKS, bool REMOTE>
struct DirectWorker {
  const DeviceAggregation<S>& call;
  Worker<LANES> worker;
  int64_t row_packs;
  int64_t first_pack = 0;  // this lane's first one of the row
  uint32_t parities = 0;   // of the phases of this worker's barriers, a bit each

  MGG_DEVICE bool has(int p) const { return first_pack + p * LANES < row_packs; }
  MGG_DEVICE const char* pack_of(const S* row, int p) const {
    return reinterpret_cast<const char*>(row) + 16 * (first_pack + p * LANES);
  }
  // Where this thread's p-th pack of a row of the ring lies, a worker's packs side by side; and this row's barrier.
  MGG_DEVICE static char* slot(int row, int p) {
    const int worker = device::thread() / LANES, lane = device::thread() % LANES;
    return device::shared() + 16 * (((worker * ring_rows + row) * PACKS + p) * LANES + lane);
  }
  MGG_DEVICE static uint64_t* barrier(int row) {
    char* first = device::shared() + 16 * PACKS * ring_rows * device::threads();
    return reinterpret_cast<uint64_t*>(first) + device::thread() / LANES * ring_rows + row;
  }
  MGG_DEVICE const S* row_at(int32_t chunk, int64_t edge) const {
    return call.sources[chunk] + device::load_constant(call.indices + edge) * call.stride;
  }
  MGG_DEVICE float weight_at(int64_t edge) const { return call.weight ? call.weight[edge] : 1.0f; }

  // A worker's packs lie side by side, in rows as in the ring: its first lane copies those of all.
  MGG_DEVICE void ask_bulk(const S* from, int row) const {
    const int64_t left = row_packs - first_pack;  // at least one
    const int bytes = 16 * (left < LANES * PACKS ? static_cast<int>(left) : LANES * PACKS);
    device::expect_bulk(barrier(row), bytes);
    device::copy_bulk(slot(row, 0), pack_of(from, 0), bytes, barrier(row));
  }

  MGG_DEVICE void ask(RemoteEdges& ahead, int row) {
    int32_t chunk;
    int64_t edge;
    const bool found = ahead.next(call.remote, chunk, edge);
    if constexpr (device::bulk_copies) {
      if (found && worker.lane == 0) ask_bulk(row_at(chunk, edge), row);
    } else {
      if (found) {
        const S* from = row_at(chunk, edge);
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
          if (has(p)) device::copy_pack(slot(row, p), pack_of(from, p));
      }
      device::commit_copies();  // one group a turn, with or without copies, so that waits can count them
    }
  }
  MGG_DEVICE void await(int row) {
    if constexpr (device::bulk_copies) {
      device::wait_bulk(barrier(row), parities >> row & 1);
      parities ^= 1u << row;
    } else {
      device::wait_copies<ring_rows - 1>();
    }
  }
  // After reading a row of the ring, before it is asked for again.
  MGG_DEVICE void have_read() const {
    if constexpr (device::bulk_copies) device::sync_lanes(worker.mask);
  }

  // Adds `count` rows of a chunk, `unroll` at most. Indices, weights and rows are all asked for before any is used;
  // beyond `count` the last row is read again, and not added.
  template <bool ALL>
  MGG_DEVICE void add_rows(const char* columns, int64_t edge, int count, BlockedSum<S, R, PACKS>& sums) const {
    int32_t row[unroll];
    float weight[unroll];
    device::Pack packs[unroll][PACKS];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const int64_t at = edge + (ALL || u < count ? u : count - 1);
      row[u] = device::load_constant(call.indices + at);
      weight[u] = call.weight ? device::load_constant(call.weight + at) : 1.0f;
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u)
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
        if (has(p)) packs[u][p] = device::load_pack_constant(columns + row[u] * row_packs * 16 + 16 * p * LANES);
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (!ALL && u >= count) return;
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
        if (has(p)) sums.sum.template combine<R>(p, packs[u][p], weight[u]);
      sums.took_one();
    }
  }

  MGG_DEVICE void add_local(const Segment& segment, BlockedSum<S, R, PACKS>& sums) const {
    const char* columns = pack_of(call.sources[segment.chunk], 0);
    int64_t edge = segment.first_edge;
    int left = segment.count;
    for (; left >= unroll; left -= unroll, edge += unroll) add_rows<true>(columns, edge, unroll, sums);
    if (left > 0) add_rows<false>(columns, edge, left, sums);
  }

  MGG_DEVICE Columns<S, PACKS> sum_of(const Block& task, int64_t edges) {
    const Segment *first = call.segments + task.first, *last = call.segments + task.last;
    BlockedSum<S, R, PACKS> sums(edges);
    RemoteEdges ahead{first, last, 0};
    if constexpr (REMOTE)
      for (int row = 0; row < ring_rows; ++row) ask(ahead, row);
    for (const Segment* at = first; at != last; ++at) {
      const Segment segment = *at;
      if (!REMOTE || !call.remote[segment.chunk]) add_local(segment, sums);
    }
    if constexpr (REMOTE) add_remote({first, last, 0}, ahead, sums);
    return sums.result();
  }

  MGG_DEVICE void add_remote(RemoteEdges behind, RemoteEdges& ahead, BlockedSum<S, R, PACKS>& sums) {
    int32_t chunk;
    int64_t edge;
    for (int row = 0; behind.next(call.remote, chunk, edge); row = (row + 1) % ring_rows) {
      await(row);
      const float weight = weight_at(edge);
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
        if (has(p)) sums.sum.template combine<R>(p, device::load_pack(slot(row, p)), weight);
      sums.took_one();
      have_read();
      ask(ahead, row);
    }
    if constexpr (!device::bulk_copies) device::wait_copies<0>();
  }

  MGG_DEVICE void finish(int32_t destination, const Columns<S, PACKS>& sum) const {
    const int64_t degree = call.degree[destination];
    float scale = call.scale ? call.scale[destination] : 1.0f;
    if (call.mean) scale /= mean_divisor<float>(degree);
    S* out = call.out + destination * call.stride;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      if (!has(p)) continue;
      constexpr int values = Columns<S, PACKS>::values;
      const int64_t column = (first_pack + p * LANES) * values;
      S stored[values];
#pragma unroll
      for (int i = 0; i < values; ++i) {
        const float found = degree == 0 ? 0.0f : sum.value[p][i];  // also the maximum of nothing
        const float bias = call.bias && column + i < call.dim ? call.bias[column + i] : 0.0f;
        narrow(epilogue(found, scale, bias, call.relu), stored[i]);
      }
      device::Pack pack;
      memcpy(&pack, stored, sizeof pack);
      device::store_pack(out + column, pack);
    }
  }

  // Leaves a part's sum in its slot. The last part to arrive adds them all.
  MGG_DEVICE void part_of_hub(const Block& task, int32_t* pending, const Columns<S, PACKS>& sum) const {
    const Hub& hub = call.hubs[task.hub];
    store_partial(task.slot, sum);
    device::sync_lanes(worker.mask);
    int32_t before = 0;
    if (worker.lane == 0) before = device::add_in_order(pending, -1);
    before = device::from_lane(worker.mask, before, device::thread() % 32 - worker.lane);
    device::sync_lanes(worker.mask);  // what lane 0 may see now, the others may see too
    if (before != 1) return;
    if (worker.lane == 0) *pending = hub.slots;  // for the next call
    BlockedSum<S, R, PACKS> sums(hub.slots);
    for (int32_t first = 0; first < hub.slots; first += slots_ahead) {
      Columns<S, PACKS> parts[slots_ahead];
#pragma unroll
      for (int u = 0; u < slots_ahead; ++u)
        load_partial(hub.first_slot + (first + u < hub.slots ? first + u : hub.slots - 1), parts[u]);
#pragma unroll
      for (int u = 0; u < slots_ahead; ++u) {
        if (first + u >= hub.slots) break;
        sums.sum.template combine<R>(parts[u]);
        sums.took_one();
      }
    }
    finish(call.segments[hub.first_segment].destination, sums.result());
  }

  // Four values at a time; a lane's values of a pack lie side by side.
  static constexpr int slots_ahead = 16 / (Columns<S, PACKS>::values * PACKS);  // parts of a hub under way
  MGG_DEVICE float* partial(int32_t slot, int p, int i) const {
    return call.partials + slot * call.stride + (first_pack + p * LANES) * Columns<S, PACKS>::values + i;
  }
  MGG_DEVICE void store_partial(int32_t slot, const Columns<S, PACKS>& sum) const {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (has(p))
#pragma unroll
        for (int i = 0; i < Columns<S, PACKS>::values; i += 4) {
          device::Pack four;
          memcpy(&four, &sum.value[p][i], sizeof four);
          device::store_pack(partial(slot, p, i), four);
        }
  }
  MGG_DEVICE void load_partial(int32_t slot, Columns<S, PACKS>& part) const {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < Columns<S, PACKS>::values; i += 4) {
        float four[4] = {};
        if (has(p)) device::load_four_fresh(partial(slot, p, i), four);
#pragma unroll
        for (int k = 0; k < 4; ++k) part.value[p][i + k] = four[k];
      }
  }
};

// Work is numbered by task, then pass: a pass covers as many columns as a worker holds at once.
// REMOTE: whether the plan has remote rows at all; where it has none, neither ring nor shared memory is needed.
template <class S, class R, int LANES, int PACKS, bool REMOTE>
MGG_KERNEL void aggregate_direct(DeviceAggregation<S> call) {
  DirectWorker<S, R, LANES, PACKS, REMOTE> self{call, {}, call.stride * static_cast<int64_t>(sizeof(S)) / 16};
  if constexpr (REMOTE && device::bulk_copies) {
    if (self.worker.lane == 0)
      for (int row = 0; row < ring_rows; ++row) device::start_barrier(self.barrier(row));
    device::sync_lanes(self.worker.mask);
  }
  const int64_t passes = (self.row_packs + LANES * PACKS - 1) / (LANES * PACKS);
  for (int64_t number = self.worker.number(); number < call.count * passes; number += self.worker.workers()) {
    const int64_t at = passes == 1 ? number : number / passes;  // a division of 64 bits is a hundred instructions
    const Block& task = call.tasks[at];
    const int64_t pass = number - at * passes;
    self.first_pack = pass * LANES * PACKS + self.worker.lane;
    const int32_t destination = call.segments[task.first].destination;
    const int64_t edges = task.hub >= 0 ? call.hubs[task.hub].edges : call.degree[destination];
    const Columns<S, PACKS> sum = self.sum_of(task, edges);
    if (task.hub >= 0)
      self.part_of_hub(task, call.pending + pass * call.hub_count + task.hub, sum);
    else
      self.finish(destination, sum);
  }
}

}  // namespace mgg
