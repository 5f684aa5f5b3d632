// The transport between GPUs that no pointer joins, as kernels use it, under one name for each function: NVSHMEM's
// (transport.cu), or the shim's. A symmetric address is this PE's own; the calls take it to the same place on another
// PE. Each call is made by one thread, if its name does not say otherwise.
#pragma once
#include "runtime/device.h"

#if !defined(MGG_SHIM)

namespace mgg {
namespace device {

constexpr int32_t default_channel = 1;  // NVSHMEMX_QP_DEFAULT, where there is one

// Copies from PE `pe`. The destination is symmetric too, and holds the bytes after `quiet`, not before.
// channel: a handle of nvshmemx_qp_create; before NVSHMEM 3.5 there is only one.
__device__ void get_nbi(void* to, const void* symmetric, size_t bytes, int pe, int32_t channel);
// Waits for this thread's gets of one channel, and maybe for other gets of this PE: all of them before NVSHMEM 3.5.
__device__ void quiet(int32_t channel);

// Copies to PE `pe`, and then raises a signal there. The source, which the whole block may have written, stays as it is
// until `quiet_puts`.
__device__ void put_signal_nbi(void* symmetric, const void* from, size_t bytes, uint64_t* signal, uint64_t value,
                               int pe);
__device__ void raise_signal(uint64_t* signal, uint64_t value, int pe);
__device__ void quiet_puts();
// Returns true if this PE's signal, which a transport may raise, has reached a value; the rows that came with it can then
// be read.
__device__ bool test_signal(uint64_t* signal, uint64_t value);

}  // namespace device
}  // namespace mgg
#endif
