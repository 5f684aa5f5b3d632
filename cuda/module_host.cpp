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

#include "bindings.h"
#include "mgg/semantics.h"
#include "pointer_transport.h"
#include "random_host.h"
#include "schedule_host.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat;
using mgg::structs;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;  // rows contiguous, any stride between them

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// ---- instruction sets

#if MGG_HAVE_AVX2
// What -march=x86-64-v3 and -v4 may use, by features, since older compilers cannot be asked for the levels.
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
  found.push_back("baseline");
  return found;
}

std::string choose_instruction_set() {
  const auto found = instruction_sets();
  const char* forced = std::getenv("MGG_ISA");
  if (!forced || !*forced) return found.front();
  for (const auto& name : found)
    if (name == forced) return name;
  std::string known;
  for (const auto& name : found) known += (known.empty() ? "" : ", ") + name;
  throw std::invalid_argument("MGG_ISA=" + std::string(forced) + ": this machine runs " + known);
}

const std::string& instruction_set() {
  static const std::string chosen = choose_instruction_set();
  return chosen;
}

// Calls the kernel that was compiled for the instruction set in use.
#define MGG_DISPATCH(kernel, call)                                       \
  do {                                                                   \
    const std::string& isa = instruction_set();                          \
    (void)isa;                                                           \
    MGG_IF_AVX512(if (isa == "avx512") return mgg::avx512::kernel(call)) \
    MGG_IF_AVX2(if (isa == "avx2") return mgg::avx2::kernel(call))       \
    return mgg::baseline::kernel(call);                                  \
  } while (false)
#if MGG_HAVE_AVX512
#define MGG_IF_AVX512(statement) statement;
#else
#define MGG_IF_AVX512(statement)
#endif
#if MGG_HAVE_AVX2
#define MGG_IF_AVX2(statement) statement;
#else
#define MGG_IF_AVX2(statement)
#endif

template <class Call>
void aggregate_here(const Call& call) {
  MGG_DISPATCH(aggregate, call);
}
template <class Call>
void dropout_here(const Call& call) {
  MGG_DISPATCH(dropout, call);
}

// ---- schedules

// What a call leaves in float32 or float64 between stages and parts of hubs; kept, since fresh pages cost time.
class Scratch {
 public:
  template <class A>
  A* take(int64_t values) {
    const size_t bytes = static_cast<size_t>(values) * sizeof(A) + 64;
    if (bytes > memory_.size()) memory_ = std::vector<char>(bytes);
    return reinterpret_cast<A*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<char> memory_;
};

mgg::Transport* transport_at(uint64_t address) { return reinterpret_cast<mgg::Transport*>(address); }

class HostExchange {
 public:
  HostExchange(int rank, int size, int waves, Flat<const int32_t> send_rows, Flat<const int64_t> send_counts,
               Flat<const int64_t> send_places, Flat<const int64_t> receive_counts, uint64_t staging,
               int64_t staging_bytes, uint64_t signals, uint64_t transport)
      : staging_bytes_(staging_bytes),
        exchange_({rank, size, waves, vector_of(send_rows), vector_of(send_counts), vector_of(send_places),
                   vector_of(receive_counts), reinterpret_cast<char*>(staging), staging_bytes,
                   reinterpret_cast<uint64_t*>(signals)},
                  transport_at(transport)) {
    for (const int64_t count : vector_of(receive_counts)) receives_ += count;
    for (const int32_t row : vector_of(send_rows)) last_row_ = std::max<int64_t>(last_row_, row);
  }
  mgg::HaloExchange& exchange() { return exchange_; }
  void move(uint64_t rows, int64_t row_bytes) {
    require_room(row_bytes);
    nb::gil_scoped_release release;
    exchange_.move(reinterpret_cast<const char*>(rows), row_bytes);
  }
  int64_t take_rows_pushed() { return exchange_.take_rows_pushed(); }
  void require_rows(int64_t count) const { require(last_row_ < count, "exchange: sends rows that are not there"); }
  void require_room(int64_t row_bytes) const {
    require(receives_ * row_bytes <= staging_bytes_, "exchange: rows are wider than the staging was made for");
  }

 private:
  template <class T>
  static std::vector<T> vector_of(const Flat<const T>& array) {
    return {array.data(), array.data() + array.size()};
  }
  int64_t staging_bytes_, receives_ = 0, last_row_ = -1;
  mgg::HaloExchange exchange_;
};

class HostSchedule {
 public:
  HostSchedule(Flat<const uint8_t> chunks, Flat<const uint8_t> segments, Flat<const int32_t> indices,
               int64_t destinations, int ps, int dist, int wpb, bool gets)
      : indices_(indices) {
    require(ps > 0 && wpb > 0, "ps and wpb are at least 1");
    schedule_.chunks = structs<mgg::Chunk>(chunks, "chunks: not a whole number of structs");
    schedule_.indices = indices.data();
    schedule_.edges = static_cast<int64_t>(indices.size());
    schedule_.destinations = destinations;
    schedule_.dist = dist;
    mgg::make_schedule(schedule_, structs<mgg::Segment>(segments, "segments: not a whole number of structs"),
                       mgg::cut_for_threads(ps, wpb), gets);
    gets_ = gets;
  }

  // S: what rows are stored in; T: the type of the arrays that hold them (uint16 for halves).
  template <class S, class T>
  void aggregate(Flat<const uint64_t> addresses, Flat<const int64_t> counts, int rank,
                 std::optional<Flat<const mgg::Accumulator<S>>> weight, Matrix<T> out,
                 std::optional<Flat<const mgg::Accumulator<S>>> scale,
                 std::optional<Flat<const mgg::Accumulator<S>>> bias, bool relu, const std::string& reduce, int threads,
                 HostExchange* exchange, bool arrived, uint64_t transport) {
    using A = mgg::Accumulator<S>;
    const int64_t dim = static_cast<int64_t>(out.shape(1));
    const int64_t stride = mgg::padded_stride(dim, sizeof(S)), row_bytes = stride * sizeof(S);
    const int64_t rows = schedule_.destinations;
    require(static_cast<int64_t>(out.shape(0)) == rows, "out: a row for each destination");
    require(rows == 0 || out.stride(0) == stride, "out: rows must be padded to 16 bytes");
    require(out.size() == 0 || out.stride(1) == 1, "out: columns must be contiguous");
    require(reinterpret_cast<uintptr_t>(out.data()) % mgg::row_alignment == 0, "out: not aligned to 16 bytes");
    require(!weight || static_cast<int64_t>(weight->size()) == schedule_.edges, "weight: one for each edge");
    require(!scale || static_cast<int64_t>(scale->size()) == rows, "scale: one for each destination");
    require(!bias || static_cast<int64_t>(bias->size()) == dim, "bias: one for each column");
    require(rank >= 0 && static_cast<size_t>(rank) < addresses.size(), "rank: not a PE");
    require((transport != 0) == gets_, "a schedule for gets needs a transport, and no other does");
    const auto reduction = reduce == "sum"    ? mgg::Reduce::sum
                           : reduce == "mean" ? mgg::Reduce::mean
                                              : mgg::Reduce::max;
    require(reduction != mgg::Reduce::max || reduce == "max", "reduce: sum, mean or max");
    mgg::HaloExchange* moving = exchange ? &exchange->exchange() : nullptr;
    if (moving) exchange->require_room(row_bytes), exchange->require_rows(counts.data()[rank]);
    require(static_cast<int64_t>(schedule_.stages.size()) == 1 + (moving ? moving->waves() : 0),
            "a plan with waves needs its exchange, and no other does");
    std::vector<A> padded_bias(bias ? stride : 0, A(0));
    if (bias) std::memcpy(padded_bias.data(), bias->data(), dim * sizeof(A));
    A* accumulators = nullptr;
    if constexpr (std::is_same_v<S, A>)
      accumulators = moving ? reinterpret_cast<A*>(out.data()) : nullptr;
    else
      accumulators = moving ? sums_.take<A>(rows * stride) : nullptr;
    // Results that no cache holds until they are read; rows of whole lines.
    constexpr int64_t line = 64, large = 8 << 20;
    const bool streams = rows * row_bytes >= large && row_bytes % line == 0 &&
                         reinterpret_cast<uintptr_t>(out.data()) % line == 0;
    // Rows of 8 KiB are on their way then, which covers a memory's latency: few wide rows, or many narrow ones.
    const int64_t sweep = this->sweep(dim, sizeof(S));
    const int64_t swept_bytes = std::max<int64_t>(1, sweep * sizeof(S));
    const int64_t fitting = std::min<int64_t>(64, std::max<int64_t>(8, 8192 / swept_bytes));
    const int prefetch = schedule_.dist >= 0 ? schedule_.dist : static_cast<int>(fitting);
    A* partials = partials_.take<A>(int64_t(schedule_.slots) * stride);
    check_sources(addresses, counts, rank);

    nb::gil_scoped_release release;
    if (moving && !arrived) moving->begin(reinterpret_cast<const char*>(addresses.data()[rank]), row_bytes);
    std::vector<const S*> sources;
    for (const mgg::Chunk& chunk : schedule_.chunks) {
      // What is fetched by gets lies on its owner at this PE's own address.
      const char* base = chunk.kind == mgg::Chunk::halo ? moving->staging()
                                                        : reinterpret_cast<const char*>(
                                                              addresses.data()[gets_ ? rank : chunk.pe]);
      sources.push_back(reinterpret_cast<const S*>(base + chunk.first_row * row_bytes));
    }
    const double began = omp_get_wtime();
    const int32_t* indices = gets_ ? schedule_.place.data() : schedule_.indices;
    aggregate_here(mgg::Aggregation<S>{&schedule_, sources.data(), indices, schedule_.edges,
                                       weight ? weight->data() : nullptr, reinterpret_cast<S*>(out.data()),
                                       scale ? scale->data() : nullptr, bias ? padded_bias.data() : nullptr, partials,
                                       accumulators, stride, sweep, reduction, prefetch, relu, streams, threads,
                                       arrived ? nullptr : moving, transport_at(transport), &calling_});
    schedule_.sweeps.took(stride, sizeof(S), sweep, omp_get_wtime() - began);
    if (moving && !arrived) moving->end();
  }

  int64_t blocks() const { return static_cast<int64_t>(schedule_.blocks.size()); }
  int64_t hubs() const { return static_cast<int64_t>(schedule_.hubs.size()); }
  int64_t sweep(int64_t dim, int64_t item_bytes) const {
    const int64_t stride = mgg::padded_stride(dim, item_bytes);
    return gets_ ? stride : schedule_.sweeps.columns(stride, item_bytes, schedule_.edges);
  }
  int64_t bytes() const {
    return static_cast<int64_t>(schedule_.segments.size() * sizeof(mgg::Segment) +
                                schedule_.blocks.size() * sizeof(mgg::Block) +
                                (schedule_.place.size() + schedule_.degree.size()) * sizeof(int32_t));
  }

 private:
  // What is read through pointers must be there.
  void check_sources(const Flat<const uint64_t>& addresses, const Flat<const int64_t>& counts,
                     int rank) const {
    for (const mgg::Chunk& chunk : schedule_.chunks) {
      if (chunk.kind == mgg::Chunk::halo) continue;
      require(chunk.pe >= 0 && static_cast<size_t>(chunk.pe) < addresses.size(), "chunk: no such PE");
      require(chunk.first_row + chunk.rows <= counts.data()[chunk.pe], "chunk: more rows than its PE published");
      const auto address = addresses.data()[gets_ ? rank : chunk.pe];
      require(chunk.rows == 0 || (address && address % mgg::row_alignment == 0),
              "rows: out of reach, or not aligned to 16 bytes");
    }
  }

  mgg::Schedule schedule_;
  Flat<const int32_t> indices_;  // keeps the array alive
  Scratch partials_, sums_;
  std::mutex calling_;
  bool gets_ = false;
};

// ---- random draws

template <class T>
void dropout_rows(Matrix<const T> x, Matrix<T> out, Flat<const int64_t> node, double p, uint64_t seed,
                  uint32_t epoch, uint32_t stream, int threads) {
  require(x.shape(0) == out.shape(0) && x.shape(1) == out.shape(1), "dropout: x and out differ in shape");
  require(node.size() == x.shape(0), "dropout: one node id for each row");
  // A rank may own no rows, and NumPy gives empty arrays strides of 0.
  require(x.size() == 0 || (x.stride(1) == 1 && out.stride(1) == 1), "dropout: columns must be contiguous");
  nb::gil_scoped_release release;
  dropout_here(mgg::DropoutRows<T>{x.data(), out.data(), x.stride(0), out.stride(0), node.data(),
                                   static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)), p,
                                   {seed, epoch, stream}, threads});
}

template <class T>
void dropout_csr(Flat<const int64_t> indptr, Flat<const int32_t> index, Flat<const T> value, Flat<T> out,
                 Flat<const int64_t> node, double p, uint64_t seed, uint32_t epoch, uint32_t stream, int threads) {
  require(indptr.size() == node.size() + 1, "dropout: one node id for each row");
  require(index.size() == value.size() && out.size() == value.size(), "dropout: arrays differ in length");
  require(static_cast<size_t>(indptr.data()[node.size()]) == value.size(), "dropout: indptr does not end at nnz");
  nb::gil_scoped_release release;
  dropout_here(mgg::DropoutCsr<T>{indptr.data(), index.data(), value.data(), out.data(), node.data(),
                                  static_cast<int64_t>(node.size()), p, {seed, epoch, stream}, threads});
}

// Initial weights: few, so drawn one by one. Node and column of a draw are the parameter's row and column.
template <class T>
void uniform_rows(Matrix<T> out, double low, double high, uint64_t seed, uint32_t stream) {
  const int64_t rows = out.shape(0), columns = out.shape(1);
  require(rows <= 1 || out.stride(0) == columns, "uniform: not contiguous");
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < columns; ++c) {
      const uint32_t word = mgg::draw(seed, 0, stream, i, c >> 2).word[c & 3];
      out.data()[i * columns + c] = static_cast<T>(low + (high - low) * mgg::unit_interval(word));
    }
}

// Nothing is converted: a converted output would be written and thrown away.
template <class S, class T>
void bind_aggregate(nb::class_<HostSchedule>& schedule, const char* name) {
  schedule.def(name, &HostSchedule::aggregate<S, T>, "addresses"_a.noconvert(), "counts"_a.noconvert(), "rank"_a,
               "weight"_a.noconvert().none(), "out"_a.noconvert(), "scale"_a.noconvert().none() = nb::none(),
               "bias"_a.noconvert().none() = nb::none(), "relu"_a = false, "reduce"_a = "sum", "threads"_a = 1,
               "exchange"_a.none() = nb::none(), "arrived"_a = false, "transport"_a = 0);
}

template <class T>
void bind(nb::module_& m) {
  m.def("dropout_rows", &dropout_rows<T>, "x"_a.noconvert(), "out"_a.noconvert(), "node"_a.noconvert(), "p"_a,
        "seed"_a, "epoch"_a, "stream"_a, "threads"_a);
  m.def("dropout_csr", &dropout_csr<T>, "indptr"_a.noconvert(), "index"_a.noconvert(), "value"_a.noconvert(),
        "out"_a.noconvert(), "node"_a.noconvert(), "p"_a, "seed"_a, "epoch"_a, "stream"_a, "threads"_a);
  m.def("uniform_rows", &uniform_rows<T>, "out"_a.noconvert(), "low"_a, "high"_a, "seed"_a, "stream"_a);
}

}  // namespace

void bind_order(nb::module_& m);  // order_host.cpp
void bind_floor(nb::module_& m);  // module_floor.cpp

NB_MODULE(_host, m) {
  m.doc() = "Schedules, aggregation and random draws for the cores of one host.";
  nb::class_<mgg::PointerTransport>(m, "PointerTransport")
      .def(nb::init<int>(), "rank"_a)
      .def("add",
           [](mgg::PointerTransport& self, Flat<const uint64_t> addresses, size_t bytes) {
             self.add(addresses.data(), bytes);
           },
           nb::keep_alive<1, 2>(), "addresses"_a.noconvert(), "bytes"_a)
      .def_prop_ro("address", [](mgg::PointerTransport& self) {
        return reinterpret_cast<uint64_t>(static_cast<mgg::Transport*>(&self));
      });
  nb::class_<HostExchange>(m, "HaloExchange")
      .def(nb::init<int, int, int, Flat<const int32_t>, Flat<const int64_t>, Flat<const int64_t>, Flat<const int64_t>,
                    uint64_t, int64_t, uint64_t, uint64_t>(),
           "rank"_a, "size"_a, "waves"_a, "send_rows"_a.noconvert(), "send_counts"_a.noconvert(),
           "send_places"_a.noconvert(), "receive_counts"_a.noconvert(), "staging"_a, "staging_bytes"_a, "signals"_a,
           "transport"_a)
      .def("move", &HostExchange::move, "rows"_a, "row_bytes"_a)
      .def("take_rows_pushed", &HostExchange::take_rows_pushed);
  m.def("signal_count", &mgg::HaloExchange::signal_count, "waves"_a, "size"_a);
  nb::class_<HostSchedule> schedule(m, "Schedule");
  schedule.def(nb::init<Flat<const uint8_t>, Flat<const uint8_t>, Flat<const int32_t>, int64_t, int, int, int, bool>(),
               "chunks"_a.noconvert(), "segments"_a.noconvert(), "indices"_a.noconvert(), "destinations"_a, "ps"_a,
               "dist"_a, "wpb"_a, "gets"_a = false);
  schedule.def_prop_ro("blocks", &HostSchedule::blocks).def_prop_ro("hubs", &HostSchedule::hubs);
  schedule.def_prop_ro("bytes", &HostSchedule::bytes);
  schedule.def("sweep", &HostSchedule::sweep, "dim"_a, "item_bytes"_a,
               "Columns that the next call's sweeps take of such rows.");
  schedule.attr("SETTLED") = mgg::settled;  // calls after which the way to sweep wide rows is chosen
  bind_aggregate<float, float>(schedule, "aggregate_float32");
  bind_aggregate<double, double>(schedule, "aggregate_float64");
  bind_aggregate<mgg::Float16, uint16_t>(schedule, "aggregate_float16");
  bind_aggregate<mgg::BFloat16, uint16_t>(schedule, "aggregate_bfloat16");
  bind<float>(m);
  bind<double>(m);
  bind_floor(m);
  m.def("instruction_sets", &instruction_sets, "What this machine runs, widest first.");
  m.def("instruction_set", [] { return instruction_set(); }, "The one in use (MGG_ISA forces another).");
  m.def("openmp_threads", [] { return omp_get_max_threads(); });
  m.def("struct_sizes", [] { return std::vector<size_t>{sizeof(mgg::Chunk), sizeof(mgg::Segment)}; });
  m.def("philox", [](std::vector<uint32_t> counter, uint64_t key) {
    require(counter.size() == 4, "philox: a counter of four words");
    const auto words = mgg::philox(counter[0], counter[1], counter[2], counter[3], key);
    return std::vector<uint32_t>(words.word, words.word + 4);
  });
  bind_order(m);
}
