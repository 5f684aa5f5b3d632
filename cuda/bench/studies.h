// Kernels that MGG's are compared with: sums of float32 rows that pointers reach.
#pragma once
#include "gpu/kernels.h"

namespace mgg {
namespace studies {

// The transfer `get`. late: each stage is asked for when it is needed. shape: of a worker, which may also be a single
// thread or a whole block of 256 threads (MGG, figure 10c).
void get(const DeviceGetCall<float>& call, bool late, const Shape& shape, const gpu::Launch& launch);
gpu::Occupancy get_occupancy(bool late, const Shape& shape, int threads, int64_t shared_bytes);

// The transfer `halo`, where whole partitions go round the PEs. The first own_rows of the plan's rows to send are this
// PE's, and the others those of its staging.
void ring(const DeviceHaloCall<float>& call, int64_t own_rows, const Shape& shape, const gpu::Launch& launch);
gpu::Occupancy ring_occupancy(const Shape& shape, int threads, int64_t shared_bytes);

}  // namespace studies
}  // namespace mgg
