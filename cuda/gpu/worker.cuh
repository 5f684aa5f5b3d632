// Threads that work together: a warp, a part of one, or a whole block.
#pragma once
#include "runtime/device.h"

namespace mgg {

// One worker's place: which lane of it this thread is, and its mask within the warp. More than 32 lanes are a block.
template <int LANES>
struct Worker {
  static constexpr bool whole_block = LANES > 32;
  static constexpr uint32_t all = LANES >= 32 ? 0xFFFFFFFFu : (1u << (LANES % 32)) - 1;
  int lane;
  uint32_t mask;
  MGG_DEVICE Worker() {
    const int in_warp = device::thread() % 32;
    lane = device::thread() % LANES;
    mask = whole_block ? all : all << (in_warp - lane);
  }
  MGG_DEVICE static int64_t number() {
    return (int64_t(device::block()) * device::threads() + device::thread()) / LANES;
  }
  MGG_DEVICE static int64_t workers() { return int64_t(device::blocks()) * device::threads() / LANES; }

  // After it all lanes see everything that one of them wrote before.
  MGG_DEVICE void sync() const {
    if constexpr (whole_block)
      device::sync_block();
    else
      device::sync_lanes(mask);
  }
  // The first lane's value, for all. `word`: of a whole block, 4 bytes of shared memory for nothing else.
  MGG_DEVICE int32_t from_first(int32_t value, [[maybe_unused]] int32_t* word) const {
    if constexpr (whole_block) {
      device::sync_block();
      if (lane == 0) *word = value;
      device::sync_block();
      return *word;
    } else {
      return device::from_lane(mask, value, device::thread() % 32 - lane);
    }
  }
};

}  // namespace mgg
