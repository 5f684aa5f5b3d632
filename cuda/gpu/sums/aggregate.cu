// The kernels over rows of one type, MGG_ROWS, that read through pointers: compiled once for each type.
#include "gpu/sums/aggregate.cuh"
#include "gpu/shapes.h"

namespace mgg {
namespace {

using Rows = MGG_ROWS;
using Call = DeviceAggregation<Rows>;

template <class R, bool REMOTE>
void (*direct(const Shape& shape))(Call) {
  return of_shape(shape, [](auto size) -> void (*)(Call) {
    return aggregate_direct<Rows, R, decltype(size)::lanes, decltype(size)::packs, REMOTE>;
  });
}
void (*direct(const Variant& variant, const Shape& shape))(Call) {
  if (variant.transfer == Transfer::none)
    return variant.max ? direct<DeviceMax, false>(shape) : direct<DeviceSum, false>(shape);
  return variant.max ? direct<DeviceMax, true>(shape) : direct<DeviceSum, true>(shape);
}

}  // namespace

void aggregate(const Call& call, const Kernel& kernel, const gpu::Launch& launch) {
  gpu::launch(direct(kernel.variant, kernel.shape), call, launch);
}

gpu::Occupancy direct_occupancy(Rows, const Kernel& kernel, int threads, int64_t shared_bytes) {
  return gpu::occupancy(direct(kernel.variant, kernel.shape), threads, shared_bytes);
}

}  // namespace mgg
