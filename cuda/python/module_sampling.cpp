// Binds neighbour sampling, and the order of an epoch's rows.
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
#include <vector>

#include "cpu/sampling/sample.h"
#include "mgg/semantics.h"
#include "python/module_host.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::require;

template <class T>
using Made = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// The first `count` values as an array that owns them.
template <class T>
Made<T> array_of(mgg::Raw<T>& values, int64_t count) {
  T* data = values.data.release();
  nb::capsule owner(data, [](void* held) noexcept { delete[] static_cast<T*>(held); });
  return Made<T>(data, {static_cast<size_t>(count)}, owner);
}

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

  nb::tuple sample(Flat<const int64_t> seeds, const std::vector<int64_t>& fanouts, uint64_t seed, uint32_t step,
                   bool edges) {
    const auto count = static_cast<int64_t>(seeds.size());
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
      run({graph_, seeds.data(), count, fanouts, {seed, step}, edges, *scratch, out});
      std::lock_guard<std::mutex> lock(guard_);
      kept_.push_back(std::move(scratch));
    }
    nb::list hops;
    for (mgg::Hop& hop : out.hops) {
      const int64_t factors = graph_.weight ? hop.edges : hop.destinations;
      nb::object edge = edges ? nb::cast(array_of(hop.edge, hop.edges)) : nb::none();
      hops.append(nb::make_tuple(array_of(hop.indptr, hop.destinations + 1), array_of(hop.indices, hop.edges),
                                 array_of(hop.factor, factors), edge));
    }
    return nb::make_tuple(array_of(out.nodes, out.count), hops);
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

Made<int64_t> shuffled(Flat<const int64_t> ids, uint64_t seed, uint32_t epoch, int threads) {
  const auto count = static_cast<int64_t>(ids.size());
  mgg::Raw<int64_t> places;
  places.make(std::max<int64_t>(count, 1));
  {
    nb::gil_scoped_release release;
    mgg::Raw<uint64_t> keys;
    keys.make(std::max<int64_t>(count, 1));
    draw_keys({ids.data(), count, seed, epoch, keys.data.get(), threads});
    struct Keyed {
      uint64_t key;
      int64_t place;
    };
    std::vector<Keyed> order(count);
    for (int64_t i = 0; i < count; ++i) order[i] = {keys[i], i};
    const int64_t* id = ids.data();
    std::sort(order.begin(), order.end(), [id](const Keyed& a, const Keyed& b) {
      return a.key != b.key ? a.key < b.key : id[a.place] < id[b.place];
    });
    for (int64_t i = 0; i < count; ++i) places[i] = order[i].place;
  }
  return array_of(places, count);
}

template <class Index>
void bind(nb::module_& m, const char* name) {
  nb::class_<Sampler<Index>>(m, name, "Draws in-edges of a graph; see runtime/sampling/sampler.py.")
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
