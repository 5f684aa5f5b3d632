// Launches of the kernels of traversals.
#include "gpu/traversal/traverse.cuh"

#include "gpu/kernels.h"

namespace mgg {

#define MGG_TRAVERSE(Call, kernel, Index)                                               \
  void traverse(const Call<Index>& call, Reads reads, const gpu::Launch& launch) {      \
    gpu::launch(reads == Reads::strided  ? kernel<Reads::strided, Index>                \
                : reads == Reads::merged ? kernel<Reads::merged, Index>                 \
                                         : kernel<Reads::aligned, Index>,               \
                call, launch);                                                          \
  }
#define MGG_OF_INDEX(Index)                                  \
  MGG_TRAVERSE(DeviceBfs, bfs_level, Index)                  \
  MGG_TRAVERSE(DeviceSssp, sssp_round, Index)                \
  MGG_TRAVERSE(DeviceComponents, components_round, Index)    \
  MGG_TRAVERSE(DevicePageRank, pagerank_round, Index)
MGG_OF_INDEX(int32_t)
MGG_OF_INDEX(int64_t)
#undef MGG_OF_INDEX
#undef MGG_TRAVERSE

}  // namespace mgg
