// Sums of float32 rows whose remote ones NVSHMEM's gets of a thread, a warp or a CUDA block bring (MGG, OSDI '23, figure
// 10c).
#pragma once
#include "gpu/kernels.h"

namespace mgg {
namespace studies {

// Which threads make a call of the transport.
enum class Scope { thread, warp, block };

// Lanes of a worker: a warp's, also where rows are narrower, or a block's.
constexpr int lanes_of(Scope scope) { return scope == Scope::block ? 256 : 32; }

// The transfer `get` over rows that no pointer reaches, by workers of these lanes, each of which holds a pack.
void get(const DeviceGetCall<float>& call, Scope scope, const gpu::Launch& launch);
gpu::Occupancy get_occupancy(Scope scope, int threads, int64_t shared_bytes);

}  // namespace studies
}  // namespace mgg
