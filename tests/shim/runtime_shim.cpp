// The host plays the GPU: what runtime_cuda.cpp does, over the shim.
#include "runtime_shim.h"

#include <cstdlib>

namespace mgg {
namespace gpu {
namespace {

shim::Settings settings_;
std::vector<shim::Launch> held_;
bool waits_ = false;  // whether one of them waits for others, which may still have to be launched

}  // namespace

int device_count(std::string&) { return 1; }

// Of one H200 what kernels and launches depend on, but few multiprocessors: fibers are slow.
Limits limits() {
  return {"shim", 2, 1024, 2048, 32, 65536, 90, 232448, 233472, 60 << 20, int64_t(1) << 30, 0, 0};
}

// NaN until it is written; of just its size, so that the address sanitizer sees its ends.
Memory::Memory(size_t bytes) : bytes_(bytes) {
  if (!bytes) return;
  if (waits_) throw std::runtime_error("shim: allocates memory while kernels wait for those still to come");
  if (posix_memalign(&data_, 256, bytes)) throw std::bad_alloc();
  std::memset(data_, 0xFF, bytes);
}
Memory::~Memory() { std::free(data_); }
void Memory::upload(const void* from, size_t bytes) {
  if (bytes) std::memcpy(data_, from, bytes);
}

void Memory::download(void* to, size_t bytes) const {
  if (bytes) std::memcpy(to, data_, bytes);
}

// A few blocks at once, so that those of a large grid begin one after another.
void run(const Launch& launch, const std::function<void()>& kernel) {
  const int resident = launch.together == Blocks::in_turn ? settings_.resident : launch.blocks;
  shim::Launch asked{settings_.pe, launch.blocks, launch.threads, static_cast<int>(launch.shared_bytes), resident,
                     kernel};
  if (settings_.hold)
    held_.push_back(std::move(asked)), waits_ |= launch.together != Blocks::in_turn;
  else
    shim::run({asked}, settings_.seed++);
}

// Kernels differ in their registers: which has how many is drawn by where it lies.
Occupancy occupancy_of(const void* kernel, int threads, int64_t shared_bytes) {
  const int registers = 64 + 16 * static_cast<int>(reinterpret_cast<uintptr_t>(kernel) / 16 % 5);
  const Limits limits = gpu::limits();
  const int most = limits.registers_per_multiprocessor / registers;  // threads at once
  int64_t blocks = std::min(limits.blocks_per_multiprocessor, most / threads);
  if (shared_bytes) blocks = std::min(blocks, limits.shared_per_multiprocessor / shared_bytes);
  return {registers, 0, std::min(most, limits.threads_per_block), static_cast<int>(blocks)};
}

}  // namespace gpu

shim::Settings& shim::settings() { return gpu::settings_; }

void shim::drop() {
  gpu::held_.clear();
  gpu::settings_.hold = gpu::waits_ = false;
}
void shim::release() {
  const std::vector<Launch> held = std::exchange(gpu::held_, {});
  gpu::settings_.hold = gpu::waits_ = false;
  run(held, gpu::settings_.seed++);
}

}  // namespace mgg
