#include "runtime/runtime_nvshmem.h"

#include <nvshmem_host.h>

#include <cstring>

#include "runtime/runtime_cuda.h"

namespace mgg {
namespace nvshmem {
namespace {

void check(int status, const char* what) {
  if (status) throw std::runtime_error(std::string("NVSHMEM: ") + what + " failed with status " + std::to_string(status));
}

}  // namespace

std::string unique_id() {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  check(nvshmemx_get_uniqueid(&id), "making a unique id");
  return {reinterpret_cast<const char*>(&id), sizeof id};
}

// As nvshmemx_init_attr, which would end the process where this throws. (nvshmemx_hostlib_init_attr would leave the
// kernels of this module without NVSHMEM's state.)
int start(const std::string& id, int rank, int size) {
  gpu::make_context();
  nvshmemx_uniqueid_t given = NVSHMEMX_UNIQUEID_INITIALIZER;
  if (id.size() != sizeof given) throw std::runtime_error("NVSHMEM: not a unique id");
  std::memcpy(&given, id.data(), sizeof given);
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  check(nvshmemx_set_attr_uniqueid_args(rank, size, &given, &attributes), "reading the unique id");
  const nvshmemi_version_t version = {NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION,
                                      NVSHMEM_VENDOR_PATCH_VERSION};
  int provided = 0;
  check(nvshmemi_init_thread(NVSHMEM_THREAD_SERIALIZED, &provided, NVSHMEMX_INIT_WITH_UNIQUEID, &attributes, version),
        "starting");
  const int status = nvshmemx_init_status();
  if (status < NVSHMEM_STATUS_IS_INITIALIZED || status == NVSHMEM_STATUS_INVALID)
    throw std::runtime_error("NVSHMEM: found its peers, but no GPU (status " + std::to_string(status) + ")");
  return status;
}

void* allocate(size_t bytes) {
  void* symmetric = nvshmem_calloc(1, bytes ? bytes : 1);
  if (!symmetric)
    throw std::runtime_error("NVSHMEM: no room for " + std::to_string(bytes) + " bytes on the symmetric heap");
  return symmetric;
}
void release(void* symmetric) { nvshmem_free(symmetric); }

void* pointer(const void* symmetric, int pe) { return nvshmem_ptr(symmetric, pe); }

void barrier(void* stream) { nvshmemx_barrier_all_on_stream(static_cast<cudaStream_t>(stream)); }

void finish() { nvshmem_finalize(); }

}  // namespace nvshmem
}  // namespace mgg
