// Rows by their numbers, from any PE, without a plan; and the least that reading rows in a given order costs.
#pragma once
#include "gpu/arguments.h"
#include "runtime/transport_device.h"
#include "gpu/worker.cuh"

namespace mgg {

// The PE that owns a row: the last whose rows do not begin after it.
MGG_DEVICE int32_t owner_of(const int64_t* bounds, int32_t pes, int64_t row) {
  int32_t low = 0, high = pes;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (bounds[middle] <= row ? low : high) = middle;
  }
  return low;
}

// GETS: whether some tables are missing. NVSHMEM's calls need a stack, and the others go without.
template <int LANES, bool GETS>
MGG_KERNEL void gather_rows(DeviceGather call) {
  constexpr int unroll = 4;
  const Worker<LANES> worker;
  const int64_t packs = call.row_bytes / 16;
  [[maybe_unused]] bool asked = false;
  for (int64_t i = worker.number(); i < call.count; i += worker.workers()) {
    const int64_t id = call.ids[i];
    const int32_t pe = owner_of(call.bounds, call.pes, id);
    const int64_t offset = (id - call.bounds[pe]) * call.row_bytes;
    char* to = call.out + i * call.row_bytes;
    if constexpr (GETS) {
      if (!call.tables[pe]) {
        if (worker.lane == 0) {
          device::get_nbi(to, call.mine + offset, call.row_bytes, pe, device::default_channel);
          asked = true;
        }
        continue;
      }
    }
    const char* from = call.tables[pe] + offset;
    for (int64_t first = worker.lane; first < packs; first += unroll * LANES) {
      device::Pack held[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u)
        if (first + u * LANES < packs) held[u] = device::load_pack_constant(from + 16 * (first + u * LANES));
#pragma unroll
      for (int u = 0; u < unroll; ++u)
        if (first + u * LANES < packs) device::store_pack(to + 16 * (first + u * LANES), held[u]);
    }
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
