// The key on which draws on a GPU depend.
#pragma once
#include "gpu/arguments.h"
#include "runtime/device.h"

namespace mgg {

// A replayed graph launches with the scalars of its capture; what changes from replay to replay is in memory.
MGG_DEVICE uint32_t epoch_of(const RngKey& key) {
  return key.epoch_at ? static_cast<uint32_t>(*key.epoch_at) : key.epoch;
}

}  // namespace mgg
