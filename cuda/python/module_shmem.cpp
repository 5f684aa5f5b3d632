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
  m.doc() = "A symmetric heap over OpenSHMEM, and how rows move between PEs.";
  // The interpreter's lock is given up: another thread may report a failure while this one waits.
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def("start", &mgg::shmem::start, "heap_bytes"_a, released);
  m.def("finish", &mgg::shmem::finish, released);
  m.def("started", &mgg::shmem::started);
  m.def("version", &mgg::shmem::version);
  m.def("me", [] { return require_started(), mgg::shmem::me(); });
  m.def("size", [] { return require_started(), mgg::shmem::size(); });
  m.def("allocate", [](size_t bytes) { return require_started(), number(mgg::shmem::allocate(bytes)); }, "bytes"_a,
        released);
  m.def("release", [](uintptr_t memory) { require_started(), mgg::shmem::release(address(memory)); }, "memory"_a,
        released);
  m.def("pointer", [](uintptr_t mine, int pe) { return number(mgg::shmem::pointer(address(mine), pe)); }, "mine"_a,
        "pe"_a);
  m.def("barrier", [] { require_started(), mgg::shmem::barrier(); }, released);
  m.def("transport_address", [] { return number(&mgg::shmem::transport()); },
        "Of the mgg::Transport that _host takes.");
}
