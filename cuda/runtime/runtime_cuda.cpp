#include "runtime/runtime_cuda.h"

#include <cuda.h>

#include <cstdio>

namespace mgg {
namespace gpu {
namespace {

// 13000 is "13.0".
std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

// A function of the driver as of a version of CUDA, or null. The module is not linked to the driver, so that it loads
// where there is none. Before CUDA 12.5 the version is that of this build.
template <class Function>
Function* of_driver(const char* name, [[maybe_unused]] unsigned version = 11030) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  if (code == cudaSuccess && status == cudaDriverEntryPointSuccess) return reinterpret_cast<Function*>(found);
  cudaGetLastError();  // or the next call would report it
  return nullptr;
}

}  // namespace

int device_count(std::string& why) {
  int count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    why = "no NVIDIA driver";
    return 0;
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  cudaGetLastError();  // or the next call would report it
  if (status == cudaErrorInsufficientDriver)
    why = "the driver is for CUDA " + version(driver) + ", but this build needs " + version(CUDART_VERSION) +
          ": update the driver";
  else
    why = cudaGetErrorString(status);
  return 0;
}

std::vector<std::string> device_places() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "GPUs");
  std::vector<std::string> places;
  for (int device = 0; device < count; ++device) {
    char place[32];
    check(cudaDeviceGetPCIBusId(place, sizeof place, device), "the place of a GPU");
    places.emplace_back(place);
  }
  return places;
}
std::vector<std::string> device_uuids() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "GPUs");
  // cuDeviceGetUuid's second version, of CUDA 11.4, gives the UUID of a MIG instance where the first, which fills the
  // properties, is only documented to give that of the whole GPU.
  const auto get = of_driver<decltype(cuDeviceGet)>("cuDeviceGet");
  const auto ask = of_driver<decltype(cuDeviceGetUuid)>("cuDeviceGetUuid", 11040);
  std::vector<std::string> uuids;
  for (int device = 0; device < count; ++device) {
    CUdevice handle = 0;
    CUuuid uuid;
    if (!get || !ask || get(&handle, device) != CUDA_SUCCESS || ask(&uuid, handle) != CUDA_SUCCESS) {
      cudaDeviceProp found;
      check(cudaGetDeviceProperties(&found, device), "properties of a GPU");
      uuid = found.uuid;
    }
    char digits[33] = {};
    for (int at = 0; at < 16; ++at)
      std::snprintf(digits + 2 * at, 3, "%02x", static_cast<unsigned char>(uuid.bytes[at]));
    uuids.emplace_back(digits);
  }
  return uuids;
}
void use_device(int device) { check(cudaSetDevice(device), "choosing a GPU"); }
void make_context() {
  if (cudaFree(nullptr) != cudaSuccess) cudaGetLastError();
}

Limits limits() {
  int device = 0;
  check(cudaGetDevice(&device), "the current GPU");
  cudaDeviceProp found;
  check(cudaGetDeviceProperties(&found, device), "properties of the GPU");
  Limits limits{};
  limits.name = found.name;
  limits.multiprocessors = found.multiProcessorCount;
  limits.threads_per_block = found.maxThreadsPerBlock;
  limits.threads_per_multiprocessor = found.maxThreadsPerMultiProcessor;
  limits.blocks_per_multiprocessor = found.maxBlocksPerMultiProcessor;
  limits.compute_capability = 10 * found.major + found.minor;
  limits.shared_per_block = static_cast<int64_t>(found.sharedMemPerBlockOptin);
  limits.shared_per_multiprocessor = static_cast<int64_t>(found.sharedMemPerMultiprocessor);
  limits.shared_reserved = static_cast<int64_t>(found.reservedSharedMemPerBlock);
  return limits;
}

std::pair<int64_t, int64_t> free_memory() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "the GPU's free memory");
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}
bool virtual_memory() {
  const auto get = of_driver<decltype(cuDeviceGet)>("cuDeviceGet");
  const auto ask = of_driver<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute");
  int number = 0;
  CUdevice device;
  if (!get || !ask || cudaGetDevice(&number) != cudaSuccess || get(&device, number) != CUDA_SUCCESS) {
    cudaGetLastError();
    return false;
  }
  const auto has = [&](CUdevice_attribute attribute) {
    int found = 0;
    return ask(&found, attribute, device) == CUDA_SUCCESS && found;
  };
  return has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
         has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
}

Memory::Memory(size_t bytes) : bytes_(bytes) {
  if (bytes) check(cudaMalloc(&data_, bytes), "device memory");
}
Memory::~Memory() {
  if (data_) cudaFree(data_);
}
void Memory::upload(const void* from, size_t bytes) {
  if (!bytes) return;
  check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
  // From pageable memory the call may return before all has arrived, and other streams would not wait.
  check(cudaStreamSynchronize(nullptr), "copy to the GPU");
}
void Memory::download(void* to, size_t bytes) const {
  check(cudaDeviceSynchronize(), "a kernel");
  if (bytes) check(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost), "copy from the GPU");
}

}  // namespace gpu
}  // namespace mgg
