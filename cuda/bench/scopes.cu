// A part of _cuda and not of _cuda_studies: NVSHMEM's calls work in kernels of the module that has started it.
#include "bench/scopes.h"

#include <stdexcept>

#include "gpu/sums/get.cuh"

namespace mgg {
namespace studies {

// A row a lane, which waits for it, too.
struct ThreadGets {
  static constexpr bool spread = true, together = false;
  MGG_DEVICE static void get(char* to, const char* from, int bytes, int pe, int32_t channel) {
    device::get_nbi(to, from, bytes, pe, channel);
  }
};
struct WarpGets {
  static constexpr bool spread = false, together = true;
  MGG_DEVICE static void get(char* to, const char* from, int bytes, int pe, int32_t channel) {
    device::get_nbi_warp(to, from, bytes, pe, channel);
  }
};
struct BlockGets {
  static constexpr bool spread = false, together = true;
  MGG_DEVICE static void get(char* to, const char* from, int bytes, int pe, int32_t channel) {
    device::get_nbi_block(to, from, bytes, pe, channel);
  }
};

template <int LANES, class Gets>
MGG_KERNEL void aggregate_scoped_get(DeviceGetCall<float> call) {
  GetWorker<float, DeviceSum, LANES, 1, true, false, Gets> worker(call);
  worker.start();
  worker.sum_all();
}

namespace {

void (*kernel_of(Scope scope))(DeviceGetCall<float>) {
  switch (scope) {
    case Scope::thread: return aggregate_scoped_get<lanes_of(Scope::thread), ThreadGets>;
    case Scope::warp: return aggregate_scoped_get<lanes_of(Scope::warp), WarpGets>;
    case Scope::block: return aggregate_scoped_get<lanes_of(Scope::block), BlockGets>;
  }
  throw std::invalid_argument("no such scope");
}

}  // namespace

void get(const DeviceGetCall<float>& call, Scope scope, const gpu::Launch& launch) {
  gpu::launch(kernel_of(scope), call, launch);
}
gpu::Occupancy get_occupancy(Scope scope, int threads, int64_t shared_bytes) {
  return gpu::occupancy(kernel_of(scope), threads, shared_bytes);
}

}  // namespace studies
}  // namespace mgg
