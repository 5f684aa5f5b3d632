// Bindings of the edge kernels (gpu/edge_arguments.h) as methods of a plan. An array is an address in device memory and
// the number of values between rows, both checked by the backend (mgg_hpc/runtime/backends/cuda/edges.py).
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "python/module_cuda.h"
#include "python/tapes.h"

#if defined(MGG_SHIM)
constexpr const char* tape_headers = "#include \"gpu/edges/tape.cuh\"\n";  // which the host's compiler finds
#else
#include "tape_headers.h"  // made by cuda/cmake/cuda.cmake
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::python::at, mgg::python::Released;
using Array = std::pair<uint64_t, int64_t>;  // address, and values between rows; 0 for what is not there
constexpr Array none{0, 0};
constexpr int threads_per_block = 256;

// Rows of sources: on their owners, or of remote ones those that the last call of an exchange has brought. How they are
// walked: by heads.
struct EdgeRows {
  mgg::Flat<const uint64_t> addresses;  // row 0 on each PE; 0: no pointer reaches it
  const mgg::DeviceExchange* arrived;
  int64_t dim, values, tail;  // of a row; its columns of S, and the floats behind them but for an id
  int heads;
  int64_t channels;
  uint64_t stream;
};

template <class T>
mgg::DeviceNear<T> near(const Array& array) {
  return {reinterpret_cast<T*>(array.first), array.second};
}
// How a worker walks the columns of a head: its lanes, the columns of a lane in a pass, whether each pass is a part of
// its own of a task, and the floats that a part of a hub stores (0: a State for each lane).
struct Walk {
  int64_t lanes, columns;
  bool a_part_each_pass;
  int64_t floats;
};
// As edges.cuh takes heads.
template <class S>
Walk by_heads(const EdgeRows& rows, bool a_part_each_pass = true) {
  const bool packed = rows.channels % mgg::lane_columns<S>(true) == 0;
  const int64_t values = mgg::lane_columns<S>(packed), wanted = packed ? rows.channels / values : rows.channels;
  int64_t lanes = 1;
  while (lanes < 32 && lanes < wanted) lanes *= 2;
  return {lanes, values, a_part_each_pass, 0};
}

// Returns the arguments that all kernels take, and allocates the memory of a call.
template <class S>
mgg::DeviceEdges<S> edges_of(mgg::DevicePlan& plan, const EdgeRows& rows, const Walk& walk) {
  auto edges = plan.call<mgg::DeviceEdges<S>>();
  const int64_t held = walk.lanes * walk.columns;
  edges.lanes = static_cast<int32_t>(walk.lanes);
  edges.heads = rows.heads, edges.channels = static_cast<int32_t>(rows.channels);
  edges.passes = static_cast<int32_t>((rows.channels + held - 1) / held);
  edges.parts = edges.heads * (walk.a_part_each_pass ? edges.passes : 1);
  edges.hubs = plan.device_tasks().hubs(), edges.counters = plan.counters();
  edges.pending = plan.pending(edges.parts);
  edges.partials = plan.partials(walk.floats ? walk.floats : edges.parts * walk.lanes * mgg::most_state<S>);
  edges.degree = plan.degree(), edges.indices = plan.indices();
  edges.stride = mgg::padded_stride(rows.dim, sizeof(S));
  constexpr int64_t size = sizeof(float);
  edges.tail = (rows.values * static_cast<int64_t>(sizeof(S)) + size - 1) / size;
  edges.id = edges.tail + rows.tail;
  if (rows.arrived) {
    mgg::DeviceHalo halo{};
    rows.arrived->fill(halo);
    edges.own = at<const S>(rows.addresses(plan.rank()));
    edges.staging = halo.staging, edges.staging_bytes = halo.staging_bytes, edges.state = halo.state;
    return edges;
  }
  const int64_t row_bytes = edges.stride * static_cast<int64_t>(sizeof(S));
  const auto& found = plan.reachable_sources(rows.addresses.data(), rows.addresses.size(), row_bytes);
  edges.sources = reinterpret_cast<const S* const*>(found.rows.template as<const void*>());
  return edges;
}

template <class S>
mgg::DeviceEdges<S> edges_of(mgg::DevicePlan& plan, const EdgeRows& rows) {
  return edges_of<S>(plan, rows, by_heads<S>(rows));
}

template <class Call>
void launch(const Call& call, const EdgeRows& rows) {
  const int64_t wanted = call.edges.count * call.edges.parts * call.edges.lanes;
  if (wanted == 0) return;
  const auto blocks = std::min<int64_t>((wanted + threads_per_block - 1) / threads_per_block, INT32_MAX);
  mgg::over(call, mgg::gpu::Launch{static_cast<int>(blocks), threads_per_block, 0, at<void>(rows.stream)});
}

template <class S>
void attend(mgg::DevicePlan& plan, const EdgeRows& rows, const Array& out, const Array& score, const Array& h,
            uint64_t bias, const Array& log_sum, const Array& above, const Array& above_weight, uint64_t edge_score,
            float slope, float scale, uint64_t ids, const mgg::RngKey& key) {
  launch(mgg::DeviceAttend<S>{edges_of<S>(plan, rows), slope, scale, near<const float>(score),
                              at<const float>(edge_score), near<const S>(h), at<float>(bias), near<S>(out), near<float>(log_sum), near<float>(above),
                              near<float>(above_weight), at<int64_t>(ids), key},
         rows);
}

template <class S>
void attend_back(mgg::DevicePlan& plan, const EdgeRows& rows, const Array& out, const Array& score, const Array& h,
                 const Array& gradient, const Array& log_sum, const Array& dot, const Array& score_gradient,
                 uint64_t edge_score, uint64_t edge_score_gradient, float slope, float scale, uint64_t ids,
                 const mgg::RngKey& key) {
  launch(mgg::DeviceAttendBack<S>{edges_of<S>(plan, rows), slope, scale, near<const float>(score),
                                  at<const float>(edge_score), at<float>(edge_score_gradient), near<const S>(h),
                                  near<const S>(gradient), near<const float>(log_sum), near<const float>(dot),
                                  near<S>(out), near<float>(score_gradient), at<int64_t>(ids), key},
         rows);
}

template <class S>
void max_ties(mgg::DevicePlan& plan, const EdgeRows& rows, const Array& out, const Array& ties) {
  launch(mgg::DeviceMaxTies<S>{edges_of<S>(plan, rows), near<S>(out), near<float>(ties)}, rows);
}
template <class S>
void max_back(mgg::DevicePlan& plan, const EdgeRows& rows, const Array& x, const Array& out) {
  launch(mgg::DeviceMaxBack<S>{edges_of<S>(plan, rows), near<const S>(x), near<S>(out)}, rows);
}
template <class S>
void weighted(mgg::DevicePlan& plan, const EdgeRows& rows, uint64_t weight, const Array& out) {
  launch(mgg::DeviceWeighted<S>{edges_of<S>(plan, rows), at<float>(weight), near<S>(out)}, rows);
}
template <class S>
void sddmm(mgg::DevicePlan& plan, const EdgeRows& rows, const Array& y, uint64_t out) {
  launch(mgg::DeviceSddmm<S>{edges_of<S>(plan, rows, by_heads<S>(rows, false)), near<const S>(y), at<float>(out)}, rows);
}
template <class S>
void ready(mgg::DevicePlan& plan, const EdgeRows& rows) {
  edges_of<S>(plan, rows);
}

// The arguments of a compiled tape (gpu/edges/tape.cuh) up to its arrays, which Python appends, and the number of its
// workers: of `lanes` lanes with `columns` columns each. state: floats of all outputs of a row.
template <class S>
std::pair<int64_t, nb::bytes> tape_arguments(mgg::DevicePlan& plan, const EdgeRows& rows, int64_t lanes, int64_t columns,
                                             int64_t state) {
  const auto edges = edges_of<S>(plan, rows, {lanes, columns, true, state});
  return {edges.count * edges.parts, nb::bytes(reinterpret_cast<const char*>(&edges), sizeof edges)};
}
template <class S>
void ready_tape(mgg::DevicePlan& plan, const EdgeRows& rows, int64_t lanes, int64_t columns, int64_t state) {
  edges_of<S>(plan, rows, {lanes, columns, true, state});
}

template <class S>
void bind(nb::class_<mgg::DevicePlan>& plan, const std::string& type) {
  const auto def = [&](const char* name, auto method, auto&&... rest) {
    plan.def((name + type).c_str(), method, "rows"_a, rest..., Released());
  };
  // By name, since some without a default stand behind others with one.
  def("attend", attend<S>, nb::kw_only(), "out"_a, "score"_a = none, "h"_a = none, "bias"_a = 0, "log_sum"_a = none,
      "above"_a = none, "above_weight"_a = none, "edge_score"_a = 0, "slope"_a, "scale"_a, "ids"_a, "key"_a);
  def("attend_back", attend_back<S>, nb::kw_only(), "out"_a, "score"_a = none, "h"_a, "gradient"_a = none,
      "log_sum"_a = none, "dot"_a = none, "score_gradient"_a = none, "edge_score"_a = 0, "edge_score_gradient"_a = 0,
      "slope"_a, "scale"_a, "ids"_a, "key"_a);
  def("max_ties", max_ties<S>, "out"_a, "ties"_a);
  def("max_back", max_back<S>, "x"_a, "out"_a);
  def("weighted", weighted<S>, "weight"_a, "out"_a);
  def("sddmm", sddmm<S>, "y"_a, "out"_a);
  def("ready_edges", ready<S>);
  def("ready_tape", ready_tape<S>, "lanes"_a, "columns"_a, "state"_a);
  plan.def(("tape_arguments" + type).c_str(), tape_arguments<S>, "rows"_a, "lanes"_a, "columns"_a, "state"_a);
}

}  // namespace

void bind_edges(nb::module_& module, nb::class_<mgg::DevicePlan>& plan) {
  nb::class_<EdgeRows>(module, "EdgeRows", R"(Rows of `dim` values on every PE, read by heads.

Their first `values`, and behind them floats, `tail` of them before an id. addresses: as Rows'. arrived: the exchange
whose last call holds the remote ones, or None.)")
      .def(nb::init<mgg::Flat<const uint64_t>, const mgg::DeviceExchange*, int64_t, int64_t, int64_t, int, int64_t,
                    uint64_t>(),
           "addresses"_a, "arrived"_a.none(), "dim"_a, "values"_a, "tail"_a, "heads"_a, "channels"_a, "stream"_a,
           nb::keep_alive<1, 3>());
  module.def(
      "check_tape",
      [](int64_t columns, int64_t far_columns, const mgg::Flat<const uint8_t>& values,
         const mgg::Flat<const uint8_t>& steps, const mgg::Flat<const uint8_t>& outputs, int registers,
         const std::string& reduce, int64_t near, int64_t shared, int64_t edge_columns, size_t out) {
        mgg::require(columns > 0 && columns <= INT32_MAX, "tape: no columns");
        const mgg::Tape tape(values, steps, outputs);
        mgg::require(out == tape.outputs.size(), "tape: an array for each output");
        mgg::check_tape(tape, {columns, far_columns, edge_columns, registers, near, shared}, reduce == "max", INT16_MAX);
      },
      nb::kw_only(), "columns"_a, "far_columns"_a, "values"_a, "steps"_a, "outputs"_a, "registers"_a, "reduce"_a,
      "near"_a, "shared"_a, "edge_columns"_a, "out"_a,
      "Check a tape, given by bytes of the structs of mgg/tape.h. near, shared, edge_columns, out: numbers of arrays, of "
      "shared values, of columns of edge data, of outputs. Raises ValueError for one that reads what is not there.");
  module.attr("tape_headers") = tape_headers;
  bind<float>(plan, "_float32");
  bind<mgg::Float16>(plan, "_float16");
  bind<mgg::BFloat16>(plan, "_bfloat16");
}
