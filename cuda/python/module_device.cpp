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
  said["registers_per_multiprocessor"] = found.registers_per_multiprocessor;
  said["compute_capability"] = found.compute_capability;
  said["shared_per_block"] = found.shared_per_block;
  said["shared_per_multiprocessor"] = found.shared_per_multiprocessor;
  said["shared_reserved"] = found.shared_reserved;
  said["l2_bytes"] = found.l2_bytes;
  said["memory_bytes"] = found.memory_bytes;
  said["driver"] = found.driver;
  said["runtime"] = found.runtime;
  return said;
}

}  // namespace

void bind_device(nb::module_& module) {
  module.def("devices", [] {
    std::string why;
    const int count = mgg::gpu::device_count(why);
    return nb::make_tuple(count, why);
  }, "How many GPUs this process sees, and what the CUDA runtime says where there is none.");
  module.def("device_uuids", mgg::gpu::device_uuids, "Return the UUID of each visible GPU or MIG instance.");
  module.def("device_places", mgg::gpu::device_places, "Where each of them is on the bus.");
  module.def("use_device", mgg::gpu::use_device, "device"_a);
  module.def("limits", limits, "What the current GPU holds.");
  module.def("memory", mgg::gpu::free_memory, "Bytes of the current GPU's memory: those that are free, and all.");
  module.def("virtual_memory", mgg::gpu::virtual_memory,
             "Return whether the current GPU has what NVSHMEM's heap needs to grow (VMM, and GPUDirect RDMA with it).");
}
