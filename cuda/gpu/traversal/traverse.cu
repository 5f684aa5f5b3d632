// Launches of the kernels of traversals.
#include "gpu/traversal/traverse.cuh"

#include "gpu/kernels.h"

namespace mgg {

#define MGG_BY_READS(kernel, Index)                   \
  (reads == Reads::strided  ? kernel<Reads::strided, Index> \
   : reads == Reads::merged ? kernel<Reads::merged, Index>  \
                            : kernel<Reads::aligned, Index>)
#define MGG_TRAVERSE(Call, kernel, Index)                                          \
  void traverse(const Call<Index>& call, Reads reads, const gpu::Launch& launch) { \
    gpu::launch(MGG_BY_READS(kernel, Index), call, launch);                        \
  }
#define MGG_OF_INDEX(Index)                                                                                 \
  void traverse(const DeviceBfs<Index>& call, Reads reads, bool bottom_up, const gpu::Launch& launch) {     \
    gpu::launch(bottom_up ? MGG_BY_READS(bfs_bottom_up, Index) : MGG_BY_READS(bfs_level, Index), call, launch); \
  }                                                                                                         \
  MGG_TRAVERSE(DeviceSssp, sssp_round, Index)                                                               \
  MGG_TRAVERSE(DeviceComponents, components_round, Index)                                                   \
  MGG_TRAVERSE(DevicePageRank, pagerank_round, Index)
MGG_OF_INDEX(int32_t)
MGG_OF_INDEX(int64_t)
#undef MGG_OF_INDEX
#undef MGG_TRAVERSE
#undef MGG_BY_READS

void traverse(const DeviceFrontier& call, const gpu::Launch& launch) { gpu::launch(frontier_of_level, call, launch); }

#define MGG_OF_TYPE(T)                                                                                                  \
  void traverse(const DevicePack<T>& call, const gpu::Launch& launch) { gpu::launch(pack_values<T>, call, launch); }    \
  void traverse(const DeviceArrive<T>& call, const gpu::Launch& launch) { gpu::launch(arrive_values<T>, call, launch); }
MGG_OF_TYPE(uint32_t)
MGG_OF_TYPE(uint64_t)
#undef MGG_OF_TYPE

}  // namespace mgg
