// What a kernel needs of the transport between GPUs, under one name each: NVSHMEM's, or the shim's. A symmetric address
// is this PE's own; the calls take it to the same place on another PE. Each call is made by one thread.
#pragma once
#include "mgg/device.h"

#if !defined(MGG_SHIM)
#include <nvshmem.h>
#include <nvshmemx.h>

namespace mgg {
namespace device {

// Copies from PE `pe`. The destination is symmetric too, and holds the bytes after `quiet`, not before.
MGG_DEVICE void get_nbi(void* to, const void* symmetric, size_t bytes, int pe) {
  nvshmem_getmem_nbi(to, symmetric, bytes, pe);
}
// Copies to PE `pe`, and then raises a signal there. The source stays as it is until `quiet`.
MGG_DEVICE void put_signal_nbi(void* symmetric, const void* from, size_t bytes, uint64_t* signal, uint64_t value,
                               int pe) {
  nvshmem_putmem_signal_nbi(symmetric, from, bytes, signal, value, NVSHMEM_SIGNAL_SET, pe);
}
// Waits until this PE's signal has reached a value.
MGG_DEVICE void wait_signal(uint64_t* signal, uint64_t value) {
  nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, value);
}
// Waits for this thread's copies.
MGG_DEVICE void quiet() { nvshmem_quiet(); }

}  // namespace device
}  // namespace mgg
#endif
