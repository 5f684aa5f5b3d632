// The Python module _cuda_studies: what MGG's kernels are compared with (mgg_hpc/tools/bench/overlap/studies.py).
// Plans, exchanges and what calls take are _cuda's. Over the tests' shim all of it is a part of _cuda.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bench/studies.h"
#include "python/module_cuda.h"
#if !defined(MGG_SHIM)
#include "bench/managed.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace mgg::python;

void require_sum(const Sum& sum) {
  if (sum.reduce == "max") throw std::invalid_argument("no kernel of maxima to compare with");
}

void get(mgg::DevicePlan& plan, const Rows& rows, const Sum& sum, const Get& get, bool late,
         const LaunchShape& launch) {
  require_sum(sum);
  const auto& sources =
      plan.reachable_sources(rows.addresses.data(), rows.addresses.size(), row_bytes<float>(rows.dim));
  const auto call = get_call<float>(plan, rows.dim, sum, get, sources, launch.shape);
  if (call.sum.count > 0) mgg::studies::get(call, late, launch.shape, launch.configuration());
}

void ring(mgg::DevicePlan& plan, uint64_t rows, int64_t dim, const Sum& sum, mgg::DeviceExchange& exchange,
          const mgg::DeviceHaloSchedule& schedule, const Halo& halo, int64_t own_rows, const LaunchShape& launch) {
  require_sum(sum);
  if (exchange.far()) throw std::invalid_argument("ring: no pointer reaches some PEs");
  const auto call = halo_call<float>(plan, rows, dim, sum, exchange, schedule, halo, launch);
  if (schedule.empty() && call.sum.count == 0) return;
  mgg::studies::ring(call, own_rows, launch.shape, halo.configuration(launch));
}

}  // namespace

void bind_studies(nb::module_& module) {
  module.def("get", get, "plan"_a, "rows"_a, "sum"_a, "get"_a, "late"_a, "launch"_a, Released());
  module.def("ring", ring, "plan"_a, "rows"_a, "dim"_a, "sum"_a, "exchange"_a, "schedule"_a, "halo"_a, "own_rows"_a,
             "launch"_a, Released());
  module.def("get_occupancy", [](bool late, int lanes, int packs, int threads, int64_t shared_bytes) {
    return said(mgg::studies::get_occupancy(late, {lanes, packs}, threads, shared_bytes));
  }, "late"_a, "lanes"_a, "packs"_a, "threads"_a, "shared_bytes"_a);
  module.def("ring_occupancy", [](int lanes, int packs, int threads, int64_t shared_bytes) {
    return said(mgg::studies::ring_occupancy({lanes, packs}, threads, shared_bytes));
  }, "lanes"_a, "packs"_a, "threads"_a, "shared_bytes"_a);
}

#if !defined(MGG_SHIM)
NB_MODULE(_cuda_studies, module) {
  using mgg::studies::Managed;
  nb::class_<Managed>(module, "Managed")
      .def(nb::init<size_t>(), "nbytes"_a)
      .def_prop_ro("address", [](const Managed& self) { return reinterpret_cast<uint64_t>(self.data()); })
      .def("to_host", &Managed::to_host, "nbytes"_a);
  bind_studies(module);
}
#endif
