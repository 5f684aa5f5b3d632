// Memory whose pages move to the processor that touches them.
#pragma once
#include "runtime/runtime_cuda.h"

namespace mgg {
namespace studies {

class Managed {
 public:
  explicit Managed(size_t bytes) {
    gpu::check(cudaMallocManaged(&data_, bytes ? bytes : 1), "managed memory");
    gpu::check(cudaMemset(data_, 0, bytes), "managed memory");
  }
  ~Managed() { cudaFree(data_); }
  Managed(const Managed&) = delete;
  void* data() const { return data_; }
  // Moves its first `bytes` to the host, and waits.
  void to_host(size_t bytes) const {
    gpu::check(cudaDeviceSynchronize(), "a kernel");
    if (!bytes) return;
#if CUDART_VERSION >= 13000
    cudaMemLocation host{};
    host.type = cudaMemLocationTypeHost;
    gpu::check(cudaMemPrefetchAsync(data_, bytes, host, 0, nullptr), "managed memory to the host");
#else
    gpu::check(cudaMemPrefetchAsync(data_, bytes, cudaCpuDeviceId, nullptr), "managed memory to the host");
#endif
    gpu::check(cudaStreamSynchronize(nullptr), "managed memory to the host");
  }

 private:
  void* data_ = nullptr;
};

}  // namespace studies
}  // namespace mgg
