// Binds neighbour sampling and the order of an epoch's rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace

void bind_sampling(nb::module_& m) {
  bind<int32_t>(m, "Sampler32");
  bind<int64_t>(m, "Sampler64");
  m.def("shuffled", &shuffled, "ids"_a.noconvert(), "seed"_a, "epoch"_a, "threads"_a,
        "Return int64 [n], the places of ids in an order drawn by (seed, epoch).");
}
