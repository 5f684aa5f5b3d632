// Executes GPU kernels on a host: every thread is a fiber, and only one runs at a time.
//
// Which one goes on is drawn from a seed wherever threads can affect each other, among all blocks of all PEs' grids;
// some threads are starved, and as many blocks of a grid run at once as its launch says. Lanes wait for each other as a
// warp's do; copies to shared memory and gets land when they are waited for, and not earlier; bulk copies and puts land
// at some time, puts with their signal, and read their source then; shared memory is NaN until it is written. Lanes
// that never meet, signals that never come, copies beyond shared or symmetric memory or out of line, and packs that are
// not aligned end the run with an error that says where. Memory orders, races between blocks' writes, and reads and
// writes beyond other memory are not seen; for the latter this is also built with the address sanitizer.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#define MGG_KERNEL inline
#define MGG_KERNEL_OF(registers) inline
#define MGG_DEVICE inline

namespace mgg {
// Kernels that are compiled while a test runs find it in the module that has loaded them.
namespace shim __attribute__((visibility("default"))) {

constexpr int warp_lanes = 32;

// One PE's grid.
struct Launch {
  int pe;
  int blocks, threads;  // of a block: a whole number of warps
  int shared_bytes;
  int resident;  // blocks that run at once; others begin when one of them has ended
  std::function<void()> kernel;
};

// Runs kernels to their end, all PEs' at once, and a PE's one after another. Throws std::runtime_error where a GPU's
// behaviour would be undefined or would never end.
void run(const std::vector<Launch>& launches, uint64_t seed);

// What kernels have done since the last `take_counts`.
struct Counts {
  int64_t crossed;          // bytes to or from other PEs' symmetric memory
  int64_t stages;           // phases of barriers, and quiets, that had rows to wait for
  int64_t most_rows_a_stage;
  int64_t most_under_way;   // rows that one warp has asked for, and not waited for yet
  int64_t blocks, threads;  // of the last launch
  int64_t fences;           // at system scope, one for each thread that executes it
  int64_t atomics;          // on global memory, one for each thread that executes it
  int64_t most_atomics_an_address;
  int64_t loads, stores;    // of 16 bytes of global memory; copies to shared memory are loads of their bytes / 16
  // The requests that loads of lists by warps make, of 32, 64, 96 and 128 bytes: the sectors of a line of 128 bytes that
  // the lanes of a warp ask for in one instruction are one request. A lane has the sector that it asked for last.
  int64_t requests[4];
};
Counts take_counts();

// Memory that every PE has at an address of its own: what gets and puts name. Kept until `forget_symmetric`.
void add_symmetric(const std::vector<char*>& bases, size_t bytes);
void forget_symmetric();

// ---- called by fibers

struct Place {
  int thread, threads, block, blocks;
  char *shared, *shared_end;
};
const Place& place();
// Lets others run.
void yield();
// Waits for the lanes of `mask` to call the same; `value` is replaced by that of `lane` (no_lane: nothing is exchanged;
// all_lanes: all of their 32 bits, combined by or).
constexpr int no_lane = -1, all_lanes = -2;
void meet(const char* what, uint32_t mask, void* value, int bytes, int lane);
void meet_block();
void begin_copy(void* shared, const void* global, int bytes);
void commit_copies();
void wait_copies(int later);
void count_crossing(const void* address, int64_t bytes);
void count_list_load(const void* address, bool wanted);
extern Counts counts;
inline bool in_shared(const void* address) {
  const Place& here = place();
  return address >= here.shared && address < here.shared_end;
}
void count_atomic(const void* address);
[[noreturn]] void fail(const char* what);

}  // namespace shim

namespace device {

using shim::warp_lanes;

inline int thread() { return shim::place().thread; }
inline int threads() { return shim::place().threads; }
inline int block() { return shim::place().block; }
inline int blocks() { return shim::place().blocks; }
inline char* shared() { return shim::place().shared; }

inline void sync_block() { shim::meet_block(); }
inline void sync_lanes(uint32_t mask) { shim::meet("sync_lanes", mask, nullptr, 0, shim::no_lane); }
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

inline uint32_t vote(uint32_t mask, bool yes) {
  uint32_t bits = uint32_t(yes) << thread() % shim::warp_lanes;
  shim::meet("vote", mask, &bits, sizeof bits, shim::all_lanes);
  return bits;
}
inline int32_t count(uint32_t bits) { return __builtin_popcount(bits); }
inline int32_t lowest(uint32_t bits) { return __builtin_ctz(bits); }
inline int32_t highest(uint32_t bits) { return 31 - __builtin_clz(bits); }

struct alignas(16) Pack {
  uint32_t word[4];
};

inline Pack load_any(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16) shim::fail("load_pack: not aligned to 16 bytes");
  Pack pack;
  std::memcpy(&pack, from, 16);
  return pack;
}
inline Pack load_pack(const void* from) {
  if (!shim::in_shared(from)) ++shim::counts.loads;
  return load_any(from);
}
inline Pack load_pack_constant(const void* from) {
  ++shim::counts.loads;
  return load_any(from);
}
inline Pack load_pack_fresh(const void* from) { return load_pack_constant(from); }
inline float load_fresh(const float* from) { return *from; }
inline void load_four_fresh(const float* from, float (&to)[4]) {
  const Pack pack = load_pack_fresh(from);
  std::memcpy(to, &pack, 16);
}
template <class T>
T load_warp(const T* from, bool wanted) {
  shim::count_list_load(from, wanted);
  return wanted ? *from : T(0);
}
template <int LANES, class T>
void load_unit(T& to, const void* from, bool wanted) {
  if (LANES == shim::warp_lanes) shim::count_list_load(from, wanted);
  if (!wanted) return;
  if constexpr (sizeof(T) == sizeof(Pack))
    to = load_pack_constant(from);
  else
    to = *static_cast<const T*>(from);
}
inline uint64_t product_high(uint64_t a, uint64_t b) { return static_cast<uint64_t>((unsigned __int128)(a) * b >> 64); }
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline int32_t load_constant(const int32_t* from) { return *from; }
inline float load_constant(const float* from) { return *from; }
inline void store_pack(void* to, const Pack& pack) {
  if (reinterpret_cast<uintptr_t>(to) % 16) shim::fail("store_pack: not aligned to 16 bytes");
  shim::count_crossing(to, 16);
  if (!shim::in_shared(to)) ++shim::counts.stores;
  std::memcpy(to, &pack, 16);
}
inline void copy_pack(void* shared, const void* global) { shim::begin_copy(shared, global, 16); }
inline void commit_copies() { shim::commit_copies(); }
template <int N>
void wait_copies() {
  shim::wait_copies(N);
}

#if !defined(MGG_SHIM_BULK)
#define MGG_SHIM_BULK 1
#endif
constexpr bool bulk_copies = MGG_SHIM_BULK;
void start_barrier(uint64_t* barrier, int arrivals);
void wait_barrier(uint64_t* barrier, uint32_t parity);
void arrive_after_copies(uint64_t* barrier);
void expect_bulk(uint64_t* barrier, int bytes);
void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier);

template <class T>
T add_in_order(T* counter, T value) {
  shim::count_atomic(counter);
  shim::yield();
  const T before = *counter;
  *counter += value;
  shim::yield();
  return before;
}
inline int32_t add_in_order(int32_t* counter, int32_t value) { return add_in_order<int32_t>(counter, value); }
inline uint64_t add_in_order(uint64_t* counter, uint64_t value) { return add_in_order<uint64_t>(counter, value); }
inline uint64_t add(uint64_t* counter, uint64_t value) { return add_in_order<uint64_t>(counter, value); }

uint64_t peek_signal(const uint64_t* signal);
inline void fence() {
  ++shim::counts.fences;
  shim::yield();
}
inline void prefetch(const void*) {}
int32_t load_in_block(const int32_t* word);
void store_in_block(int32_t* word, int32_t value);
inline bool lock_in_block(int32_t* word) {
  shim::yield();
  const bool free = *word == 0;
  *word = 1;
  shim::yield();
  return free;
}
inline uint64_t swap_if(uint64_t* kept, uint64_t old, uint64_t value) {
  shim::count_atomic(kept);
  shim::yield();
  const uint64_t before = *kept;
  if (before == old) *kept = value;
  return before;
}
inline void lower(uint64_t* kept, uint64_t value) {
  shim::count_atomic(kept);
  *kept = value < *kept ? value : *kept;
}
inline uint32_t lower(uint32_t* kept, uint32_t value) {
  shim::count_atomic(kept);
  shim::yield();
  const uint32_t before = *kept;
  *kept = value < before ? value : before;
  shim::yield();
  return before;
}
void store_signal(uint64_t* signal, uint64_t value);
void rest();
uint64_t clock();

// ---- the transport (runtime/transport_device.h)

constexpr int32_t default_channel = 1;
void get_nbi(void* to, const void* symmetric, size_t bytes, int pe, int32_t channel);
void quiet(int32_t channel);
void put_signal_nbi(void* symmetric, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe);
void raise_signal(uint64_t* signal, uint64_t value, int pe);
void quiet_puts();
inline bool test_signal(uint64_t* signal, uint64_t value) { return peek_signal(signal) >= value; }

}  // namespace device
}  // namespace mgg
