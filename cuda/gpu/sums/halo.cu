// The kernels of the transfer `halo` over rows of one type, MGG_ROWS: compiled once for each type.
#include "gpu/sums/halo.cuh"
#include "gpu/shapes.h"

namespace mgg {
namespace {

using Rows = MGG_ROWS;
using Call = DeviceHaloCall<Rows>;

template <class R, bool FAR>
void (*halo(const Shape& shape))(Call) {
  return of_shape(shape, [](auto size) -> void (*)(Call) {
    return aggregate_halo<Rows, R, decltype(size)::lanes, decltype(size)::packs, FAR>;
  });
}
void (*halo(const Variant& variant, const Shape& shape))(Call) {
  if (variant.far) return variant.max ? halo<DeviceMax, true>(shape) : halo<DeviceSum, true>(shape);
  return variant.max ? halo<DeviceMax, false>(shape) : halo<DeviceSum, false>(shape);
}

}  // namespace

void aggregate(const Call& call, const Kernel& kernel, const gpu::Launch& launch) {
  gpu::launch(halo(kernel.variant, kernel.shape), call, launch);
}

gpu::Occupancy halo_occupancy(Rows, const Kernel& kernel, int threads, int64_t shared_bytes) {
  return gpu::occupancy(halo(kernel.variant, kernel.shape), threads, shared_bytes);
}

}  // namespace mgg
