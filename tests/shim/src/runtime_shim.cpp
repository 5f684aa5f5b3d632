// The host plays the GPU: what runtime_cuda.cpp does, over the shim.
#include "runtime_shim.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace mgg {
namespace gpu {
namespace {

shim::Settings settings_;
std::vector<shim::Launch> held_;
std::recursive_mutex launching_;  // threads that sample launch beside the one that trains
std::map<int, double> taken_;  // of the blocks that fit at once, what the kernels of a PE take that wait for others
std::atomic<int64_t> in_use_{0};  // bytes of device memory
bool waits_ = false;  // whether one of them waits for others, which may still have to be launched

// A number of the environment, by which tests make up GPUs for processes that they start.
int64_t asked(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::stoll(text) : otherwise;
}

}  // namespace

int device_count(std::string& why) {
  const auto count = static_cast<int>(asked("MGG_SHIM_DEVICES", 1));
  if (count == 0) why = "no GPU, as asked for";
  return count;
}
std::vector<std::string> device_places() {
  std::string why;
  std::vector<std::string> places;
  for (int device = 0, count = device_count(why); device < count; ++device)
    places.push_back("shim:" + std::to_string(device));
  return places;
}
std::vector<std::string> device_uuids() { return device_places(); }
void use_device(int) {}
void make_context() {}

// Of one H200 what kernels and launches depend on, but few multiprocessors: fibers are slow.
Limits limits() {
  return {"shim", 4, 1024, 2048, 32, 90, 232448, 233472, 1024};
}

std::pair<int64_t, int64_t> free_memory() {
  const int64_t free = std::max<int64_t>(0, asked("MGG_SHIM_FREE_BYTES", int64_t(8) << 30) - in_use_);
  return {free, std::max(free, int64_t(1) << 30)};
}
bool virtual_memory() { return true; }

// NaN until it is written; of just its size, so that the address sanitizer sees its ends.
Memory::Memory(size_t bytes) : bytes_(bytes) {
  if (!bytes) return;
  if (waits_) throw std::runtime_error("shim: allocates memory while kernels wait for those still to come");
  if (posix_memalign(&data_, 256, bytes)) throw std::bad_alloc();
  std::memset(data_, 0xFF, bytes);
  in_use_ += static_cast<int64_t>(bytes);
}
Memory::~Memory() {
  if (data_) in_use_ -= static_cast<int64_t>(bytes_);
  std::free(data_);
}
void Memory::upload(const void* from, size_t bytes) {
  if (bytes) std::memcpy(data_, from, bytes);
}

void Memory::download(void* to, size_t bytes) const {
  if (bytes) std::memcpy(to, data_, bytes);
}

// A few blocks at once, so that those of a large grid begin one after another.
void run(const Launch& launch, const std::function<void()>& kernel, const Occupancy& occupancy) {
  const std::lock_guard one_at_a_time(launching_);
  const double most = occupancy.blocks_per_multiprocessor * limits().multiprocessors;
  if (launch.together != Blocks::in_turn) {
    double& part = taken_[settings_.pe];
    part = std::max(part, launch.blocks / most);
    double all = 0;
    for (const auto& [pe, each] : taken_) all += each;
    if (!settings_.hold) taken_.clear();
    if (all > 1) throw std::runtime_error("shim: blocks that wait for each other do not fit at once");
  }
  const int resident = launch.together == Blocks::in_turn ? settings_.resident : launch.blocks;
  shim::Launch asked{settings_.pe, launch.blocks, launch.threads, static_cast<int>(launch.shared_bytes), resident,
                     kernel};
  if (settings_.hold)
    held_.push_back(std::move(asked)), waits_ |= launch.together != Blocks::in_turn;
  else
    shim::run({asked}, settings_.seed++);
}

// Kernels differ in their registers: which has how many is drawn by where it lies in the module.
Occupancy occupancy_of(const void* kernel, int threads, int64_t shared_bytes) {
  Dl_info module;
  dladdr(kernel, &module);
  const auto offset = static_cast<const char*>(kernel) - static_cast<const char*>(module.dli_fbase);
  const int registers = 80 + 16 * static_cast<int>(offset / 16 % 4);
  const Limits limits = gpu::limits();
  const int most = 65536 / registers;  // threads at once
  int64_t blocks = std::min(limits.blocks_per_multiprocessor, most / threads);
  blocks = std::min(blocks, limits.shared_per_multiprocessor / (shared_bytes + limits.shared_reserved));
  return {std::min(most, limits.threads_per_block), static_cast<int>(blocks)};
}

}  // namespace gpu

shim::Settings& shim::settings() { return gpu::settings_; }

void shim::drop() {
  gpu::held_.clear();
  gpu::settings_.hold = gpu::waits_ = false;
  gpu::taken_.clear();
}
void shim::release() {
  const std::vector<Launch> held = std::exchange(gpu::held_, {});
  gpu::settings_.hold = gpu::waits_ = false;
  gpu::taken_.clear();
  run(held, gpu::settings_.seed++);
}

}  // namespace mgg
