// The kernels that are compiled quickly, all types of rows in one.
#include "gpu/rows/dropout.cuh"
#include "gpu/rows/gather.cuh"
#include "gpu/sums/halo.cuh"
#include "gpu/kernels.h"

namespace mgg {

const char* compiler() {
#define MGG_TEXT(x) #x
#define MGG_VERSION(a, b, c) MGG_TEXT(a) "." MGG_TEXT(b) "." MGG_TEXT(c)
#if defined(MGG_SHIM)
  return "shim";
#else
  return MGG_VERSION(__CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__);
#endif
}

namespace {

template <bool GETS>
void gather_with(const DeviceGather& call, const Shape& shape, const gpu::Launch& launch) {
  if (shape.lanes == 4) return gpu::launch(gather_rows<4, GETS>, call, launch);
  if (shape.lanes == 8) return gpu::launch(gather_rows<8, GETS>, call, launch);
  if (shape.lanes == 16) return gpu::launch(gather_rows<16, GETS>, call, launch);
  gpu::launch(gather_rows<32, GETS>, call, launch);
}

template <class S>
void dropout_of(const DeviceDropout<S>& call, const Shape& shape, const gpu::Launch& launch) {
  if (shape.lanes == 4) return gpu::launch(dropout_rows<S, 4>, call, launch);
  if (shape.lanes == 8) return gpu::launch(dropout_rows<S, 8>, call, launch);
  if (shape.lanes == 16) return gpu::launch(dropout_rows<S, 16>, call, launch);
  gpu::launch(dropout_rows<S, 32>, call, launch);
}

}  // namespace

void gather(const DeviceGather& call, bool gets, const Shape& shape, const gpu::Launch& launch) {
  gets ? gather_with<true>(call, shape, launch) : gather_with<false>(call, shape, launch);
}

void gather_floor(const DeviceFloor& call, const Shape& shape, const gpu::Launch& launch) {
  if (shape.lanes == 4) return gpu::launch(gather_floor<4>, call, launch);
  if (shape.lanes == 8) return gpu::launch(gather_floor<8>, call, launch);
  if (shape.lanes == 16) return gpu::launch(gather_floor<16>, call, launch);
  gpu::launch(gather_floor<32>, call, launch);
}

void let_go(const DeviceHalo& halo, bool far, const gpu::Launch& launch) {
  far ? gpu::launch(give_credits<true>, halo, launch) : gpu::launch(give_credits<false>, halo, launch);
}

#define MGG_DROPOUT(S)                                                                                \
  void dropout(const DeviceDropout<S>& call, const Shape& shape, const gpu::Launch& launch) {         \
    dropout_of(call, shape, launch);                                                                  \
  }
MGG_DROPOUT(float)
MGG_DROPOUT(Float16)
MGG_DROPOUT(BFloat16)
#undef MGG_DROPOUT

void dropout(const DeviceDropoutCsr& call, const gpu::Launch& launch) { gpu::launch(dropout_csr, call, launch); }

}  // namespace mgg
