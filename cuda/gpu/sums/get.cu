// The kernels of the transfer `get` over rows of one type, MGG_ROWS: compiled once for each type.
#include "gpu/sums/get.cuh"
#include "gpu/shapes.h"

namespace mgg {
namespace {

using Rows = MGG_ROWS;
using Call = DeviceGetCall<Rows>;

template <class R, bool FAR>
void (*get(const Shape& shape))(Call) {
  return of_shape(shape, [](auto size) -> void (*)(Call) {
    return aggregate_get<Rows, R, decltype(size)::lanes, decltype(size)::packs, FAR>;
  });
}
void (*get(const Variant& variant, const Shape& shape))(Call) {
  if (variant.far) return variant.max ? get<DeviceMax, true>(shape) : get<DeviceSum, true>(shape);
  return variant.max ? get<DeviceMax, false>(shape) : get<DeviceSum, false>(shape);
}

}  // namespace

void aggregate(const Call& call, const Kernel& kernel, const gpu::Launch& launch) {
  gpu::launch(get(kernel.variant, kernel.shape), call, launch);
}

gpu::Occupancy get_occupancy(Rows, const Kernel& kernel, int threads, int64_t shared_bytes) {
  return gpu::occupancy(get(kernel.variant, kernel.shape), threads, shared_bytes);
}

}  // namespace mgg
