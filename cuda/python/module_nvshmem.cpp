#include <nanobind/stl/string.h>

#include "python/module_cuda.h"
#include "runtime/runtime_nvshmem.h"

namespace nb = nanobind;
using namespace nb::literals;

// A call that waits for other PEs lets other Python threads run, as a watchdog's.
void bind_nvshmem(nb::module_& module) {
  using nb::gil_scoped_release;
  module.def("nvshmem_unique_id", [] {
    const std::string id = mgg::nvshmem::unique_id();
    return nb::bytes(id.data(), id.size());
  });
  module.def("nvshmem_start", [](const nb::bytes& id, int rank, int size) {
    const std::string given(id.c_str(), id.size());
    gil_scoped_release released;
    return mgg::nvshmem::start(given, rank, size);
  }, "unique_id"_a, "rank"_a, "size"_a);
  module.def("nvshmem_allocate", [](size_t nbytes) {
    gil_scoped_release released;
    return reinterpret_cast<uint64_t>(mgg::nvshmem::allocate(nbytes));
  }, "nbytes"_a);
  module.def("nvshmem_release", [](uint64_t address) {
    gil_scoped_release released;
    mgg::nvshmem::release(reinterpret_cast<void*>(address));
  }, "address"_a);
  module.def("nvshmem_pointer", [](uint64_t address, int pe) {
    return reinterpret_cast<uint64_t>(mgg::nvshmem::pointer(reinterpret_cast<const void*>(address), pe));
  }, "address"_a, "pe"_a);
  module.def("nvshmem_barrier", [](uint64_t stream) {
    gil_scoped_release released;
    mgg::nvshmem::barrier(reinterpret_cast<void*>(stream));
  }, "stream"_a);
  module.def("nvshmem_finish", [] {
    gil_scoped_release released;
    mgg::nvshmem::finish();
  });
}
