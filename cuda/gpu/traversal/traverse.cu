// Launches of the kernels of traversals.
#include "gpu/traversal/traverse.cuh"

#include "gpu/kernels.h"

namespace mgg {

void traverse(const DeviceBfs& call, bool bottom_up, const gpu::Launch& launch) {
  gpu::launch(bottom_up ? bfs_bottom_up : bfs_level, call, launch);
}
void traverse(const DeviceSssp& call, const gpu::Launch& launch) { gpu::launch(sssp_round, call, launch); }
void traverse(const DeviceComponents& call, const gpu::Launch& launch) { gpu::launch(components_round, call, launch); }
void traverse(const DevicePageRank& call, const gpu::Launch& launch) { gpu::launch(pagerank_round, call, launch); }
void traverse(const DeviceFrontier& call, const gpu::Launch& launch) { gpu::launch(frontier_of_level, call, launch); }

#define MGG_OF_TYPE(T)                                                                                                  \
  void traverse(const DevicePack<T>& call, const gpu::Launch& launch) { gpu::launch(pack_values<T>, call, launch); }    \
  void traverse(const DeviceArrive<T>& call, const gpu::Launch& launch) { gpu::launch(arrive_values<T>, call, launch); }
MGG_OF_TYPE(uint32_t)
MGG_OF_TYPE(uint64_t)
#undef MGG_OF_TYPE

}  // namespace mgg
