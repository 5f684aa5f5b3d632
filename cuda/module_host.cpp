// The Python module _host: schedules, aggregation and random draws for CPUs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "mgg/semantics.h"
#include "random_host.h"
#include "schedule_host.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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

template <class Struct>
std::vector<Struct> structs(const Flat<const uint8_t>& bytes, const char* what) {
  require(bytes.size() % sizeof(Struct) == 0, what);
  std::vector<Struct> items(bytes.size() / sizeof(Struct));
  std::memcpy(static_cast<void*>(items.data()), bytes.data(), bytes.size());
  return items;
}

class HostSchedule {
 public:
  HostSchedule(Flat<const uint8_t> chunks, Flat<const uint8_t> segments, Flat<const int32_t> indices,
               int64_t destinations, int ps, int dist, int wpb)
      : indices_(indices) {
    require(ps > 0 && dist >= 0 && wpb > 0, "ps and wpb are at least 1, dist at least 0");
    schedule_.chunks = structs<mgg::Chunk>(chunks, "chunks: not a whole number of structs");
    schedule_.indices = indices.data();
    schedule_.edges = static_cast<int64_t>(indices.size());
    schedule_.destinations = destinations;
    mgg::make_schedule(schedule_, structs<mgg::Segment>(segments, "segments: not a whole number of structs"), ps,
                       dist, wpb);
  }

  // addresses[pe]: row 0 of that rank's rows, which are `stride` values apart and `counts[pe]` many.
  template <class T>
  void aggregate(Flat<const uint64_t> addresses, Flat<const int64_t> counts, std::optional<Flat<const T>> weight,
                 Matrix<T> out, std::optional<Flat<const T>> scale, std::optional<Flat<const T>> bias,
                 bool relu, int threads) {
    const int64_t dim = static_cast<int64_t>(out.shape(1));
    const int64_t stride = mgg::padded_stride(dim, sizeof(T));
    const int64_t rows = schedule_.destinations;
    require(static_cast<int64_t>(out.shape(0)) == rows, "out: a row for each destination");
    require(rows <= 1 || out.stride(0) == stride, "out: rows must be padded to 16 bytes");
    require(out.size() == 0 || out.stride(1) == 1, "out: columns must be contiguous");
    require(reinterpret_cast<uintptr_t>(out.data()) % mgg::row_alignment == 0, "out: not aligned to 16 bytes");
    require(!weight || static_cast<int64_t>(weight->size()) == schedule_.edges, "weight: one for each edge");
    require(!scale || static_cast<int64_t>(scale->size()) == rows, "scale: one for each destination");
    require(!bias || static_cast<int64_t>(bias->size()) == dim, "bias: one for each column");
    std::vector<const T*> sources;
    for (const mgg::Chunk& chunk : schedule_.chunks) {
      require(chunk.pe >= 0 && static_cast<size_t>(chunk.pe) < addresses.size(), "chunk: no such PE");
      require(chunk.first_row + chunk.rows <= counts.data()[chunk.pe], "chunk: more rows than its PE published");
      const auto address = addresses.data()[chunk.pe];
      require(chunk.rows == 0 || (address && address % mgg::row_alignment == 0), "rows: not aligned to 16 bytes");
      sources.push_back(reinterpret_cast<const T*>(address) + chunk.first_row * stride);
    }
    std::vector<T> padded_bias(bias ? stride : 0, T(0));
    if (bias) std::memcpy(padded_bias.data(), bias->data(), dim * sizeof(T));
    // Every slot is written before it is read, so nothing is cleared.
    const std::unique_ptr<T[]> partials(new T[static_cast<size_t>(schedule_.slots) * stride + mgg::row_alignment]);
    T* aligned = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(partials.get()) + 15) / 16 * 16);
    const mgg::Aggregation<T> call{&schedule_, sources.data(), weight ? weight->data() : nullptr, out.data(),
                                   scale ? scale->data() : nullptr, bias ? padded_bias.data() : nullptr, aligned,
                                   stride, relu, threads};
    nb::gil_scoped_release release;
    aggregate_here(call);
  }

  int64_t blocks() const { return static_cast<int64_t>(schedule_.blocks.size()); }
  int64_t hubs() const { return static_cast<int64_t>(schedule_.hubs.size()); }
  int64_t bytes() const {
    return static_cast<int64_t>(schedule_.segments.size() * sizeof(mgg::Segment) +
                                schedule_.blocks.size() * sizeof(mgg::Block));
  }

 private:
  mgg::Schedule schedule_;
  Flat<const int32_t> indices_;  // keeps the array alive
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
template <class T>
void bind(nb::module_& m, nb::class_<HostSchedule>& schedule) {
  schedule.def("aggregate", &HostSchedule::aggregate<T>, "addresses"_a.noconvert(), "counts"_a.noconvert(),
               "weight"_a.noconvert().none(), "out"_a.noconvert(), "scale"_a.noconvert().none(),
               "bias"_a.noconvert().none(), "relu"_a, "threads"_a);
  m.def("dropout_rows", &dropout_rows<T>, "x"_a.noconvert(), "out"_a.noconvert(), "node"_a.noconvert(), "p"_a,
        "seed"_a, "epoch"_a, "stream"_a, "threads"_a);
  m.def("dropout_csr", &dropout_csr<T>, "indptr"_a.noconvert(), "index"_a.noconvert(), "value"_a.noconvert(),
        "out"_a.noconvert(), "node"_a.noconvert(), "p"_a, "seed"_a, "epoch"_a, "stream"_a, "threads"_a);
  m.def("uniform_rows", &uniform_rows<T>, "out"_a.noconvert(), "low"_a, "high"_a, "seed"_a, "stream"_a);
}

}  // namespace

void bind_order(nb::module_& m);  // order_host.cpp

NB_MODULE(_host, m) {
  m.doc() = "Schedules, aggregation and random draws for the cores of one host.";
  nb::class_<HostSchedule> schedule(m, "Schedule");
  schedule.def(nb::init<Flat<const uint8_t>, Flat<const uint8_t>, Flat<const int32_t>, int64_t, int, int, int>(),
               "chunks"_a.noconvert(), "segments"_a.noconvert(), "indices"_a.noconvert(), "destinations"_a, "ps"_a, "dist"_a, "wpb"_a);
  schedule.def_prop_ro("blocks", &HostSchedule::blocks).def_prop_ro("hubs", &HostSchedule::hubs);
  schedule.def_prop_ro("bytes", &HostSchedule::bytes);
  bind<float>(m, schedule);
  bind<double>(m, schedule);
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
