// NVSHMEM, for kernels. Here and nowhere else: its headers take longer to compile than all kernels that call it.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "runtime/transport_device.h"

namespace mgg {
namespace device {

// Queue pairs have calls of their own from NVSHMEM 3.5 on; before, all gets are of one channel.
#if NVSHMEM_VENDOR_MAJOR_VERSION > 3 || (NVSHMEM_VENDOR_MAJOR_VERSION == 3 && NVSHMEM_VENDOR_MINOR_VERSION >= 5)

__device__ void get_nbi(void* to, const void* symmetric, size_t bytes, int pe, int32_t channel) {
  nvshmemx_qp_char_get_nbi(static_cast<char*>(to), static_cast<const char*>(symmetric), bytes, pe, channel);
}
__device__ void quiet(int32_t channel) {
  // Named twice: up to 3.8 at least, IBGDA's quiet takes a number of one handle for NVSHMEMX_QP_DEFAULT, which is 1 too,
  // and waits for the default queue pairs instead.
  nvshmemx_qp_handle_t handles[2] = {channel, channel};
  nvshmemx_qp_quiet(NVSHMEMX_PE_ANY, handles, 2);
}

#else

__device__ void get_nbi(void* to, const void* symmetric, size_t bytes, int pe, int32_t) {
  nvshmem_getmem_nbi(to, symmetric, bytes, pe);
}
__device__ void quiet(int32_t) { nvshmem_quiet(); }

#endif

__device__ void put_signal_nbi(void* symmetric, const void* from, size_t bytes, uint64_t* signal, uint64_t value,
                               int pe) {
  __threadfence_system();
  nvshmem_putmem_signal_nbi(symmetric, from, bytes, signal, value, NVSHMEM_SIGNAL_SET, pe);
}
__device__ void raise_signal(uint64_t* signal, uint64_t value, int pe) {
  nvshmemx_signal_op(signal, value, NVSHMEM_SIGNAL_SET, pe);
}
__device__ void quiet_puts() { nvshmem_quiet(); }
__device__ bool test_signal(uint64_t* signal, uint64_t value) {
  return nvshmem_uint64_test(signal, NVSHMEM_CMP_GE, value);
}

}  // namespace device
}  // namespace mgg
