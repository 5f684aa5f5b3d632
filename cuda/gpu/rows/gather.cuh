// Rows by their numbers, from several kinds of memory, without a plan; and the least that reading rows in a given order
// costs.
#pragma once
#include "gpu/arguments.h"
#include "runtime/transport_device.h"
#include "gpu/worker.cuh"

namespace mgg {

// The tier of a slot: the last that does not begin after it.
MGG_DEVICE int32_t tier_of(const int64_t* firsts, int32_t tiers, int64_t slot) {
  int32_t low = 0, high = tiers;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (firsts[middle] <= slot ? low : high) = middle;
  }
  return low;
}

MGG_DEVICE void store_unit(void* to, const device::Pack& unit) { device::store_pack(to, unit); }
template <class Unit>
MGG_DEVICE void store_unit(void* to, const Unit& unit) { *static_cast<Unit*>(to) = unit; }

// The order in which a worker reads a row's units: where that takes several loads, from the first whole line of 128 bytes
// on, and what lies before it last (a circular shift: Min, dissertation, section 3.3.2), in one load with the row's end
// if both fit. So each line is one request.
template <int LANES, class Unit>
struct UnitOrder {
  static constexpr int32_t line = 128, size = static_cast<int32_t>(sizeof(Unit));
  int32_t before = 0, after, gap = 0;
  MGG_DEVICE UnitOrder(const char* from, int64_t bytes) : after(static_cast<int32_t>(bytes / size)) {
    if (LANES < device::warp_lanes || after <= LANES || bytes < line) return;
    before = static_cast<int32_t>(-reinterpret_cast<uintptr_t>(from) % line) / size;
    after -= before;
    if (after % LANES + before > LANES) gap = LANES - after % LANES;
  }
  MGG_DEVICE int32_t steps() const { return after + gap + before; }
  // The unit of a step, or -1.
  MGG_DEVICE int32_t at(int32_t step) const {
    if (step < after) return step + before;
    const int32_t left = step - after - gap;
    return left >= 0 && left < before ? left : -1;
  }
};

template <int LANES, class Unit>
MGG_DEVICE void copy_row(int lane, const char* from, char* to, int64_t bytes) {
  constexpr int unroll = LANES < device::warp_lanes ? 1 : sizeof(Unit) == sizeof(device::Pack) ? 4 : 8;
  const UnitOrder<LANES, Unit> order(from, bytes);
  for (int32_t first = lane; first - lane < order.steps(); first += unroll * LANES) {
    Unit held[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const int64_t at = order.at(first + u * LANES);
      device::load_unit<LANES>(held[u], from + at * order.size, at >= 0);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u)
      if (const int64_t at = order.at(first + u * LANES); at >= 0) store_unit(to + at * order.size, held[u]);
  }
}

// GETS: whether some rows are reached by no pointer. NVSHMEM's calls need a stack, and the others go without.
template <int LANES, bool GETS>
MGG_KERNEL void gather_rows(DeviceGather call) {
  const Worker<LANES> worker;
  [[maybe_unused]] bool asked = false;
  for (int64_t i = worker.number(); i < call.count; i += worker.workers()) {
    const int64_t slot = call.ids[i];
    if (slot < 0) continue;
    const int32_t number = tier_of(call.firsts, call.tier_count, slot);
    const DeviceTier& tier = call.tiers[number];
    int64_t row = slot - call.firsts[number], at = tier.first;
    if (tier.count > 1) at += row % tier.count, row /= tier.count;
    const char* rows = call.rows[at];
    char* to = call.out + i * call.row_bytes;
    if constexpr (GETS) {
      if (!rows) {
        if (worker.lane == 0) {
          device::get_nbi(to, tier.mine + row * tier.row_bytes, call.row_bytes, static_cast<int>(call.pes[at]),
                          device::default_channel);
          asked = true;
        }
        continue;
      }
    }
    const char* from = rows + row * tier.row_bytes;
    if (tier.unit == 16)
      copy_row<LANES, device::Pack>(worker.lane, from, to, call.row_bytes);
    else if (tier.unit == 4)
      copy_row<LANES, uint32_t>(worker.lane, from, to, call.value_bytes);
    else
      copy_row<LANES, uint16_t>(worker.lane, from, to, call.value_bytes);
  }
  if constexpr (GETS) {
    if (asked) device::quiet(device::default_channel);
  }
}

template <int LANES>
MGG_KERNEL void gather_floor(DeviceFloor call) {
  constexpr int unroll = 8;
  const Worker<LANES> worker;
  const int64_t packs = call.row_bytes / 16, blocks = (call.edges + unroll - 1) / unroll;
  uint32_t seen = 0;
  for (int64_t block = worker.number(); block < blocks; block += worker.workers())
    for (int64_t pack = worker.lane; pack < packs; pack += LANES) {
      device::Pack held[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        const int64_t edge = block * unroll + u < call.edges ? block * unroll + u : call.edges - 1;
        held[u] = device::load_pack_constant(call.rows + device::load_constant(call.indices + edge) * call.row_bytes +
                                             16 * pack);
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u)
#pragma unroll
        for (int word = 0; word < 4; ++word)
          if (block * unroll + u < call.edges) seen ^= held[u].word[word];
    }
  if (call.seen) call.seen[int64_t(device::block()) * device::threads() + device::thread()] = seen;
}

}  // namespace mgg
