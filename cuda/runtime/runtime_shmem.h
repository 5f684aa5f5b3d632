// OpenSHMEM as this project uses it: the symmetric heap of one PE, and how rows move between PEs.
#pragma once
#include <cstddef>
#include <string>

#include "runtime/transport_host.h"

namespace mgg::shmem {

// Collective, once, after MPI is up: a heap of heap_bytes on each PE. Throws std::runtime_error where OpenSHMEM does
// not allow calls from any thread in turn.
void start(size_t heap_bytes);
// Collective, before MPI ends. Does nothing where nothing was started.
void finish();
bool started();

int me();
int size();
// The OpenSHMEM with which this was built.
std::string version();

// Collective. At least `bytes`, aligned to 64; throws std::bad_alloc where the heap has no room.
void* allocate(size_t bytes);
void release(void* memory);
// Where `mine`, an address in this PE's heap, lies on `pe` as this process sees it; null if out of reach.
void* pointer(const void* mine, int pe);

// Lives from start to finish.
Transport& transport();

}  // namespace mgg::shmem
