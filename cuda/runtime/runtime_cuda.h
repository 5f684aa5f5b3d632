// The GPU as host code uses it: the number of GPUs, their limits, memory, and launches. With MGG_SHIM the host plays the
// GPU (tests/shim), so that the code around kernels runs in every test too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(MGG_SHIM)
#include "shim.h"
#else
#include <cuda_runtime.h>
#endif

namespace mgg {
namespace gpu {

// GPUs that this process sees. 0 where there is no GPU, no driver, or one that is too old; `why` says which.
int device_count(std::string& why);

// Where each of them is on the bus: "0000:3b:00.0".
std::vector<std::string> device_places();
// The same for all processes of a machine; of parts of one GPU (MIG), which share its place, another for each.
std::vector<std::string> device_uuids();
// Makes one the current GPU of this process.
void use_device(int device);
// Its context, without which other libraries find no GPU; nothing where there is none.
void make_context();

// Limits of the current GPU; sizes in bytes.
struct Limits {
  std::string name;
  int multiprocessors, threads_per_block, threads_per_multiprocessor, blocks_per_multiprocessor;
  int compute_capability;  // times ten
  int64_t shared_per_block, shared_per_multiprocessor, shared_reserved;  // the last one for each block, by CUDA
};
Limits limits();
// Bytes of the current GPU's memory: those that are free, and all.
std::pair<int64_t, int64_t> free_memory();
// Returns true if the GPU's memory can be mapped piece by piece (VMM) and network cards reach it then: without both,
// NVSHMEM's heap does not grow. false where there is no GPU.
bool virtual_memory();

// Device memory. What is uploaded is there for all streams; freeing it waits for the kernels that run.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  void upload(const void* from, size_t bytes);
  // Waits for the kernels that run.
  void download(void* to, size_t bytes) const;
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

template <class Items>
Memory uploaded(const Items& items) {
  Memory memory(items.size() * sizeof(items[0]));
  memory.upload(items.data(), items.size() * sizeof(items[0]));
  return memory;
}

// The way in which the CUDA blocks of a grid run; those that wait for each other must all run at once. `cooperative`: the
// driver begins them all together, or refuses; but not beside another such grid. `resident`: the caller knows that they
// fit.
enum class Blocks { in_turn, resident, cooperative };

struct Launch {
  int blocks, threads;  // of a block: a whole number of warps
  int64_t shared_bytes;
  void* stream;
  Blocks together = Blocks::in_turn;
};

// The largest CUDA block of a kernel, and the number of its CUDA blocks that a multiprocessor holds at once.
struct Occupancy {
  int threads_per_block, blocks_per_multiprocessor;
};

// While there is one, launches load their kernels, and run nothing.
class OnlyLoading {
 public:
  OnlyLoading() { current_ = this; }
  ~OnlyLoading() { current_ = nullptr; }
  OnlyLoading(const OnlyLoading&) = delete;
  OnlyLoading& operator=(const OnlyLoading&) = delete;
  static OnlyLoading* current() { return current_; }
  void add(const void* kernel) { kernels_.insert(kernel); }
  int kernels() const { return static_cast<int>(kernels_.size()); }

 private:
  inline static thread_local OnlyLoading* current_ = nullptr;
  std::set<const void*> kernels_;
};

#if defined(MGG_SHIM)

void run(const Launch& launch, const std::function<void()>& kernel, const Occupancy& occupancy);
Occupancy occupancy_of(const void* kernel, int threads, int64_t shared_bytes);
template <class Call>
Occupancy occupancy(void (*kernel)(Call), int threads, int64_t shared_bytes) {
  return occupancy_of(reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}
template <class Call>
void launch(void (*kernel)(Call), const Call& call, const Launch& launch) {
  if (OnlyLoading* loading = OnlyLoading::current()) return loading->add(reinterpret_cast<const void*>(kernel));
  run(launch, [=] { kernel(call); }, occupancy(kernel, launch.threads, launch.shared_bytes));
}

#else

// Raises std::runtime_error that says what was tried.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

inline void allow_shared(const void* kernel, int64_t bytes) {
  if (bytes > 48 << 10)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "shared memory of a kernel");
}
template <class Call>
void launch(void (*kernel)(Call), const Call& call, const Launch& launch) {
  const void* symbol = reinterpret_cast<const void*>(kernel);
  if (OnlyLoading* loading = OnlyLoading::current()) {
    cudaFuncAttributes found;
    check(cudaFuncGetAttributes(&found, symbol), "loading a kernel");
    return loading->add(symbol);
  }
  allow_shared(symbol, launch.shared_bytes);
  void* arguments[] = {const_cast<Call*>(&call)};
  const dim3 blocks(launch.blocks), threads(launch.threads);
  const size_t shared = static_cast<size_t>(launch.shared_bytes);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const bool cooperative = launch.together == Blocks::cooperative;
  check(cooperative ? cudaLaunchCooperativeKernel(symbol, blocks, threads, arguments, shared, stream)
                    : cudaLaunchKernel(symbol, blocks, threads, arguments, shared, stream),
        "launch of a kernel");
}
template <class Call>
Occupancy occupancy(void (*kernel)(Call), int threads, int64_t shared_bytes) {
  const void* symbol = reinterpret_cast<const void*>(kernel);
  allow_shared(symbol, shared_bytes);
  cudaFuncAttributes found;
  check(cudaFuncGetAttributes(&found, symbol), "attributes of a kernel");
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, symbol, threads, static_cast<size_t>(shared_bytes)),
        "occupancy of a kernel");
  return {found.maxThreadsPerBlock, blocks};
}

#endif

}  // namespace gpu
}  // namespace mgg
