// Executes GPU kernels on a host: every thread is a fiber, and only one runs at a time.
//
// Which one goes on is drawn from a seed wherever threads can affect each other, among all blocks of the grid. Lanes
// wait for each other as a warp's do; copies to shared memory land when they are waited for, and not earlier; shared
// memory is NaN until it is written. Lanes that never meet, copies beyond shared memory or out of line, and packs that
// are not aligned end the launch with an error that says where. Memory orders, races between blocks' writes, and reads and
// writes beyond other memory are not seen.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>

#define MGG_KERNEL
#define MGG_DEVICE inline

namespace mgg {
namespace shim {

constexpr int warp_lanes = 32;

struct Launch {
  int blocks, threads;  // of a block: a whole number of warps
  int shared_bytes;
  uint64_t seed;
};

// Runs a kernel to its end. Throws std::runtime_error where a GPU's behaviour would be undefined or would never end.
void run(const Launch& launch, const std::function<void()>& kernel);

// ---- called by fibers

struct Place {
  int thread, threads, block, blocks;
  char* shared;
};
const Place& place();
// Lets others run.
void yield();
// Waits for the lanes of `mask` to call the same; `value` is replaced by that of `lane` (-1: nothing is exchanged).
void meet(const char* what, uint32_t mask, void* value, int bytes, int lane);
void begin_copy(void* shared, const void* global, int bytes);
void commit_copies();
void wait_copies(int later);
[[noreturn]] void fail(const char* what);

}  // namespace shim

namespace device {

inline int thread() { return shim::place().thread; }
inline int threads() { return shim::place().threads; }
inline int block() { return shim::place().block; }
inline int blocks() { return shim::place().blocks; }
inline char* shared() { return shim::place().shared; }

inline void sync_lanes(uint32_t mask) { shim::meet("sync_lanes", mask, nullptr, 0, -1); }
template <class T>
T from_lane(uint32_t mask, T value, int lane) {
  shim::meet("from_lane", mask, &value, sizeof(T), lane);
  return value;
}
template <class T>
T from_lane_xor(uint32_t mask, T value, int other) {
  shim::meet("from_lane_xor", mask, &value, sizeof(T), (thread() % shim::warp_lanes) ^ other);
  return value;
}

struct alignas(16) Pack {
  uint32_t word[4];
};

inline Pack load_pack(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16) shim::fail("load_pack: not aligned to 16 bytes");
  Pack pack;
  std::memcpy(&pack, from, 16);
  return pack;
}
inline Pack load_pack_constant(const void* from) { return load_pack(from); }
inline float load_fresh(const float* from) { return *from; }
inline int32_t load_constant(const int32_t* from) { return *from; }
inline void store_pack(void* to, const Pack& pack) {
  if (reinterpret_cast<uintptr_t>(to) % 16) shim::fail("store_pack: not aligned to 16 bytes");
  std::memcpy(to, &pack, 16);
}
inline void copy_pack(void* shared, const void* global) { shim::begin_copy(shared, global, 16); }
inline void commit_copies() { shim::commit_copies(); }
template <int N>
void wait_copies() {
  shim::wait_copies(N);
}

inline int32_t add_in_order(int32_t* counter, int32_t value) {
  shim::yield();
  const int32_t before = *counter;
  *counter += value;
  shim::yield();
  return before;
}

}  // namespace device
}  // namespace mgg
