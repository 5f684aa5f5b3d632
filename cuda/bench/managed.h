// Memory whose pages move to the processor that touches them, with the advice that they are mostly read: each processor
// may keep a copy of a page.
#pragma once
#include "runtime/runtime_cuda.h"

namespace mgg {
namespace studies {

class Managed {
 public:
  explicit Managed(size_t bytes) : bytes_(bytes ? bytes : 1) {
    gpu::check(cudaMallocManaged(&data_, bytes_), "managed memory");
    gpu::check(cudaMemset(data_, 0, bytes), "managed memory");
    advise(cudaMemAdviseSetReadMostly);
  }
  ~Managed() { cudaFree(data_); }
  Managed(const Managed&) = delete;
  void* data() const { return data_; }
  // Moves its first `bytes` to the host, so that the GPU has no copy of them left, and waits.
  void to_host(size_t bytes) const {
    gpu::check(cudaDeviceSynchronize(), "a kernel");
    if (!bytes) return;
    advise(cudaMemAdviseUnsetReadMostly);  // else the GPU would keep its copies
#if CUDART_VERSION >= 13000
    const auto host = location(cudaMemLocationTypeHost);
    gpu::check(cudaMemPrefetchAsync(data_, bytes, host, 0, nullptr), "managed memory to the host");
#else
    gpu::check(cudaMemPrefetchAsync(data_, bytes, cudaCpuDeviceId, nullptr), "managed memory to the host");
#endif
    gpu::check(cudaStreamSynchronize(nullptr), "managed memory to the host");
    advise(cudaMemAdviseSetReadMostly);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;

#if CUDART_VERSION >= 13000
  static cudaMemLocation location(cudaMemLocationType type) {
    cudaMemLocation made{};
    made.type = type;
    return made;
  }
  void advise(cudaMemoryAdvise advice) const {  // which is not about a device, whatever the location
    gpu::check(cudaMemAdvise(data_, bytes_, advice, location(cudaMemLocationTypeDevice)), "advice on managed memory");
  }
#else
  void advise(cudaMemoryAdvise advice) const {
    gpu::check(cudaMemAdvise(data_, bytes_, advice, 0), "advice on managed memory");
  }
#endif
};

}  // namespace studies
}  // namespace mgg
