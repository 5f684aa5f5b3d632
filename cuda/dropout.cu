// The kernels of dropout.
#include "dropout.cuh"

#include "kernels_cuda.h"

namespace mgg {
namespace {

template <class S>
void dropout_of(const DeviceDropout<S>& call, const Shape& shape, const gpu::Launch& launch) {
  if (shape.lanes == 4) return gpu::launch(dropout_rows<S, 4>, call, launch);
  if (shape.lanes == 8) return gpu::launch(dropout_rows<S, 8>, call, launch);
  if (shape.lanes == 16) return gpu::launch(dropout_rows<S, 16>, call, launch);
  gpu::launch(dropout_rows<S, 32>, call, launch);
}

}  // namespace

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
