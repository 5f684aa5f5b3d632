// The kernels over rows of one type, MGG_ROWS: compiled once for each.
#include "aggregate.cuh"
#include "kernels_cuda.h"
#include "sddmm.cuh"

namespace mgg {
namespace {

using Rows = MGG_ROWS;
using Call = DeviceAggregation<Rows>;

[[noreturn]] void unknown(const Shape& shape) {
  throw std::invalid_argument("no kernel of " + std::to_string(shape.lanes) + " lanes and " +
                              std::to_string(shape.packs) + " packs");
}

// Four packs would take 200 registers a thread; wider rows take several passes.
template <class R, bool REMOTE>
void (*direct(const Shape& shape))(Call) {
  if (shape.packs == 1 && shape.lanes == 4) return aggregate_direct<Rows, R, 4, 1, REMOTE>;
  if (shape.packs == 1 && shape.lanes == 8) return aggregate_direct<Rows, R, 8, 1, REMOTE>;
  if (shape.packs == 1 && shape.lanes == 16) return aggregate_direct<Rows, R, 16, 1, REMOTE>;
  if (shape.packs == 1 && shape.lanes == 32) return aggregate_direct<Rows, R, 32, 1, REMOTE>;
  if (shape.packs == 2 && shape.lanes == 32) return aggregate_direct<Rows, R, 32, 2, REMOTE>;
  unknown(shape);
}
template <bool REMOTE>
void (*direct(bool max, const Shape& shape))(Call) {
  return max ? direct<DeviceMax, REMOTE>(shape) : direct<DeviceSum, REMOTE>(shape);
}
void (*direct(const Variant& variant, const Shape& shape))(Call) {
  return variant.remote ? direct<true>(variant.max, shape) : direct<false>(variant.max, shape);
}

}  // namespace

void aggregate(const Call& call, const Variant& variant, const Shape& shape, gpu::Launch launch) {
  launch.shared_bytes = variant.remote ? ring_bytes(launch.threads, shape.packs) : 0;
  gpu::launch(direct(variant, shape), call, launch);
}

gpu::Occupancy aggregate_occupancy(Rows, const Variant& variant, const Shape& shape, int threads) {
  return gpu::occupancy(direct(variant, shape), threads, variant.remote ? ring_bytes(threads, shape.packs) : 0);
}

void sddmm(const DeviceSddmm<Rows>& call, const Shape& shape, const gpu::Launch& launch) {
  if (shape.lanes == 4) return gpu::launch(sddmm_direct<Rows, 4>, call, launch);
  if (shape.lanes == 8) return gpu::launch(sddmm_direct<Rows, 8>, call, launch);
  if (shape.lanes == 16) return gpu::launch(sddmm_direct<Rows, 16>, call, launch);
  if (shape.lanes == 32) return gpu::launch(sddmm_direct<Rows, 32>, call, launch);
  unknown(shape);
}

}  // namespace mgg
