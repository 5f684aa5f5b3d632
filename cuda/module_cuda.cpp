// The Python module _cuda: plans, kernels and limits of one GPU. Arrays are addresses in device memory, which the
// backend (mgg_hpc/runtime/backends/cuda.py) has checked.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.h"
#include "device_plan.h"
#include "kernels_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat;
using mgg::structs;

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// Which kernel, and how it is launched.
struct Geometry {
  mgg::Shape shape;
  int blocks, threads;
  uint64_t stream;
  mgg::gpu::Launch launch() const { return {blocks, threads, 0, at<void>(stream)}; }
};

struct Rows {
  Flat<const uint64_t> addresses;  // row 0 on each PE; 0: no pointer reaches it
  int64_t dim;
};

template <class S>
const S* const* sources_of(mgg::DevicePlan& plan, const Rows& rows) {
  const int64_t row_bytes = mgg::padded_stride(rows.dim, sizeof(S)) * static_cast<int64_t>(sizeof(S));
  return reinterpret_cast<const S* const*>(plan.sources(rows.addresses.data(), rows.addresses.size(), row_bytes));
}

template <class S>
void aggregate(mgg::DevicePlan& plan, const Rows& rows, const std::string& reduce, uint64_t weight, uint64_t out,
               uint64_t scale, uint64_t bias, bool relu, const Geometry& geometry) {
  const int64_t stride = mgg::padded_stride(rows.dim, sizeof(S)), packs = stride * int64_t(sizeof(S)) / 16;
  const int64_t held = int64_t(geometry.shape.lanes) * geometry.shape.packs;
  auto call = plan.call<mgg::DeviceAggregation<S>>();
  if (call.count == 0) return;
  call.sources = sources_of<S>(plan, rows);
  call.hubs = plan.hub_table(), call.hub_count = plan.hubs();
  call.pending = plan.pending((packs + held - 1) / held), call.partials = plan.partials(stride);
  call.degree = plan.degree(), call.remote = plan.remote(), call.indices = plan.indices();
  call.weight = at<float>(weight), call.out = at<S>(out), call.scale = at<float>(scale), call.bias = at<float>(bias);
  call.dim = rows.dim, call.stride = stride, call.mean = reduce == "mean", call.relu = relu;
  mgg::aggregate(call, {reduce == "max", plan.has_remote_rows()}, geometry.shape, geometry.launch());
}

template <class S>
void sddmm(mgg::DevicePlan& plan, const Rows& rows, uint64_t destinations, uint64_t out, const Geometry& geometry) {
  auto call = plan.call<mgg::DeviceSddmm<S>>();
  if (call.count == 0) return;
  call.sources = sources_of<S>(plan, rows), call.indices = plan.indices();
  call.destinations = at<S>(destinations), call.out = at<float>(out);
  call.dim = rows.dim, call.stride = mgg::padded_stride(rows.dim, sizeof(S));
  mgg::sddmm(call, geometry.shape, geometry.launch());
}

void edge_softmax(mgg::DevicePlan& plan, uint64_t scores, uint64_t out, const Geometry& geometry) {
  auto call = plan.call<mgg::DeviceSoftmax>();
  if (call.count == 0) return;
  call.hubs = plan.hub_table(), call.pending = plan.pending(1), call.partials = plan.partials(2);
  call.scores = at<float>(scores), call.out = at<float>(out);
  call.maximum = plan.maximum(), call.total = plan.total();
  mgg::edge_softmax(call, geometry.launch());
}

// The tables of gathers from one set of rows, in device memory.
class Gathers {
 public:
  Gathers(Flat<const int64_t> bounds, Flat<const uint64_t> addresses, uint64_t mine, int64_t row_bytes)
      : pes_(static_cast<int32_t>(addresses.size())),
        mine_(mine),
        row_bytes_(row_bytes),
        gets_(std::count(addresses.data(), addresses.data() + addresses.size(), uint64_t(0)) > 0),
        bounds_(bounds.size() * sizeof(int64_t)),
        tables_(addresses.size() * sizeof(uint64_t)) {
    if (bounds.size() != addresses.size() + 1) throw std::invalid_argument("gather: one bound more than PEs");
    bounds_.upload(bounds.data(), bounds_.bytes());
    tables_.upload(addresses.data(), tables_.bytes());
  }
  void rows(uint64_t ids, int64_t count, uint64_t out, const Geometry& geometry) const {
    if (count == 0) return;
    mgg::gather({at<int64_t>(ids), count, bounds_.as<int64_t>(), tables_.as<const char*>(), at<char>(mine_),
                 at<char>(out), row_bytes_, pes_},
                gets_, geometry.shape, geometry.launch());
  }

 private:
  int32_t pes_;
  uint64_t mine_;
  int64_t row_bytes_;
  bool gets_;  // whether some PE's rows are not reachable by pointer
  mgg::gpu::Memory bounds_, tables_;
};

void gather_floor(uint64_t indices, int64_t edges, uint64_t rows, int64_t row_bytes, uint64_t seen,
                  const Geometry& geometry) {
  if (edges == 0) return;
  mgg::gather_floor({at<int32_t>(indices), edges, at<char>(rows), row_bytes, at<uint32_t>(seen)}, geometry.shape,
                    geometry.launch());
}

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
  said["l2_bytes"] = found.l2_bytes;
  said["memory_bytes"] = found.memory_bytes;
  said["driver"] = found.driver;
  said["runtime"] = found.runtime;
  return said;
}

template <class S>
nb::dict occupancy(bool max, bool remote, int lanes, int packs, int threads) {
  const mgg::gpu::Occupancy found = mgg::aggregate_occupancy(S{}, {max, remote}, {lanes, packs}, threads);
  nb::dict said;
  said["registers"] = found.registers;
  said["stack_bytes"] = found.stack_bytes;
  said["threads_per_block"] = found.threads_per_block;
  said["blocks_per_multiprocessor"] = found.blocks_per_multiprocessor;
  return said;
}

}  // namespace

#if defined(MGG_SHIM)
void bind_shim(nb::module_& module);  // tests/shim/module_shim.cpp
#endif

NB_MODULE(_cuda, module) {
  module.def("struct_sizes", [] { return std::vector<size_t>{sizeof(mgg::Chunk), sizeof(mgg::Segment)}; });
  module.def("devices", [] {
    std::string why;
    const int count = mgg::gpu::device_count(why);
    return nb::make_tuple(count, why);
  }, "How many GPUs this process sees, and what the CUDA runtime says where there is none.");
  module.def("compiler", [] { return std::string(mgg::compiler()); });
  module.def("limits", limits, "What the current GPU holds.");
  module.def("ring_bytes", [](int threads, int packs) { return mgg::ring_bytes(threads, packs); }, "threads"_a,
             "packs"_a, "Shared memory of a block of the direct kernel.");
#define MGG_OCCUPANCY(name, S) \
  module.def("occupancy_" name, occupancy<S>, "max"_a, "remote"_a, "lanes"_a, "packs"_a, "threads"_a)
  MGG_OCCUPANCY("float32", float);
  MGG_OCCUPANCY("float16", mgg::Float16);
  MGG_OCCUPANCY("bfloat16", mgg::BFloat16);
#undef MGG_OCCUPANCY

  nb::class_<Geometry>(module, "Geometry")
      .def("__init__", [](Geometry* self, int lanes, int packs, int blocks, int threads, uint64_t stream) {
        new (self) Geometry{{lanes, packs}, blocks, threads, stream};
      }, "lanes"_a, "packs"_a, "blocks"_a, "threads"_a, "stream"_a = 0);
  nb::class_<Rows>(module, "Rows")
      .def("__init__", [](Rows* self, Flat<const uint64_t> addresses, int64_t dim) {
        new (self) Rows{std::move(addresses), dim};
      }, "addresses"_a, "dim"_a);
  nb::class_<mgg::DevicePlan> plan(module, "Plan");
  plan.def("__init__",
           [](mgg::DevicePlan* self, Flat<const uint8_t> chunks, Flat<const uint8_t> segments,
              Flat<const int32_t> indices, int64_t destinations, int64_t part_edges, int rank) {
             new (self) mgg::DevicePlan(structs<mgg::Chunk>(chunks, "plan: a part of a chunk"),
                                        structs<mgg::Segment>(segments, "plan: a part of a segment"), indices.data(),
                                        indices.size(), destinations, part_edges, rank);
           },
           "chunks"_a, "segments"_a, "indices"_a, "destinations"_a, "part_edges"_a, "rank"_a);
  plan.def_prop_ro("tasks", &mgg::DevicePlan::tasks);
  plan.def_prop_ro("slots", &mgg::DevicePlan::slots);
  plan.def("edge_softmax", edge_softmax, "scores"_a, "out"_a, "geometry"_a);
#define MGG_KERNELS(name, S)                                                                                      \
  plan.def("aggregate_" name, aggregate<S>, "rows"_a, "reduce"_a, "weight"_a, "out"_a, "scale"_a, "bias"_a, "relu"_a, \
           "geometry"_a);                                                                                         \
  plan.def("sddmm_" name, sddmm<S>, "rows"_a, "destinations"_a, "out"_a, "geometry"_a)
  MGG_KERNELS("float32", float);
  MGG_KERNELS("float16", mgg::Float16);
  MGG_KERNELS("bfloat16", mgg::BFloat16);
#undef MGG_KERNELS
  nb::class_<Gathers>(module, "Gathers")
      .def(nb::init<Flat<const int64_t>, Flat<const uint64_t>, uint64_t, int64_t>(), "bounds"_a, "addresses"_a,
           "mine"_a, "row_bytes"_a)
      .def("rows", &Gathers::rows, "ids"_a, "count"_a, "out"_a, "geometry"_a);
  module.def("gather_floor", gather_floor, "indices"_a, "edges"_a, "rows"_a, "row_bytes"_a, "seen"_a, "geometry"_a);
#if defined(MGG_SHIM)
  bind_shim(module);
#endif
}
