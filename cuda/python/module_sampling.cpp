// Binds neighbour sampling, the order of an epoch's rows, and gathers of rows by number.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/sampling/gather.h"
#include "cpu/sampling/sample.h"
#include "mgg/layout.h"
#include "mgg/semantics.h"
#include "python/module_host.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::Made, mgg::array_of, mgg::require;

template <class Index>
class Sampler {
 public:
  Sampler(Flat<const int64_t> indptr, Flat<const Index> indices, std::optional<Flat<const float>> weight,
          std::optional<Flat<const int64_t>> ids)
      : indptr_(indptr), indices_(indices), weight_(weight), ids_(ids) {
    require(indptr.size() > 0, "indptr: at least [0]");
    const auto nodes = static_cast<int64_t>(indptr.size()) - 1;
    require(indptr.data()[0] == 0 && indptr.data()[nodes] == static_cast<int64_t>(indices.size()),
            "indptr: not from 0 to the number of edges");
    require(!weight || weight->size() == indices.size(), "weight: one for each edge");
    require(!ids || static_cast<int64_t>(ids->size()) == nodes, "ids: one for each node");
    require(!weight || weights_are_sound(), "weight: negative, infinite or not a number");
    graph_ = {nodes, indptr.data(), indices.data(), weight ? weight->data() : nullptr, ids ? ids->data() : nullptr};
  }

  nb::tuple sample(Flat<const int64_t> seeds, const std::vector<int64_t>& fanouts, uint64_t seed, int64_t step,
                   bool edges) {
    const auto count = static_cast<int64_t>(seeds.size());
    require(step >= 0 && step < 0xFFFFFFFF, "step: at least 0, and below 2^32 - 1");
    require(fanouts.size() <= static_cast<size_t>(mgg::most_hops), "fanouts: at most 4,096 hops");
    for (const int64_t fanout : fanouts)
      require(fanout == -1 || (fanout > 0 && fanout <= (int64_t(1) << 30)), "fanouts: at least 1, or -1 for all edges");
    for (int64_t i = 0; i < count; ++i)
      if (seeds.data()[i] < 0 || seeds.data()[i] >= graph_.nodes)
        throw std::invalid_argument("seeds: " + std::to_string(seeds.data()[i]) + " is none of " +
                                    std::to_string(graph_.nodes) + " rows");
    mgg::Sampled out;
    {
      nb::gil_scoped_release release;
      std::unique_ptr<mgg::SampleScratch<Index>> scratch = taken();
      run({graph_, seeds.data(), count, fanouts, {seed, static_cast<uint32_t>(step + 1)}, edges, *scratch, out});
      std::lock_guard<std::mutex> lock(guard_);
      kept_.push_back(std::move(scratch));
    }
    nb::list hops;
    for (mgg::Hop& hop : out.hops) {
      const int64_t factors = graph_.weight ? hop.edges : hop.destinations;
      nb::object edge = edges ? nb::cast(array_of(std::move(hop.edge.data), hop.edges)) : nb::none();
      hops.append(nb::make_tuple(array_of(std::move(hop.indptr.data), hop.destinations + 1),
                                 array_of(std::move(hop.indices.data), hop.edges),
                                 array_of(std::move(hop.factor.data), factors), edge));
    }
    return nb::make_tuple(array_of(std::move(out.nodes.data), out.count), hops);
  }

 private:
  bool weights_are_sound() const {
    const float* weight = weight_->data();
    return std::all_of(weight, weight + weight_->size(), [](float each) { return each >= 0 && std::isfinite(each); });
  }
  std::unique_ptr<mgg::SampleScratch<Index>> taken() {
    std::lock_guard<std::mutex> lock(guard_);
    if (kept_.empty()) return std::make_unique<mgg::SampleScratch<Index>>();
    auto scratch = std::move(kept_.back());
    kept_.pop_back();
    return scratch;
  }
  static void run(const mgg::SampleCall<Index>& call) { MGG_DISPATCH(sample, call); }

  Flat<const int64_t> indptr_;  // these keep the arrays alive
  Flat<const Index> indices_;
  std::optional<Flat<const float>> weight_;
  std::optional<Flat<const int64_t>> ids_;
  mgg::SampledGraph<Index> graph_{};
  std::mutex guard_;
  std::vector<std::unique_ptr<mgg::SampleScratch<Index>>> kept_;
};

void draw_keys(const mgg::ShuffleCall& call) { MGG_DISPATCH(shuffle_keys, call); }

// Sorts keys that are spread evenly: by their first bits into buckets of a few, then within these.
Made<int64_t> shuffled(Flat<const int64_t> ids, uint64_t seed, int64_t epoch, int threads) {
  require(epoch >= 1 && epoch <= 0xFFFFFFFF, "epoch: at least 1, and below 2^32");
  require(threads >= 1, "threads: at least 1");
  const auto count = static_cast<int64_t>(ids.size());
  mgg::Raw<int64_t> places;
  places.make(count);
  {
    nb::gil_scoped_release release;
    mgg::Raw<uint64_t> keys;
    keys.make(count);
    draw_keys({ids.data(), count, seed, static_cast<uint32_t>(epoch), keys.data.get(), threads});
    int bits = 1;
    while (count >> bits > 16) ++bits;
    std::vector<int64_t> end((size_t(1) << bits) + 1);
    for (int64_t i = 0; i < count; ++i) ++end[(keys[i] >> (64 - bits)) + 1];
    std::partial_sum(end.begin(), end.end(), end.begin());
    struct Keyed {
      uint64_t key;
      int64_t place;
    };
    mgg::Raw<Keyed> order;
    order.make(count);
    for (int64_t i = 0; i < count; ++i) order[end[keys[i] >> (64 - bits)]++] = {keys[i], i};
    const int64_t* id = ids.data();
    for (size_t bucket = 0; bucket + 1 < end.size(); ++bucket)
      std::sort(order.data.get() + (bucket ? end[bucket - 1] : 0), order.data.get() + end[bucket],
                [id](const Keyed& a, const Keyed& b) {
                  return a.key != b.key ? a.key < b.key : id[a.place] < id[b.place];
                });
    for (int64_t i = 0; i < count; ++i) places[i] = order[i].place;
  }
  return array_of(std::move(places.data), count);
}

template <class Index>
void bind(nb::module_& m, const char* name) {
  nb::class_<Sampler<Index>>(m, name, "Draws in-edges of a graph; see runtime/sampler.py.")
      .def(nb::init<Flat<const int64_t>, Flat<const Index>, std::optional<Flat<const float>>,
                    std::optional<Flat<const int64_t>>>(),
           "indptr"_a.noconvert(), "indices"_a.noconvert(), "weight"_a.noconvert().none(), "ids"_a.noconvert().none())
      .def("sample", &Sampler<Index>::sample, "seeds"_a.noconvert(), "fanouts"_a, "seed"_a, "step"_a, "edges"_a,
           R"(Return (nodes, [(indptr, indices, factor, edge or None) of each hop]).

seeds: int64, distinct rows. fanouts: of each hop, at least 1 or -1. Raises ValueError for others.)");
}

// ---- rows by number

using Rows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;  // of any type

std::tuple<int64_t, int64_t, int64_t> gather_rows(const mgg::Reach& reach, Flat<const int64_t> ids,
                                                  Flat<const int64_t> bounds, int64_t row_bytes, Rows out) {
  const int64_t count = static_cast<int64_t>(ids.size()), pes = static_cast<int64_t>(reach.addresses.size());
  const int64_t item = static_cast<int64_t>(out.itemsize());
  const uint64_t* addresses = reach.addresses.data();
  require(reach.rank >= 0 && reach.rank < pes && bounds.size() == reach.addresses.size() + 1 &&
              reach.counts.size() == reach.addresses.size(),
          "gather: bounds, addresses and counts are not of the same ranks");
  require(row_bytes > 0 && row_bytes % mgg::row_alignment == 0 && reach.threads > 0,
          "gather: rows must be padded to 16 bytes, and there is at least one thread");
  require(static_cast<int64_t>(out.shape(0)) == count && static_cast<int64_t>(out.shape(1)) * item <= row_bytes,
          "out: a row for each number");
  require(count <= 1 || out.stride(0) * item == row_bytes, "out: rows must be padded to 16 bytes");
  require(out.size() == 0 || out.stride(1) == 1, "out: columns must be contiguous");
  require(count == 0 || reinterpret_cast<uintptr_t>(out.data()) % mgg::row_alignment == 0,
          "out: not aligned to 16 bytes");
  for (int64_t pe = 0; pe < pes; ++pe) {
    const int64_t rows = bounds.data()[pe + 1] - bounds.data()[pe];
    require(rows >= 0 && rows <= reach.counts.data()[pe], "gather: more rows than their PE has published");
    require(rows == 0 || addresses[pe] || (reach.transport && addresses[reach.rank]), "gather: rows out of reach");
    require(addresses[pe] % mgg::row_alignment == 0, "gather: rows are not aligned to 16 bytes");
  }
  const mgg::RowGather call{ids.data(), count,     bounds.data(), addresses, static_cast<int>(pes),
                            reach.rank, row_bytes, static_cast<char*>(out.data()),
                            mgg::transport_at(reach.transport), reach.threads};
  nb::gil_scoped_release release;
  const mgg::RowsRead read = mgg::gather_rows(call);
  return {read.local, read.remote, read.got};
}

using TierSpec = std::tuple<int64_t, std::vector<uint64_t>, int64_t>;  // slots, addresses, bytes of a row

std::tuple<std::vector<int64_t>, int64_t, int> gather_tiers(
    Flat<const int64_t> ids, int64_t rows, std::optional<Flat<const int32_t>> slots,
    std::optional<Flat<const int64_t>> wide_slots, const std::vector<TierSpec>& tiers,
    std::tuple<int64_t, int, int64_t> file, Rows out, int threads) {
  const int64_t count = static_cast<int64_t>(ids.size()), item = static_cast<int64_t>(out.itemsize());
  const int64_t bytes = static_cast<int64_t>(out.shape(1)) * item;
  require(static_cast<int64_t>(out.shape(0)) == count, "out: a row for each number");
  require(out.size() == 0 || out.shape(1) == 1 || out.stride(1) == 1, "out: columns must be contiguous");
  require(count <= 1 || out.stride(0) >= static_cast<int64_t>(out.shape(1)), "out: rows overlap");
  require(!slots || static_cast<int64_t>(slots->size()) == rows, "slots: one for each row");
  require(!wide_slots || static_cast<int64_t>(wide_slots->size()) == rows, "slots: one for each row");
  require(threads > 0, "threads: at least 1");
  std::vector<mgg::Tier> made;
  int64_t end = 0;
  for (const auto& [held, addresses, row_bytes] : tiers) {
    require(held >= 0 && !addresses.empty() && row_bytes >= bytes, "tiers: rows are longer than that");
    made.push_back({end, end + held, addresses.data(), static_cast<int64_t>(addresses.size()), row_bytes});
    end += held;
  }
  const auto& [filed, descriptor, offset] = file;
  require(slots || wide_slots || rows <= end + filed, "rows: more than slots");
  const mgg::TieredGather call{ids.data(), count, rows, slots ? slots->data() : nullptr,
                               wide_slots ? wide_slots->data() : nullptr, made.data(),
                               static_cast<int64_t>(made.size()), {end, end + filed, descriptor, offset}, bytes,
                               static_cast<char*>(out.data()), count > 1 ? out.stride(0) * item : bytes, threads};
  std::vector<int64_t> read(made.size() + 1);
  nb::gil_scoped_release release;
  const mgg::FileFault fault = mgg::gather_tiers(call, read.data());
  return {read, fault.slot, fault.error};
}

template <class T>
void gather_csr(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const T> values, Flat<const int64_t> rows,
                Flat<const int64_t> out_indptr, Flat<int32_t> out_indices, Flat<T> out_values, int threads) {
  require(indptr.size() > 0 && values.size() == indices.size() && threads > 0, "gather: not a CSR matrix");
  require(out_values.size() == out_indices.size() && out_indptr.size() == rows.size() + 1,
          "gather: results of other sizes");
  const mgg::Csr<T> matrix{indptr.data(), static_cast<int64_t>(indptr.size()) - 1, static_cast<int64_t>(indices.size()),
                           indices.data(), values.data()};
  nb::gil_scoped_release release;
  mgg::gather_csr(matrix, rows.data(), static_cast<int64_t>(rows.size()), out_indptr.data(),
                  static_cast<int64_t>(out_indices.size()), out_indices.data(), out_values.data(), threads);
}

void csr_offsets(Flat<const int64_t> indptr, int64_t stored, Flat<const int64_t> rows, Flat<int64_t> out_indptr) {
  require(indptr.size() > 0 && out_indptr.size() == rows.size() + 1, "gather: results of other sizes");
  nb::gil_scoped_release release;
  mgg::csr_offsets(indptr.data(), static_cast<int64_t>(indptr.size()) - 1, stored, rows.data(),
                   static_cast<int64_t>(rows.size()), out_indptr.data());
}

template <class T>
void bind_csr(nb::module_& m, const char* name) {
  m.def(name, &gather_csr<T>, "indptr"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert(),
        "rows"_a.noconvert(), "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "out_values"_a.noconvert(),
        "threads"_a, R"(Copy rows of a CSR matrix, one after the other.

indptr int64 [N + 1], indices int32 [nnz], values [nnz]: the matrix. rows: int64 [n]. out_indptr: result of csr_offsets.
out_indices, out_values: [out_indptr[n]]. Raises ValueError for arrays that do not fit.)");
}

}  // namespace

void bind_sampling(nb::module_& m) {
  bind<int32_t>(m, "Sampler32");
  bind<int64_t>(m, "Sampler64");
  m.def("shuffled", &shuffled, "ids"_a.noconvert(), "seed"_a, "epoch"_a, "threads"_a,
        "Return int64 [n], the places of ids in an order drawn by (seed, epoch).");
  m.def("gather_rows", &gather_rows, "reach"_a, "ids"_a.noconvert(), "bounds"_a.noconvert(), "row_bytes"_a,
        "out"_a.noconvert(), R"(Set out[i] = row ids[i]. Return the numbers of local, remote and fetched rows.

ids: int64 [n]. bounds: int64 [P + 1], first number of each PE's rows. Rows at address 0 are fetched by the transport.
out: rows of any type [n, dim], padded to row_bytes. Raises ValueError for a number outside the bounds, and for arrays
that do not fit.)");
  m.def("gather_tiers", &gather_tiers, "ids"_a.noconvert(), "rows"_a, "slots"_a.noconvert().none(),
        "wide_slots"_a.noconvert().none(), "tiers"_a, "file"_a, "out"_a.noconvert(), "threads"_a,
        R"(Set out[i] = row ids[i]. Return the numbers of rows read from each tier and the file, and a fault.

ids: int64 [n]. rows: number of rows. slots: int32 [rows], or wide_slots int64, places of rows, checked by the caller;
or None for both. tiers: (number of slots, addresses of each PE's row 0, bytes from one row to the next). file: (number
of slots, descriptor, offset). out: rows of any type [n, dim]. The fault is the first slot that could not be read, or
-1, and errno, or 0 at the file's end. Raises IndexError for a number outside the rows, and ValueError for arrays that
do not fit.)");
  m.def("csr_offsets", &csr_offsets, "indptr"_a.noconvert(), "stored"_a, "rows"_a.noconvert(),
        "out_indptr"_a.noconvert(), R"(Set out_indptr [n + 1] to where rows [n] of a CSR matrix begin in gather_csr.

stored: number of the matrix's values. Raises ValueError for a row that is not there.)");
  bind_csr<float>(m, "gather_csr_float32");
  bind_csr<double>(m, "gather_csr_float64");
}
