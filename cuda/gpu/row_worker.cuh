// The part that the workers of all schedules share: where their columns lie, adding rows, storing sums, hubs' parts.
#pragma once
#include <cstring>

#include "gpu/arguments.h"
#include "gpu/columns.cuh"
#include "gpu/hub_groups.h"
#include "gpu/worker.cuh"

namespace mgg {

constexpr int unroll = 4;  // rows under way to registers, of each worker

// LANES: of a worker. PACKS: packs of 16 bytes that a lane holds at once. Wider rows are walked in passes.
template <class S, class R, int LANES, int PACKS>
struct RowWorker {
  const DeviceAggregation<S>& call;
  Worker<LANES> worker;
  int32_t row_packs, passes;
  int32_t pass = 0, first_pack = 0;  // this lane's first pack of the row

  MGG_DEVICE explicit RowWorker(const DeviceAggregation<S>& call)
      : call(call),
        row_packs(static_cast<int32_t>(call.stride * static_cast<int64_t>(sizeof(S)) / 16)),
        passes((row_packs + LANES * PACKS - 1) / (LANES * PACKS)) {}

  // Work is numbered by task, then pass: a pass covers as many columns as a worker holds at once.
  MGG_DEVICE int64_t items() const { return call.count * passes; }
  MGG_DEVICE int64_t task_of(int64_t number) const {
    return passes == 1 ? number : number / passes;  // a division of 64 bits is a hundred instructions
  }
  // Returns the number of the task; its pass is this worker's from here on.
  MGG_DEVICE int64_t start(int64_t number) {
    const int64_t at = task_of(number);
    pass = static_cast<int32_t>(number - at * passes);
    first_pack = pass * LANES * PACKS + worker.lane;
    return at;
  }
  MGG_DEVICE const Block& take(int64_t number) { return call.tasks[start(number)]; }
  // Before a task is summed, the one that this worker takes next.
  MGG_DEVICE void prefetch(int64_t number) const {
    if (worker.lane == 0 && number < items()) device::prefetch(call.tasks + task_of(number));
  }
  // Edges of the task's destination.
  MGG_DEVICE int64_t edges_of(const Block& task) const {
    return task.hub >= 0 ? call.hubs[task.hub].edges : call.degree[call.segments[task.first].destination];
  }

  MGG_DEVICE bool has(int p) const { return first_pack + p * LANES < row_packs; }
  MGG_DEVICE const char* pack_of(const S* row, int p) const {
    return reinterpret_cast<const char*>(row) + 16 * (first_pack + p * LANES);
  }
  MGG_DEVICE float weight_at(int64_t edge) const { return call.weight ? call.weight[edge] : 1.0f; }
  // Bytes of a row that a pass covers.
  MGG_DEVICE int bytes_of(int32_t pass) const {
    const int32_t left = row_packs - pass * LANES * PACKS;
    return 16 * (left < LANES * PACKS ? left : LANES * PACKS);
  }

  template <bool FRESH>
  MGG_DEVICE static device::Pack load(const char* from) {
    if constexpr (FRESH) return device::load_pack_fresh(from);
    return device::load_pack_constant(from);
  }
  // Adds `count` rows of a chunk, `unroll` at most. Indices, weights and rows are all asked for before any is used;
  // beyond `count` the last row is read again, and not added.
  // FRESH: others wrote them while this kernel runs.
  template <bool ALL, bool FRESH>
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
        if (has(p)) packs[u][p] = load<FRESH>(columns + int64_t(row[u]) * row_packs * 16 + 16 * p * LANES);
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (!ALL && u >= count) return;
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
        if (has(p)) sums.sum.template combine<R>(p, packs[u][p], weight[u]);
      sums.took_one();
    }
  }

  // `rows`: row 0 of the segment's chunk.
  template <bool FRESH>
  MGG_DEVICE void add_segment(const Segment& segment, const S* rows, BlockedSum<S, R, PACKS>& sums) const {
    const char* columns = pack_of(rows, 0);
    int64_t edge = segment.first_edge;
    int left = segment.count;
    for (; left >= unroll; left -= unroll, edge += unroll) add_rows<true, FRESH>(columns, edge, unroll, sums);
    if (left > 0) add_rows<false, FRESH>(columns, edge, left, sums);
  }

  // After the last edge of a task. `word`: see Worker.
  MGG_DEVICE void complete(const Block& task, const Columns<S, PACKS>& sum, int32_t* word = nullptr) const {
    if (task.hub >= 0)
      part_of_hub(task, sum, word);
    else
      finish(call.segments[task.first].destination, sum);
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

  // Leaves a part's sum in its slot. The last part of a group to arrive adds the group's, and the last group all.
  MGG_DEVICE void part_of_hub(const Block& task, const Columns<S, PACKS>& sum, int32_t* word) const {
    const Hub& hub = call.hubs[task.hub];
    int32_t* counters = call.pending + pass * call.counters + hub.first_counter;
    const int32_t groups = hub_groups(hub.slots), group = (task.slot - hub.first_slot) / group_slots;
    const int32_t first = hub.first_slot + group * group_slots;
    store_partial(task.slot, sum);
    if (!is_last(counters, hub.slots, group, word)) return;
    Columns<S, PACKS> merged = merge(first, slots_of_group(hub.slots, group), 1);
    if (groups > 1) {
      store_partial(first, merged);
      if (!is_last(counters, hub.slots, groups, word)) return;
      merged = merge(hub.first_slot, groups, group_slots);
    }
    finish(call.segments[hub.first_segment].destination, merged);
  }
  // Returns true if this worker is the last that a counter of a hub waits for.
  MGG_DEVICE bool is_last(int32_t* counters, int32_t slots, int32_t counter, int32_t* word) const {
    worker.sync();
    int32_t before = 0;
    if (worker.lane == 0) before = device::add_in_order(counters + counter, -1);
    before = worker.from_first(before, word);
    worker.sync();  // what lane 0 may see now, the others may see too
    if (before != 1) return false;
    if (worker.lane == 0) counters[counter] = counter_start(slots, counter);  // for the next call
    return true;
  }
  // Adds `count` partial sums, `step` slots apart.
  MGG_DEVICE Columns<S, PACKS> merge(int32_t slot, int32_t count, int32_t step) const {
    BlockedSum<S, R, PACKS> sums(count);
    for (int32_t first = 0; first < count; first += slots_ahead) {
      Columns<S, PACKS> parts[slots_ahead];
#pragma unroll
      for (int u = 0; u < slots_ahead; ++u)
        load_partial(slot + (first + u < count ? first + u : count - 1) * step, parts[u]);
#pragma unroll
      for (int u = 0; u < slots_ahead; ++u) {
        if (first + u >= count) break;
        sums.sum.template combine<R>(parts[u]);
        sums.took_one();
      }
    }
    return sums.result();
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

}  // namespace mgg
