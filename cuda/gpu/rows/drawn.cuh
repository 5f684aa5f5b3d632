// What draws on a GPU depend on.
#pragma once
#include "gpu/arguments.h"
#include "runtime/device.h"

namespace mgg {

// A replayed graph launches with the scalars of its capture; what changes from replay to replay is in memory.
MGG_DEVICE uint32_t epoch_of(const RngKey& drawn) {
  return drawn.epoch_at ? static_cast<uint32_t>(*drawn.epoch_at) : drawn.epoch;
}

}  // namespace mgg
