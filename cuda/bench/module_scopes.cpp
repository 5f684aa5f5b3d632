// Binds the kernels of scopes.h, which are parts of _cuda (mgg_hpc/tools/bench/overlap/studies.py).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bench/scopes.h"
#include "python/module_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace mgg::python;
using mgg::studies::Scope;

Scope scope_of(const std::string& name) {
  if (name == "thread") return Scope::thread;
  if (name == "warp") return Scope::warp;
  if (name == "block") return Scope::block;
  throw std::invalid_argument("no scope " + name);
}

// By the transport, whether pointers lead to other PEs' rows or not.
void scoped_get(mgg::DevicePlan& plan, const Rows& rows, const Sum& sum, const Get& get, const std::string& scope,
                const LaunchShape& launch) {
  const mgg::Shape& shape = launch.shape;
  if (sum.reduce == "max" || shape.packs != 1 || shape.lanes != mgg::studies::lanes_of(scope_of(scope)))
    throw std::invalid_argument("scoped_get: sums, by workers of the scope's lanes with one pack each");
  const auto& sources = plan.sources(rows.addresses.data(), rows.addresses.size(), row_bytes<float>(rows.dim));
  if (sources.near) throw std::invalid_argument("scoped_get: a pointer leads to some remote rows");
  const auto call = get_call<float>(plan, rows.dim, sum, get, sources, shape);
  if (call.sum.count > 0) mgg::studies::get(call, scope_of(scope), launch.configuration());
}

}  // namespace

void bind_scopes(nb::module_& module) {
  module.def("scoped_get", scoped_get, "plan"_a, "rows"_a, "sum"_a, "get"_a, "scope"_a, "launch"_a, Released(),
             "Sum float32 rows, remote ones of which gets of a \"thread\", a \"warp\" or a \"block\" bring.");
  module.def("scoped_get_occupancy", [](const std::string& scope, int threads, int64_t shared_bytes) {
    return said(mgg::studies::get_occupancy(scope_of(scope), threads, shared_bytes));
  }, "scope"_a, "threads"_a, "shared_bytes"_a);
}
