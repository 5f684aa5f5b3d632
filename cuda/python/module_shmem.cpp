// The Python module _shmem: a symmetric heap over OpenSHMEM, and the transport that _host's schedules use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <stdexcept>

#include "runtime/runtime_shmem.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void* address(uintptr_t number) { return reinterpret_cast<void*>(number); }
uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

void require_started() {
  if (!mgg::shmem::started()) throw std::runtime_error("OpenSHMEM has not been started");
}

}  // namespace

NB_MODULE(_shmem, m) {
  m.doc() = R"(A symmetric heap over OpenSHMEM, and how rows move between PEs.

Addresses are plain numbers. All functions but `version` raise RuntimeError before `start`.)";
  // The interpreter's lock is given up: another thread may report a failure while this one waits.
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def("start", &mgg::shmem::start, "heap_bytes"_a, released,
        "Start OpenSHMEM, once a process and after MPI, with a heap of this size on each PE. Collective.");
  m.def("finish", &mgg::shmem::finish, released,
        "End OpenSHMEM, and MPI with it; does nothing if it has not been started. Collective.");
  m.def("version", &mgg::shmem::version, "Return the libraries that the module was built with.");
  m.def("me", [] { return require_started(), mgg::shmem::me(); });
  m.def("size", [] { return require_started(), mgg::shmem::size(); });
  m.def("allocate", [](size_t bytes) { return require_started(), number(mgg::shmem::allocate(bytes)); }, "bytes"_a,
        released, "Return the address of new memory on the heap, aligned to 64. Collective; MemoryError on all PEs.");
  m.def("release", [](uintptr_t memory) { require_started(), mgg::shmem::release(address(memory)); }, "memory"_a,
        released, "Free memory that `allocate` returned. Collective.");
  m.def("pointer", [](uintptr_t mine, int pe) { return number(mgg::shmem::pointer(address(mine), pe)); }, "mine"_a,
        "pe"_a, "Return where `mine`, an address in this PE's heap, lies on `pe` for this process; 0: out of reach.");
  m.def("transport_address", [] { return number(&mgg::shmem::transport()); },
        "Return the address of the transport that schedules of _host take.");
}
