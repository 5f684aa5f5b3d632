// The softmax of scores over each destination's edges, which attention needs: first the maximum and the sum of each
// destination, a hub's by the last part to arrive, then the edges. Sums are taken in a fixed order.
#pragma once
#include <cmath>

#include "gpu/arguments.h"
#include "gpu/worker.cuh"

namespace mgg {

// The maximum of some scores, and the sum of exp(score - maximum).
struct ScoreSum {
  float maximum, total;
  // Of two sets of scores; an empty one has total 0.
  MGG_DEVICE ScoreSum with(const ScoreSum& other) const {
    if (other.total == 0.0f) return *this;
    if (total == 0.0f) return other;
    const float most = maximum >= other.maximum || maximum != maximum ? maximum : other.maximum;
    return {most, scaled(most) + other.scaled(most)};
  }
  // The total by another maximum; the same one may be minus infinity, as masked scores are.
  MGG_DEVICE float scaled(float most) const { return maximum == most ? total : total * expf(maximum - most); }
  template <int LANES>
  MGG_DEVICE ScoreSum over_lanes(uint32_t mask) const {
    ScoreSum all = *this;
#pragma unroll
    for (int other = LANES / 2; other > 0; other /= 2) {
      const ScoreSum theirs{device::from_lane_xor(mask, all.maximum, other),
                            device::from_lane_xor(mask, all.total, other)};
      all = all.with(theirs);
    }
    return all;
  }
};

constexpr int softmax_lanes = 8;

MGG_KERNEL void softmax_statistics(DeviceSoftmax call) {
  const Worker<softmax_lanes> worker;
  for (int64_t number = worker.number(); number < call.count; number += worker.workers()) {
    const Block& task = call.tasks[number];
    ScoreSum sum{0.0f, 0.0f};
    for (int64_t i = task.first; i < task.last; ++i) {
      const Segment& segment = call.segments[i];
      for (int32_t e = worker.lane; e < segment.count; e += softmax_lanes)
        sum = sum.with({call.scores[segment.first_edge + e], 1.0f});
    }
    sum = sum.over_lanes<softmax_lanes>(worker.mask);
    int32_t destination = call.segments[task.first].destination;
    if (task.hub >= 0) {
      const Hub& hub = call.hubs[task.hub];
      int32_t before = 0;
      if (worker.lane == 0) {
        call.partials[2 * int64_t(task.slot)] = sum.maximum;
        call.partials[2 * int64_t(task.slot) + 1] = sum.total;
        before = device::add_in_order(call.pending + task.hub, -1);
      }
      before = device::from_lane(worker.mask, before, device::thread() % 32 - worker.lane);
      device::sync_lanes(worker.mask);  // what lane 0 may see now, the others may see too
      if (before != 1) continue;
      if (worker.lane == 0) call.pending[task.hub] = hub.slots;  // for the next call
      sum = {0.0f, 0.0f};
      for (int32_t slot = worker.lane; slot < hub.slots; slot += softmax_lanes) {
        const float* part = call.partials + 2 * int64_t(hub.first_slot + slot);
        sum = sum.with({device::load_fresh(part), device::load_fresh(part + 1)});
      }
      sum = sum.over_lanes<softmax_lanes>(worker.mask);
    }
    if (worker.lane == 0) call.maximum[destination] = sum.maximum, call.total[destination] = sum.total;
  }
}

MGG_KERNEL void softmax_apply(DeviceSoftmax call) {
  const Worker<softmax_lanes> worker;
  for (int64_t number = worker.number(); number < call.count; number += worker.workers()) {
    const Block& task = call.tasks[number];
    for (int64_t i = task.first; i < task.last; ++i) {
      const Segment& segment = call.segments[i];
      const float maximum = call.maximum[segment.destination], total = call.total[segment.destination];
      for (int32_t e = worker.lane; e < segment.count; e += softmax_lanes) {
        const int64_t edge = segment.first_edge + e;
        call.out[edge] = expf(call.scores[edge] - maximum) / total;
      }
    }
  }
}

}  // namespace mgg
