// The dot product of the rows at the ends of each edge (SDDMM), which attention needs. A worker takes a destination, or
// a part of a hub, as in aggregate.cuh, and four of its edges at a time.
#pragma once
#include <cstring>

#include "calls_cuda.h"
#include "mgg/half.h"
#include "worker.cuh"

namespace mgg {

// The sum of the products of two packs that begin at `column`; what lies behind the row takes no part.
template <class S>
MGG_DEVICE float dot_packs(const device::Pack& a, const device::Pack& b, int64_t column, int64_t dim) {
  constexpr int values = 16 / static_cast<int>(sizeof(S));
  S left[values], right[values];
  memcpy(left, &a, sizeof left);
  memcpy(right, &b, sizeof right);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < values; ++i)
    if (column + i < dim) sum += widen(left[i]) * widen(right[i]);
  return sum;
}

template <class S, int LANES>
MGG_KERNEL void sddmm_direct(DeviceSddmm<S> call) {
  constexpr int unroll = 4, values = 16 / static_cast<int>(sizeof(S));
  static_assert(LANES >= unroll, "lane u stores the u-th value");
  const Worker<LANES> worker;
  const int64_t packs = call.stride / values;
  for (int64_t number = worker.number(); number < call.count; number += worker.workers()) {
    const Block& task = call.tasks[number];
    for (int64_t i = task.first; i < task.last; ++i) {
      const Segment& segment = call.segments[i];
      const S* to = call.destinations + segment.destination * call.stride;
      const S* chunk = call.sources[segment.chunk];
      const int64_t end = segment.first_edge + segment.count;
      for (int64_t edge = segment.first_edge; edge < end; edge += unroll) {
        const S* from[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
          const int64_t at = edge + u < end ? edge + u : end - 1;
          from[u] = chunk + device::load_constant(call.indices + at) * call.stride;
        }
        float dot[unroll] = {};
        for (int64_t pack = worker.lane; pack < packs; pack += LANES) {
          const int64_t column = pack * values;
          device::Pack held[unroll];
#pragma unroll
          for (int u = 0; u < unroll; ++u) held[u] = device::load_pack_constant(from[u] + column);
          const device::Pack mine = device::load_pack_constant(to + column);
#pragma unroll
          for (int u = 0; u < unroll; ++u) dot[u] += dot_packs<S>(mine, held[u], column, call.dim);
        }
#pragma unroll
        for (int other = LANES / 2; other > 0; other /= 2)
#pragma unroll
          for (int u = 0; u < unroll; ++u) dot[u] += device::from_lane_xor(worker.mask, dot[u], other);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
          if (worker.lane == u && edge + u < end) call.out[edge + u] = dot[u];
      }
    }
  }
}

}  // namespace mgg
