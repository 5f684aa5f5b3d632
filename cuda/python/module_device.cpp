#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/module_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::dict limits() {
  const mgg::gpu::Limits found = mgg::gpu::limits();
  nb::dict said;
  said["name"] = found.name;
  said["multiprocessors"] = found.multiprocessors;
  said["threads_per_block"] = found.threads_per_block;
  said["threads_per_multiprocessor"] = found.threads_per_multiprocessor;
  said["blocks_per_multiprocessor"] = found.blocks_per_multiprocessor;
  said["compute_capability"] = found.compute_capability;
  said["shared_per_block"] = found.shared_per_block;
  said["shared_per_multiprocessor"] = found.shared_per_multiprocessor;
  said["shared_reserved"] = found.shared_reserved;
  return said;
}

}  // namespace

void bind_device(nb::module_& module) {
  module.def("devices", [] {
    std::string why;
    const int count = mgg::gpu::device_count(why);
    return nb::make_tuple(count, why);
  }, "Return the number of GPUs that this process sees, and the CUDA runtime's message where there is none.");
  module.def("device_uuids", mgg::gpu::device_uuids, "Return the UUID of each visible GPU or MIG instance.");
  module.def("device_places", mgg::gpu::device_places, "Return the PCI bus id of each visible GPU.");
  module.def("use_device", mgg::gpu::use_device, "device"_a);
  module.def("limits", limits, "Return the limits of the current GPU.");
  module.def("memory", mgg::gpu::free_memory, "Return the free and the total bytes of the current GPU's memory.");
  module.def("virtual_memory", mgg::gpu::virtual_memory,
             "Return whether the current GPU has what NVSHMEM's heap needs to grow (VMM, and GPUDirect RDMA with it).");
}
