// The kernels that are compiled quickly, all types of rows in one.
#include <type_traits>

#include "gpu/rows/dropout.cuh"
#include "gpu/rows/gather.cuh"
#include "gpu/sums/halo.cuh"
#include "gpu/kernels.h"

namespace mgg {

namespace {

// pick(std::integral_constant) of the lanes that are asked for.
template <class Pick>
void of_lanes(const Shape& shape, Pick pick) {
  if (shape.lanes == 4) return pick(std::integral_constant<int, 4>());
  if (shape.lanes == 8) return pick(std::integral_constant<int, 8>());
  if (shape.lanes == 16) return pick(std::integral_constant<int, 16>());
  pick(std::integral_constant<int, 32>());
}

}  // namespace

void gather(const DeviceGather& call, bool gets, const Shape& shape, const gpu::Launch& launch) {
  of_lanes(shape, [&](auto lanes) {
    gpu::launch(gets ? gather_rows<decltype(lanes)::value, true> : gather_rows<decltype(lanes)::value, false>, call,
                launch);
  });
}

void gather_floor(const DeviceFloor& call, const Shape& shape, const gpu::Launch& launch) {
  of_lanes(shape, [&](auto lanes) { gpu::launch(gather_floor<decltype(lanes)::value>, call, launch); });
}

void let_go(const DeviceHalo& halo, bool far, const gpu::Launch& launch) {
  far ? gpu::launch(give_credits<true>, halo, launch) : gpu::launch(give_credits<false>, halo, launch);
}

#define MGG_DROPOUT(S)                                                                                    \
  void dropout(const DeviceDropout<S>& call, const Shape& shape, const gpu::Launch& launch) {             \
    of_lanes(shape, [&](auto lanes) { gpu::launch(dropout_rows<S, decltype(lanes)::value>, call, launch); }); \
  }
MGG_DROPOUT(float)
MGG_DROPOUT(Float16)
MGG_DROPOUT(BFloat16)
#undef MGG_DROPOUT

void dropout(const DeviceDropoutCsr& call, const gpu::Launch& launch) { gpu::launch(dropout_csr, call, launch); }

}  // namespace mgg
