// Launches of the GPU kernels: each picks the one that was compiled for what is asked.
#pragma once
#include "gpu/edge_arguments.h"
#include "gpu/sampling/arguments.h"
#include "gpu/traversal/arguments.h"
#include "mgg/half.h"
#include "runtime/runtime_cuda.h"

namespace mgg {

// Which kernel: lanes of a worker, and packs of 16 bytes that each of them holds at once.
struct Shape {
  int lanes, packs;
};

enum class Transfer { none, direct, get, halo };

struct Variant {
  bool max;  // else sums, and means
  Transfer transfer;
  bool far;  // whether some rows are reached by the transport only
};

struct Kernel {
  Variant variant;
  Shape shape;
};

#define MGG_DECLARE(S)                                                                                 \
  void aggregate(const DeviceAggregation<S>& call, const Kernel& kernel, const gpu::Launch& launch);   \
  void aggregate(const DeviceGetCall<S>& call, const Kernel& kernel, const gpu::Launch& launch);       \
  void aggregate(const DeviceHaloCall<S>& call, const Kernel& kernel, const gpu::Launch& launch);      \
  gpu::Occupancy direct_occupancy(S type, const Kernel& kernel, int threads, int64_t shared_bytes);    \
  gpu::Occupancy get_occupancy(S type, const Kernel& kernel, int threads, int64_t shared_bytes);       \
  gpu::Occupancy halo_occupancy(S type, const Kernel& kernel, int threads, int64_t shared_bytes);      \
  void over(const DeviceAttend<S>& call, const gpu::Launch& launch);                                   \
  void over(const DeviceAttendBack<S>& call, const gpu::Launch& launch);                               \
  void over(const DeviceMaxTies<S>& call, const gpu::Launch& launch);                                  \
  void over(const DeviceMaxBack<S>& call, const gpu::Launch& launch);                                  \
  void over(const DeviceWeighted<S>& call, const gpu::Launch& launch);                                 \
  void over(const DeviceSddmm<S>& call, const gpu::Launch& launch);                                    \
  void dropout(const DeviceDropout<S>& call, const Shape& shape, const gpu::Launch& launch);
MGG_DECLARE(float)
MGG_DECLARE(Float16)
MGG_DECLARE(BFloat16)
#undef MGG_DECLARE

// Loads all of these kernels, and returns how many there are (load_all.cpp).
int load_all();

// gets: whether some PE's rows are not reachable by pointer.
void gather(const DeviceGather& call, bool gets, const Shape& shape, const gpu::Launch& launch);
void dropout(const DeviceDropoutCsr& call, const gpu::Launch& launch);
void gather_floor(const DeviceFloor& call, const Shape& shape, const gpu::Launch& launch);
// One step of a traversal (gpu/traversal/traverse.cu).
void traverse(const DeviceBfs& call, bool bottom_up, const gpu::Launch& launch);
void traverse(const DeviceSssp& call, const gpu::Launch& launch);
void traverse(const DeviceComponents& call, const gpu::Launch& launch);
void traverse(const DevicePageRank& call, const gpu::Launch& launch);
void traverse(const DeviceFrontier& call, const gpu::Launch& launch);
#define MGG_DECLARE(T)                                                        \
  void traverse(const DevicePack<T>& call, const gpu::Launch& launch);        \
  void traverse(const DeviceArrive<T>& call, const gpu::Launch& launch);
MGG_DECLARE(uint32_t)
MGG_DECLARE(uint64_t)
#undef MGG_DECLARE
// One kernel of a hop of neighbour sampling (gpu/sampling/sample.cu).
void sample(SampleStage stage, const DeviceHop& hop, const gpu::Launch& launch);
// After a call of a halo that holds its staging: gives the credits. far: as the exchange's.
void let_go(const DeviceHalo& halo, bool far, const gpu::Launch& launch);

}  // namespace mgg
