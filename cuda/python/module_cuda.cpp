// The Python module _cuda: plans, kernels and limits of one GPU. Arrays are addresses in device memory, checked by the
// backend (mgg_hpc/runtime/backends/cuda).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "mgg/semantics.h"
#include "python/module_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat;
using mgg::structs;
using namespace mgg::python;

// Allocates the memory of a call over rows of this width. `read`: rows are read through pointers or by gets.
template <class S>
void ready(mgg::DevicePlan& plan, const Rows& rows, bool read, const LaunchShape& launch) {
  plan.make_room(passes(row_bytes<S>(rows.dim), launch.shape), mgg::padded_stride(rows.dim, sizeof(S)));
  if (read) plan.sources(rows.addresses.data(), rows.addresses.size(), row_bytes<S>(rows.dim));
}
template <class S>
void ready_halo(mgg::DeviceExchange& exchange, const Halo& halo, const LaunchShape& launch) {
  halo.make_room<S>(exchange, launch);
}

template <class S>
void aggregate(mgg::DevicePlan& plan, const Rows& rows, const Sum& sum, const LaunchShape& launch) {
  auto call = plan.call<mgg::DeviceAggregation<S>>();
  if (call.count == 0) return;
  fill(call, plan, rows.dim, sum, launch.shape);
  const mgg::DevicePlan::Sources& sources =
      plan.reachable_sources(rows.addresses.data(), rows.addresses.size(), row_bytes<S>(rows.dim));
  call.sources = typed<S>(sources.rows.as<const void*>()), call.link = sources.links.as<int32_t>();
  call.single = plan.schedule().single;
  const auto transfer = sources.near ? mgg::Transfer::direct : mgg::Transfer::none;
  mgg::aggregate(call, {{sum.reduce == "max", transfer, false}, launch.shape}, launch.configuration());
}

template <class S>
void get(mgg::DevicePlan& plan, const Rows& rows, const Sum& sum, const Get& get, const LaunchShape& launch) {
  const auto& sources = plan.sources(rows.addresses.data(), rows.addresses.size(), row_bytes<S>(rows.dim));
  const auto call = get_call<S>(plan, rows.dim, sum, get, sources, launch.shape);
  if (call.sum.count == 0) return;
  const mgg::Variant variant{sum.reduce == "max", mgg::Transfer::get, sources.far};
  mgg::aggregate(call, {variant, launch.shape}, launch.configuration());
}

template <class S>
void halo(mgg::DevicePlan& plan, uint64_t rows, int64_t dim, const Sum& sum, mgg::DeviceExchange& exchange,
          mgg::DeviceHaloSchedule& schedule, const Halo& halo, const LaunchShape& launch) {
  const auto call = halo_call<S>(plan, rows, dim, sum, exchange, schedule, halo, launch);
  if (schedule.empty() && call.sum.count == 0) return;
  const mgg::Kernel kernel{{sum.reduce == "max", mgg::Transfer::halo, exchange.far()}, launch.shape};
  mgg::aggregate(call, kernel, halo.configuration(launch));
}

void let_go(const mgg::DeviceExchange& exchange, const mgg::DeviceHaloSchedule& schedule, const LaunchShape& launch) {
  mgg::DeviceHalo halo{};
  exchange.fill(halo);
  schedule.fill(halo);
  mgg::let_go(halo, exchange.far(), launch.configuration());
}

// A table of rows in several tiers, in device memory.
class Gathers {
 public:
  Gathers(const std::vector<int64_t>& firsts, Flat<const uint8_t> tiers, const std::vector<uint64_t>& rows,
          const std::vector<int64_t>& pes, int64_t row_bytes, int64_t value_bytes)
      : row_bytes_(row_bytes),
        value_bytes_(value_bytes),
        gets_(std::count(rows.begin(), rows.end(), uint64_t(0)) > 0),
        firsts_(mgg::gpu::uploaded(firsts)),
        tiers_(mgg::gpu::uploaded(structs<mgg::DeviceTier>(tiers, "gather: a part of a tier"))),
        rows_(mgg::gpu::uploaded(rows)),
        pes_(mgg::gpu::uploaded(pes)) {
    if (firsts_.bytes() / sizeof(int64_t) != tiers_.bytes() / sizeof(mgg::DeviceTier) || rows.size() != pes.size())
      throw std::invalid_argument("gather: a first slot for each tier, and an address for each PE");
  }
  void rows(uint64_t ids, int64_t count, uint64_t out, const LaunchShape& launch) const {
    if (count == 0) return;
    const auto tiers = static_cast<int32_t>(tiers_.bytes() / sizeof(mgg::DeviceTier));
    mgg::gather({at<int64_t>(ids), count, firsts_.as<int64_t>(), tiers_.as<mgg::DeviceTier>(),
                 rows_.as<const char*>(), pes_.as<int64_t>(), at<char>(out), row_bytes_, value_bytes_, tiers},
                gets_, launch.shape, launch.configuration());
  }

 private:
  int64_t row_bytes_, value_bytes_;
  bool gets_;  // whether some PE's rows are not reachable by pointer
  mgg::gpu::Memory firsts_, tiers_, rows_, pes_;
};

template <class S>
void dropout(uint64_t x, int64_t x_stride, uint64_t out, int64_t out_stride, uint64_t ids, int64_t rows,
             int64_t columns, const mgg::RngKey& key, const LaunchShape& launch) {
  if (rows == 0 || columns == 0) return;
  const uint64_t starts = x | out | static_cast<uint64_t>(x_stride | out_stride) * sizeof(S);
  mgg::dropout({at<S>(x), at<S>(out), x_stride, out_stride, at<int64_t>(ids), rows, columns, key, starts % 16 == 0},
               launch.shape, launch.configuration());
}
void dropout_csr(uint64_t indptr, uint64_t indices, uint64_t values, uint64_t out, uint64_t ids, int64_t rows,
                 const mgg::RngKey& key, const LaunchShape& launch) {
  if (rows == 0) return;
  mgg::dropout({at<int64_t>(indptr), at<int32_t>(indices), at<float>(values), at<float>(out), at<int64_t>(ids), rows,
                key},
               launch.configuration());
}

void sample_hop(int stage, Flat<const uint8_t> hop, const LaunchShape& launch) {
  if (hop.size() != sizeof(mgg::DeviceHop) || stage < 0 || stage >= mgg::sample_stages)
    throw std::invalid_argument("sample_hop: another struct, or no such stage");
  mgg::sample(static_cast<mgg::SampleStage>(stage), mgg::structs<mgg::DeviceHop>(hop, "")[0], launch.configuration());
}

void gather_floor(uint64_t indices, int64_t edges, uint64_t rows, int64_t row_bytes, uint64_t seen,
                  const LaunchShape& launch) {
  if (edges == 0) return;
  mgg::gather_floor({at<int32_t>(indices), edges, at<char>(rows), row_bytes, at<uint32_t>(seen)}, launch.shape,
                    launch.configuration());
}

template <class S>
std::pair<int, int> occupancy(const std::string& transfer, bool max, bool far, int lanes, int packs, int threads,
                              int64_t shared) {
  const auto direct = transfer == "none" ? mgg::Transfer::none : mgg::Transfer::direct;
  const mgg::Kernel kernel{{max, direct, far}, {lanes, packs}};
  const mgg::gpu::Occupancy found = transfer == "get"    ? mgg::get_occupancy(S{}, kernel, threads, shared)
                                    : transfer == "halo" ? mgg::halo_occupancy(S{}, kernel, threads, shared)
                                                         : mgg::direct_occupancy(S{}, kernel, threads, shared);
  return {found.threads_per_block, found.blocks_per_multiprocessor};
}

nb::class_<mgg::DeviceExchange> bind_halo(nb::module_& module) {
  nb::class_<Halo>(module, "Halo", R"(Parameters of a halo: CUDA blocks that push, tasks claimed at once, tasks that a worker defers.

alone: a cooperative launch, which fails where its CUDA blocks do not all fit at once; else the caller ensures it.
holds: all rows arrive before the first is summed, and stay until `Exchange.let_go`.)")
      .def("__init__", [](Halo* self, int pushers, int claim, int64_t fixed, int slots, bool alone, uint64_t blocks,
                          uint64_t pushes, uint64_t arrivals, bool holds) {
        new (self) Halo{pushers, claim, slots, fixed, alone, holds,
                        {at<uint64_t>(blocks), at<uint64_t>(pushes), at<uint64_t>(arrivals)}};
      }, "pushers"_a, "claim"_a, "fixed"_a, "slots"_a, "alone"_a = true, "stamp_blocks"_a = 0, "stamp_pushes"_a = 0,
           "stamp_arrivals"_a = 0, "holds"_a = false);
  nb::class_<mgg::DeviceExchange> exchange(
      module, "Exchange", "State of a plan's halo between calls. stagings, signals: addresses of each PE's, or 0.");
  exchange
      .def(nb::init<int, const std::vector<uint64_t>&, const std::vector<uint64_t>&, uint64_t, int64_t, uint64_t,
                    uint64_t>(),
           "rank"_a, "stagings"_a, "signals"_a, "staging"_a, "staging_bytes"_a, "signal"_a, "outbox"_a)
      .def("rows_pushed", [](const mgg::DeviceExchange& self) { return self.state().rows_pushed; }, Released(),
           "Return the number of rows pushed in all calls, once they have ended.");
  nb::class_<mgg::DeviceHaloSchedule>(module, "HaloSchedule",
                                      "Pushes and arrivals of a halo for rows of one size, as structs in uint8.")
      .def("__init__",
           [](mgg::DeviceHaloSchedule* self, const mgg::DevicePlan& plan, Flat<const int32_t> indices,
              Flat<const uint8_t> pushes, Flat<const uint8_t> arrivals, Flat<const int32_t> send_rows,
              Flat<const int32_t> owners, int credits) {
             const auto list = [](const Flat<const int32_t>& of) {
               return std::vector<int32_t>(of.data(), of.data() + of.size());
             };
             new (self) mgg::DeviceHaloSchedule(
                 plan, indices.data(), structs<mgg::Push>(pushes, "halo: a part of a push"),
                 structs<mgg::DeviceHaloSchedule::Arrival>(arrivals, "halo: a part of an arrival"), list(send_rows),
                 list(owners), credits);
           },
           "plan"_a, "indices"_a, "pushes"_a, "arrivals"_a, "send_rows"_a, "owners"_a, "credits"_a);
  exchange.def("let_go", let_go, "schedule"_a, "launch"_a, Released(),
               "Return the credits of a call that holds arrived rows, once they have been read.");
  return exchange;
}

// Binds the methods that take rows of S. `type`: the ending of their names.
template <class S>
void bind_rows(nb::module_& module, nb::class_<mgg::DevicePlan>& plan, nb::class_<mgg::DeviceExchange>& exchange,
               const std::string& type) {
  const auto def = [&](auto& of, const char* name, auto&&... rest) { of.def((name + type).c_str(), rest...); };
  def(module, "occupancy", occupancy<S>, "transfer"_a, "max"_a, "far"_a, "lanes"_a, "packs"_a, "threads"_a,
      "shared_bytes"_a,
      "Return the most threads of a CUDA block of an aggregation, and the number of its CUDA blocks that a multiprocessor "
      "holds at once. transfer: \"none\", \"direct\", \"get\" or \"halo\".");
  def(plan, "aggregate", aggregate<S>, "rows"_a, "sum"_a, "launch"_a, Released());
  def(plan, "get", get<S>, "rows"_a, "sum"_a, "get"_a, "launch"_a, Released());
  def(plan, "halo", halo<S>, "rows"_a, "dim"_a, "sum"_a, "exchange"_a, "schedule"_a, "halo"_a, "launch"_a,
      Released(), "Collective; all blocks must be resident at once.");
  def(plan, "ready", ready<S>, "rows"_a, "read"_a, "launch"_a, Released(),
      "Allocate the memory of a call. read: rows are read through pointers or by gets, and not pushed.");
  def(exchange, "ready", ready_halo<S>, "halo"_a, "launch"_a, Released());
  def(module, "dropout", dropout<S>, "x"_a, "x_stride"_a, "out"_a, "out_stride"_a, "ids"_a, "rows"_a, "columns"_a,
      "key"_a, "launch"_a, Released());
}

}  // namespace

#if defined(MGG_SHIM)
void bind_shim(nb::module_& module);  // tests/shim/src/module_shim.cpp
#endif

NB_MODULE(_cuda, module) {
  module.def("struct_sizes", [] {
    return std::vector<size_t>{sizeof(mgg::Chunk), sizeof(mgg::Segment), sizeof(mgg::Push),
                               sizeof(mgg::DeviceHaloSchedule::Arrival), sizeof(mgg::DeviceTier)};
  });
  bind_device(module);
  module.def("load_all", mgg::load_all, Released(),
             "Load all kernels, and return their number: loading one later may wait for running kernels.");
  module.def("ring_bytes", [](int threads, int packs) { return mgg::ring_bytes(threads, packs); }, "threads"_a,
             "packs"_a, "Shared memory of a block of the direct kernel.");
  module.def("stage_bytes", mgg::stage_bytes, "threads"_a, "lanes"_a, "packs"_a, "rows"_a, "dist"_a,
             "Shared memory of a block of the get kernel.");

  nb::class_<LaunchShape>(module, "LaunchShape",
                       "Lanes of a worker and packs of 16 bytes of a lane, which choose a kernel; and its grid.")
      .def(nb::init<int, int, int, int, int64_t, uint64_t>(), "lanes"_a, "packs"_a, "blocks"_a, "threads"_a,
           "shared_bytes"_a = 0, "stream"_a = 0);
  nb::class_<Rows>(module, "Rows", "Rows of `dim` values. addresses: uint64 [P], row 0 on each PE; 0: out of reach.")
      .def(nb::init<Flat<const uint64_t>, int64_t>(), "addresses"_a, "dim"_a);
  nb::class_<Sum>(module, "Sum", "A reduction and its epilogue. reduce: \"sum\", \"mean\" or \"max\". Others are addresses, or 0.")
      .def(nb::init<std::string, uint64_t, uint64_t, uint64_t, uint64_t, bool>(), "reduce"_a, "weight"_a, "out"_a,
           "scale"_a, "bias"_a, "relu"_a);
  nb::class_<Get>(module, "Get", "Stages of the get kernel. mine, staging: symmetric addresses. channels: int32.")
      .def("__init__", [](Get* self, int near_ps, int far_ps, int dist, uint64_t mine, uint64_t staging,
                          uint64_t channels, int channel_count) {
        if (dist < 1 || dist > mgg::most_stages || near_ps < 1 || far_ps < 1 || channel_count < 0)
          throw std::invalid_argument("get: ps and dist of 1 or more, dist up to " + std::to_string(mgg::most_stages));
        new (self) Get{near_ps, far_ps, dist, mine, staging, channels, channel_count};
      }, "near_ps"_a, "far_ps"_a, "dist"_a, "mine"_a, "staging"_a, "channels"_a, "channel_count"_a);
  nb::class_<mgg::DeviceExchange> exchange = bind_halo(module);
  nb::class_<mgg::DevicePlan> plan(
      module, "Plan", R"(A plan in device memory. chunks, segments: the plan's structs as uint8. indices: int32 [E].

A destination of more than `part_edges` edges is shared by several workers. Raises ValueError where they disagree.)");
  plan.def("__init__",
           [](mgg::DevicePlan* self, Flat<const uint8_t> chunks, Flat<const uint8_t> segments,
              Flat<const int32_t> indices, int64_t destinations, int64_t part_edges, int rank) {
             new (self) mgg::DevicePlan(structs<mgg::Chunk>(chunks, "plan: a part of a chunk"),
                                        structs<mgg::Segment>(segments, "plan: a part of a segment"), indices.data(),
                                        indices.size(), destinations, part_edges, rank);
           },
           "chunks"_a, "segments"_a, "indices"_a, "destinations"_a, "part_edges"_a, "rank"_a);
  plan.def_prop_ro("tasks", &mgg::DevicePlan::tasks);
  nb::class_<Gathers>(module, "Gathers")
      .def(nb::init<const std::vector<int64_t>&, Flat<const uint8_t>, const std::vector<uint64_t>&,
                    const std::vector<int64_t>&, int64_t, int64_t>(),
           "firsts"_a, "tiers"_a, "rows"_a, "pes"_a, "row_bytes"_a, "value_bytes"_a)
      .def("rows", &Gathers::rows, "ids"_a, "count"_a, "out"_a, "launch"_a, Released());
  nb::class_<mgg::RngKey>(module, "RngKey")
      .def("__init__", [](mgg::RngKey* self, double p, uint64_t seed, uint32_t epoch, uint32_t stream,
                          uint64_t epoch_at) {
        const float scale = static_cast<float>(1 / (1 - p));
        new (self) mgg::RngKey{seed, epoch, stream, mgg::dropout_threshold(p), scale, at<int32_t>(epoch_at)};
      }, "p"_a, "seed"_a, "epoch"_a, "stream"_a, "epoch_at"_a = 0);
  bind_rows<float>(module, plan, exchange, "_float32");
  bind_rows<mgg::Float16>(module, plan, exchange, "_float16");
  bind_rows<mgg::BFloat16>(module, plan, exchange, "_bfloat16");
  bind_edges(module, plan);
  module.def("dropout_csr", dropout_csr, "indptr"_a, "indices"_a, "values"_a, "out"_a, "ids"_a, "rows"_a, "key"_a,
             "launch"_a, Released());
  module.def("gather_floor", gather_floor, "indices"_a, "edges"_a, "rows"_a, "row_bytes"_a, "seen"_a, "launch"_a,
             Released());
  module.def("sample_hop", sample_hop, "stage"_a, "hop"_a, "launch"_a, Released(),
             "Launch a kernel of neighbour sampling. stage, hop: of runtime/backends/cuda/sampling.py.");
  bind_nvshmem(module);
  bind_traversal(module);
#if defined(MGG_SHIM)
  bind_shim(module);
#endif
}
