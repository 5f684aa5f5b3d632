// The PEs of a job, each a process, and their symmetric heap: NVSHMEM, or, with MGG_SHIM, memory that processes of the
// host share (tests/shim).
#pragma once
#include <cstddef>
#include <string>

namespace mgg {
namespace nvshmem {

// The id that one PE makes, and with which all PEs start.
std::string unique_id();
// This process becomes one of `size` PEs, on its current GPU, if there is one (NVSHMEM does not ask). Collective.
// Returns NVSHMEM's own word for how PEs meet GPUs (nvshmemx_init_status_t). Throws std::runtime_error where it fails.
int start(const std::string& id, int rank, int size);
// Zeros, at an address of each PE's own that stands for the same place on all of them. Collective, and of one size.
// Throws std::runtime_error where the heap has no room.
void* allocate(size_t bytes);
void release(void* symmetric);  // collective
// Where this process sees the same place of another PE; null where no pointer reaches it.
void* pointer(const void* symmetric, int pe);
// On a stream: ends once all PEs have got there; then what they wrote before can be read.
void barrier(void* stream);
void finish();  // collective

}  // namespace nvshmem
}  // namespace mgg
