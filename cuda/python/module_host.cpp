// The Python module _host: schedules, aggregation and random draws for CPUs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <type_traits>

#include "python/module_host.h"
#include "runtime/pointer_transport.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat;
using mgg::HostExchange;
using mgg::HostHalo;
using mgg::HostSchedule;
using mgg::Matrix;
using mgg::require;

// ---- instruction sets

#if MGG_HAVE_AVX2 || MGG_HAVE_AVX512
// The features that -march=x86-64-v3 and -v4 may use, one by one, since older compilers do not know the levels here.
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
#endif
#if MGG_HAVE_AVX512
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

std::vector<std::string> instruction_sets() {
  std::vector<std::string> found;
#if MGG_HAVE_AVX512
  if (runs_avx512()) found.push_back("avx512");
#endif
#if MGG_HAVE_AVX2
  if (runs_avx2()) found.push_back("avx2");
#endif
#if MGG_HAVE_BASELINE
  found.push_back("baseline");
#endif
  return found;
}

std::string choose_instruction_set() {
  const auto found = instruction_sets();
  if (found.empty())
    throw std::invalid_argument("kernels were compiled for another machine's instruction set; to compile them for "
                                "all: CMAKE_ARGS=-DMGG_ISAS=all make setup");
  const char* forced = std::getenv("MGG_ISA");
  if (!forced || !*forced) return found.front();
  for (const auto& name : found)
    if (name == forced) return name;
  std::string known;
  for (const auto& name : found) known += (known.empty() ? "" : ", ") + name;
  throw std::invalid_argument("MGG_ISA=" + std::string(forced) + ": this build has " + known +
                              " for this machine; to compile all: CMAKE_ARGS=-DMGG_ISAS=all make setup");
}

// Nothing is converted: a converted output would be written and thrown away.
template <class S, class T>
void bind_aggregate(nb::class_<HostSchedule>& schedule, const char* name) {
  schedule.def(name, &HostSchedule::aggregate<S, T>, "reach"_a, "weight"_a.noconvert().none(), "out"_a.noconvert(),
               "scale"_a.noconvert().none() = nb::none(), "bias"_a.noconvert().none() = nb::none(), "relu"_a = false,
               "reduce"_a = "sum", R"(Set out[v] = relu(scale[v] * reduce over v's edges of (weight * row) + bias).

weight [E], scale [destinations] and bias [dim] are float32, for rows of float64 float64, or None. out [destinations,
dim]: rows padded to 16 bytes; halves are passed as uint16. reduce: "sum", "mean" or "max". Raises ValueError for arrays
that do not fit.)");
}

}  // namespace

const std::string& mgg::instruction_set() {
  static const std::string chosen = choose_instruction_set();
  return chosen;
}

void bind_floor(nb::module_& m);                      // module_floor.cpp
void bind_edges(nb::class_<HostSchedule>& schedule);  // module_edges.cpp
void bind_gather(nb::module_& m);                     // module_gather.cpp
void bind_random(nb::module_& m);                     // module_random.cpp
void bind_sampling(nb::module_& m);                   // module_sampling.cpp
void bind_streams(nb::module_& m);                    // module_streams.cpp
void bind_traversal(nb::module_& m);                  // module_traversal.cpp

NB_MODULE(_host, m) {
  m.doc() = R"(Schedules, aggregation and random draws for the cores of one host.

Arrays are NumPy's or torch's CPU tensors, read and written in place; a wrong shape, stride or alignment raises
ValueError.)";
  nb::class_<mgg::PointerTransport>(m, "PointerTransport", "The transport of ranks that share memory.")
      .def(nb::init<int>(), "rank"_a)
      .def("add",
           [](mgg::PointerTransport& self, Flat<const uint64_t> addresses, size_t bytes) {
             self.add(addresses.data(), bytes);
           },
           nb::keep_alive<1, 2>(), "addresses"_a.noconvert(), "bytes"_a,
           "Add a symmetric allocation. addresses: uint64 [P], kept, and read when they are needed.")
      .def_prop_ro("address", [](mgg::PointerTransport& self) {
        return reinterpret_cast<uint64_t>(static_cast<mgg::Transport*>(&self));
      }, "Address of the transport, for HaloExchange and Schedule.");
  nb::class_<HostExchange>(m, "Exchange", "Brings the chunks of a call, in rounds.")
      .def("take_moved", [](HostExchange& self) {
        const mgg::Moved moved = self.exchange().take_moved();
        return nb::make_tuple(moved.rows, moved.passed, moved.messages, moved.waited, moved.loading);
      }, R"(Return counts since the last call: (rows, passed, messages, waited, loading).

rows: that a halo has pushed, or that came from a store. passed: rows that came from the rank before in a chain.
messages: packets pushed. waited, loading: seconds that sums have waited, and that a stream's thread has loaded.)");
  nb::class_<mgg::Reach>(m, "Reach", R"(Where the rows of a call lie, and how rows of other ranks reach it.

addresses uint64 [P], counts int64 [P]: address of row 0 and number of rows of each PE. exchange: exchange of a plan with
rounds, or None. arrived: sum the rows that it has moved, and exchange nothing. transport: address of the transport for a
schedule with gets, else 0.)")
      .def(nb::init<Flat<const uint64_t>, Flat<const int64_t>, int, int, HostExchange*, bool, uint64_t>(),
           nb::keep_alive<1, 6>(), "addresses"_a.noconvert(), "counts"_a.noconvert(), "rank"_a, "threads"_a = 1,
           "exchange"_a.none() = nb::none(), "arrived"_a = false, "transport"_a = 0);
  nb::class_<HostHalo, HostExchange>(m, "HaloExchange", R"(Moves each distinct remote row once a call, in rounds.

send_rows: int32. send_counts, send_places, receive_counts: int64 [rounds * size]. staging: address of symmetric memory
of 2 * staging_bytes; signals: of signal_count(rounds, size) zeros of 8 bytes. transport: its address.)")
      .def(nb::init<int, int, int, Flat<const int32_t>, Flat<const int64_t>, Flat<const int64_t>, Flat<const int64_t>,
                    uint64_t, int64_t, uint64_t, uint64_t>(),
           "rank"_a, "size"_a, "rounds"_a, "send_rows"_a.noconvert(), "send_counts"_a.noconvert(),
           "send_places"_a.noconvert(), "receive_counts"_a.noconvert(), "staging"_a, "staging_bytes"_a, "signals"_a,
           "transport"_a)
      .def("transfer", &HostHalo::transfer, "rows"_a, "row_bytes"_a,
           "Exchange without sums. rows: address of this rank's row 0. Collective.")
      .def_prop_ro("arrived", [](HostHalo& self) { return reinterpret_cast<uint64_t>(self.exchange().rows_of(0, 0)); },
                   "Address of the rows that the last exchange brought.")
      .def("stamps", [](HostHalo& self) { return self.exchange().stamps(); }, R"(Return the times of the last exchange, in seconds of the monotonic clock.

Its begin and its end; [rounds] when this rank began to wait for a round; [rounds] when it was there; [rounds * size] when
this rank had pushed a round to a PE, 0 where it pushes none.)");
  m.def("signal_count", &mgg::HaloExchange::signal_count, "rounds"_a, "size"_a,
        "Return the number of words of 8 bytes that an exchange needs.");
  nb::class_<HostSchedule> schedule(m, "Schedule", R"(The division of a plan's sums among the threads of one host, made once for a plan.

chunks, segments: the plan's structs as uint8. indices: int32 [E]. block_edges: number of edges that a thread claims at
once, of whole destinations. part_edges: a destination of more edges is a hub, whose parts of so many edges threads share;
results depend on it, and on no other size. gets: remote rows are fetched by gets. Raises ValueError where arrays
disagree.)");
  schedule.def(
      nb::init<Flat<const uint8_t>, Flat<const uint8_t>, Flat<const int32_t>, int64_t, int64_t, int64_t, bool>(),
      "chunks"_a.noconvert(), "segments"_a.noconvert(), "indices"_a.noconvert(), "destinations"_a, "block_edges"_a,
      "part_edges"_a, "gets"_a = false);
  schedule.def_prop_rw("dist", &HostSchedule::dist, &HostSchedule::set_dist,
                       "Edges ahead whose rows are prefetched, or -1: as many as have 16 KiB of rows.");
  schedule.def("sweep_as", &HostSchedule::sweep_as, "other"_a,
               "Sweep wide rows as another schedule of the same plan has found to be faster.");
  schedule.def_prop_ro("blocks", &HostSchedule::blocks).def_prop_ro("hubs", &HostSchedule::hubs);
  schedule.def("sweep", &HostSchedule::sweep, "dim"_a, "item_bytes"_a,
               "Columns that the next call's sweeps take of such rows.");
  schedule.attr("SETTLED") = mgg::settled;  // calls after which the way to sweep wide rows is chosen
  bind_aggregate<float, float>(schedule, "aggregate_float32");
  bind_aggregate<double, double>(schedule, "aggregate_float64");
  bind_aggregate<mgg::Float16, uint16_t>(schedule, "aggregate_float16");
  bind_aggregate<mgg::BFloat16, uint16_t>(schedule, "aggregate_bfloat16");
  bind_edges(schedule);
  bind_floor(m);
  bind_gather(m);
  bind_random(m);
  bind_sampling(m);
  bind_streams(m);
  bind_traversal(m);
  m.def("instruction_sets", &instruction_sets, "What this machine runs, widest first.");
  m.def("instruction_set", [] { return mgg::instruction_set(); },
        "Return the one in use. Raises ValueError if MGG_ISA names one that this machine does not run.");
  m.def("openmp_threads", [] { return omp_get_max_threads(); });
  m.def("struct_sizes", [] { return std::vector<size_t>{sizeof(mgg::Chunk), sizeof(mgg::Segment), sizeof(mgg::Step)}; },
        "Return the bytes of Chunk, Segment and Step.");
}
