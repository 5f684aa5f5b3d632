// CUDA's functions that GPU kernels use, under one name each, so that the same kernel also runs where there is no GPU:
// compiled by a host compiler (MGG_SHIM) against tests/shim, which executes every thread and checks what a GPU would not.
#pragma once
#include <cstdint>

#if defined(MGG_SHIM)
#include "shim.h"
#else
#define MGG_KERNEL __global__
#define MGG_KERNEL_OF(registers) __global__ __maxnreg__(registers)  // at most so many, of each thread
#define MGG_DEVICE __device__ __forceinline__

namespace mgg {
namespace device {

constexpr int warp_lanes = 32;

MGG_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
MGG_DEVICE int threads() { return static_cast<int>(blockDim.x); }
MGG_DEVICE int block() { return static_cast<int>(blockIdx.x); }
MGG_DEVICE int blocks() { return static_cast<int>(gridDim.x); }

// Shared memory of the block, as many bytes as the launch gives it; aligned to 16 bytes.
MGG_DEVICE char* shared() {
  extern __shared__ __align__(16) char memory[];
  return memory;
}

// All threads of the block.
MGG_DEVICE void sync_block() { __syncthreads(); }

// ---- lanes of a warp: `mask` names those that take part, and all of them must. Only sync_lanes orders memory.

MGG_DEVICE void sync_lanes(uint32_t mask) { __syncwarp(mask); }
// The lanes whose `yes` is true, a bit each.
MGG_DEVICE uint32_t vote(uint32_t mask, bool yes) { return __ballot_sync(mask, yes); }
MGG_DEVICE int32_t count(uint32_t bits) { return __popc(bits); }
// The lowest and the highest of some bits, of which there are any.
MGG_DEVICE int32_t lowest(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }
MGG_DEVICE int32_t highest(uint32_t bits) { return 31 - __clz(static_cast<int>(bits)); }
template <class T>
MGG_DEVICE T from_lane(uint32_t mask, T value, int lane) { return __shfl_sync(mask, value, lane); }
template <class T>
MGG_DEVICE T from_lane_xor(uint32_t mask, T value, int other) { return __shfl_xor_sync(mask, value, other); }

// ---- 16 bytes at once

struct alignas(16) Pack {
  uint32_t word[4];
};

MGG_DEVICE Pack load_pack(const void* from) {
  const uint4 all = *static_cast<const uint4*>(from);
  return {{all.x, all.y, all.z, all.w}};
}
// Loads a pack from memory that no thread writes while the kernel runs. Volatile keeps the order of loads, so that
// several are issued before the first is used.
MGG_DEVICE Pack load_pack_constant(const void* from) {
  Pack pack;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(__cvta_generic_to_global(from)));
  return pack;
}
// Loads, past the first cache, a pack that another CUDA block or PE may have written while this kernel runs.
MGG_DEVICE Pack load_pack_fresh(const void* from) {
  Pack pack;
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(__cvta_generic_to_global(from)));
  return pack;
}
MGG_DEVICE float load_fresh(const float* from) { return __ldcg(from); }
MGG_DEVICE void load_four_fresh(const float* from, float (&to)[4]) {
  const float4 all = __ldcg(reinterpret_cast<const float4*>(from));
  to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
}
MGG_DEVICE void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}
MGG_DEVICE int32_t load_constant(const int32_t* from) { return __ldg(from); }
MGG_DEVICE float load_constant(const float* from) { return __ldg(from); }
// A value of a list that a warp reads together, for the lanes that want one; 0 for others. All lanes of the warp call it.
template <class T>
MGG_DEVICE T load_warp(const T* from, bool wanted) { return wanted ? *from : T(0); }
// A unit of a row, for the lanes that want one, from memory that no thread writes while the kernel runs. LANES: of a
// worker; if they are a warp, all of them call it.
template <int LANES>
MGG_DEVICE void load_unit(Pack& to, const void* from, bool wanted) {
  if (wanted) to = load_pack_constant(from);
}
template <int LANES, class T>
MGG_DEVICE void load_unit(T& to, const void* from, bool wanted) {
  if (wanted) to = __ldg(static_cast<const T*>(from));
}
// The upper 64 bits of a product.
MGG_DEVICE uint64_t product_high(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
MGG_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }
MGG_DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
// By PTX: compilers store the four words one by one where they know them apart.
MGG_DEVICE void store_pack(void* to, const Pack& pack) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(pack.word[0]),
               "r"(pack.word[1]), "r"(pack.word[2]), "r"(pack.word[3])
               : "memory");
}

// From global to shared memory, while the thread goes on. A thread's copies are committed in groups, and those of a
// group have landed once wait_copies<N> has left at most N later groups under way.
MGG_DEVICE void copy_pack(void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
MGG_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
MGG_DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// A barrier in shared memory ends a phase when so many have arrived, and all bytes that were expected have landed.
// Phases have parity 0, 1, 0, ...
MGG_DEVICE uint32_t in_shared(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool bulk_copies = true;
#define MGG_FROM_SM_90(instruction, before) instruction
#else
constexpr bool bulk_copies = false;
#define MGG_FROM_SM_90(instruction, before) before
#endif
// Before lanes or copies use the barrier.
MGG_DEVICE void start_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(in_shared(barrier)), "r"(arrivals) : "memory");
  asm volatile(MGG_FROM_SM_90("fence.proxy.async.shared::cta;", "") ::: "memory");
}
MGG_DEVICE void wait_barrier(uint64_t* barrier, uint32_t parity) {
  uint32_t ended = 0;
  while (!ended)
    asm volatile("{ .reg .pred p; " MGG_FROM_SM_90("mbarrier.try_wait", "mbarrier.test_wait") ".parity.shared.b64 p, "
                 "[%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(ended)
                 : "r"(in_shared(barrier)), "r"(parity)
                 : "memory");
}
// Arrives when all of this thread's copies (copy_pack) so far have landed.
MGG_DEVICE void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(in_shared(barrier)) : "memory");
}
// One lane issues a bulk copy, a row at a time. It arrives at the barrier as it sets the expected bytes.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
MGG_DEVICE void expect_bulk(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(barrier)), "r"(bytes)
               : "memory");
}
MGG_DEVICE void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   in_shared(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(in_shared(barrier))
               : "memory");
}
#else
MGG_DEVICE void expect_bulk(uint64_t*, int) {}
MGG_DEVICE void copy_bulk(void*, const void*, int, uint64_t*) {}
#endif
#undef MGG_FROM_SM_90

// ---- between warps of a block, by words in shared memory. What a thread wrote, or saw, before it stores a value, the
// threads see that have loaded it.

MGG_DEVICE int32_t load_in_block(const int32_t* word) {
  int32_t value;
  asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(value) : "r"(in_shared(word)) : "memory");
  return value;
}
MGG_DEVICE void store_in_block(int32_t* word, int32_t value) {
  asm volatile("st.release.cta.shared.s32 [%0], %1;" ::"r"(in_shared(word)), "r"(value) : "memory");
}
// Returns true if the word was 0, and sets it to 1. A store of 0 unlocks it.
MGG_DEVICE bool lock_in_block(int32_t* word) {
  int32_t before;
  asm volatile("atom.acquire.cta.shared.cas.b32 %0, [%1], 0, 1;" : "=r"(before) : "r"(in_shared(word)) : "memory");
  return before == 0;
}

// ---- between blocks

// Adds, and orders what this thread wrote (and has seen) before it, and reads after it, against the others that add.
MGG_DEVICE int32_t add_in_order(int32_t* counter, int32_t value) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter)), "r"(value)
               : "memory");
  return before;
}
MGG_DEVICE uint64_t add_in_order(uint64_t* counter, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(counter)), "l"(value)
               : "memory");
  return before;
}
// Adds, and orders nothing.
MGG_DEVICE uint64_t add(uint64_t* counter, uint64_t value) {
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(counter)), "l"(value)
               : "memory");
  return before;
}

// Stores `value` where `old` is, in no order with anything. Returns what was there.
MGG_DEVICE uint64_t swap_if(uint64_t* kept, uint64_t old, uint64_t value) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(kept), static_cast<unsigned long long>(old),
                   static_cast<unsigned long long>(value));
}

// ---- between PEs. A thread that sees a signal's value sees all that its PE's block wrote and synchronised on before.

// In no order with anything: between it and reading what the signal announces there must be a `fence`. (Each load that
// acquires would empty the multiprocessor's first cache.)
MGG_DEVICE uint64_t peek_signal(const uint64_t* signal) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(signal)) : "memory");
  return value;
}
MGG_DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
MGG_DEVICE void store_signal(uint64_t* signal, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(signal)), "l"(value) : "memory");
}
// While there is nothing to do but to look again.
MGG_DEVICE void rest() { __nanosleep(200); }
// The lower of what is there and `value`, in no order with anything.
MGG_DEVICE void lower(uint64_t* kept, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(kept), static_cast<unsigned long long>(value));
}
MGG_DEVICE uint32_t lower(uint32_t* kept, uint32_t value) { return atomicMin(kept, value); }  // what was there
// Nanoseconds, the same for all blocks of a GPU.
MGG_DEVICE uint64_t clock() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace device
}  // namespace mgg
#endif
