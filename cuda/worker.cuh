// Groups of lanes that work together: a warp, or a part of one.
#pragma once
#include "mgg/device.h"

namespace mgg {

// One worker's place: which lane of it this thread is, and its mask within the warp.
template <int LANES>
struct Worker {
  static constexpr uint32_t all = LANES == 32 ? 0xFFFFFFFFu : (1u << (LANES % 32)) - 1;
  int lane;
  uint32_t mask;
  MGG_DEVICE Worker() {
    const int in_warp = device::thread() % 32;
    lane = in_warp % LANES;
    mask = all << (in_warp - lane);
  }
  MGG_DEVICE static int64_t number() {
    return (int64_t(device::block()) * device::threads() + device::thread()) / LANES;
  }
  MGG_DEVICE static int64_t workers() { return int64_t(device::blocks()) * device::threads() / LANES; }
};

}  // namespace mgg
