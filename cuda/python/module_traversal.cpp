// Binds traversals of a rank's edges (cpu/traversal). Each goes one step at a time; the caller exchanges values between
// ranks between steps.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cmath>
#include <limits>
#include <memory>

#include "cpu/traversal/bfs.h"
#include "cpu/traversal/components.h"
#include "cpu/traversal/pagerank.h"
#include "cpu/traversal/sssp.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::require;
using releases_gil = nb::call_guard<nb::gil_scoped_release>;

// Keeps the arrays that a graph is made of.
class HeldGraph {
 public:
  HeldGraph(Flat<const int64_t> in_indptr, Flat<const int32_t> in_indices, Flat<const int64_t> out_indptr,
            Flat<const int32_t> out_indices, std::optional<Flat<const int32_t>> slot, int threads)
      : in_indptr_(in_indptr), in_indices_(in_indices), out_indptr_(out_indptr), out_indices_(out_indices), slot_(slot) {
    require(threads >= 1, "threads: at least 1");
    require(in_indptr.size() > 0 && out_indptr.size() > 0, "graph: offsets begin with 0");
    const int64_t rows = static_cast<int64_t>(in_indptr.size()) - 1;
    const int64_t sources = static_cast<int64_t>(out_indptr.size()) - 1;
    check("in-edges", in_indptr, in_indices, sources);
    check("out-edges", out_indptr, out_indices, rows);
    require(slot || rows == sources, "graph: rows that are all sources, or a slot for each");
    require(!slot || static_cast<int64_t>(slot->size()) == rows, "graph: a slot for each row");
    for (int64_t row = 0; slot && row < rows; ++row)
      require(slot->data()[row] >= 0 && slot->data()[row] < sources, "graph: a slot names no source");
    graph_ = {rows, sources, slot ? slot->data() : nullptr, {in_indptr.data(), in_indices.data()},
              {out_indptr.data(), out_indices.data()}, threads};
  }
  const mgg::TraversalGraph& graph() const { return graph_; }
  int64_t edges() const { return static_cast<int64_t>(in_indices_.size()); }

  // Slots of rows that arrive, each below the number of sources.
  void check_slots(const Flat<const int32_t>& slots, size_t values) const {
    require(slots.size() == values, "arrive: a value for each slot");
    for (size_t i = 0; i < slots.size(); ++i)
      require(slots.data()[i] >= 0 && slots.data()[i] < graph_.sources, "arrive: a slot names no source");
  }

 private:
  static void check(const char* what, const Flat<const int64_t>& indptr, const Flat<const int32_t>& indices,
                    int64_t limit) {
    const auto rows = static_cast<int64_t>(indptr.size()) - 1, edges = static_cast<int64_t>(indices.size());
    const int64_t* offset = indptr.data();
    bool sound = offset[0] == 0 && offset[rows] == edges && limit <= std::numeric_limits<int32_t>::max();
    for (int64_t row = 0; row < rows; ++row) sound &= offset[row] <= offset[row + 1];
    const int32_t* index = indices.data();
#pragma omp parallel for schedule(static) reduction(&& : sound)
    for (int64_t e = 0; e < edges; ++e) sound = sound && index[e] >= 0 && index[e] < limit;
    if (!sound) throw std::invalid_argument(std::string("graph: ") + what + " are no CSR");
  }

  Flat<const int64_t> in_indptr_;
  Flat<const int32_t> in_indices_;
  Flat<const int64_t> out_indptr_;
  Flat<const int32_t> out_indices_;
  std::optional<Flat<const int32_t>> slot_;
  mgg::TraversalGraph graph_{};
};

class HeldBfs {
 public:
  explicit HeldBfs(const HeldGraph& held) : held_(held), bfs_(held.graph()) {}
  void begin(Flat<int32_t> parent, Flat<int32_t> depth, int64_t source, int64_t row) {
    const mgg::TraversalGraph& graph = held_.graph();
    require(static_cast<int64_t>(parent.size()) == graph.rows && parent.size() == depth.size(),
            "begin: a parent and a depth for each row");
    require(source >= -1 && source < graph.sources && row >= -1 && row < graph.rows && (row < 0 || source >= 0),
            "begin: no such source");
    parent_ = parent, depth_ = depth;
    nb::gil_scoped_release release;
    bfs_.begin(parent.data(), depth.data(), source, row);
  }
  int64_t advance() {
    require(depth_.is_valid(), "advance: begin first");
    return bfs_.advance();
  }
  void arrive(Flat<const int32_t> slots, Flat<const int32_t> depth) {
    held_.check_slots(slots, depth.size());
    bfs_.arrive(slots.data(), depth.data(), static_cast<int64_t>(slots.size()));
  }
  int64_t run() {
    int64_t levels = 0;
    while (advance()) ++levels;
    return levels;
  }

 private:
  const HeldGraph& held_;
  mgg::Bfs bfs_;
  Flat<int32_t> parent_, depth_;
};

class HeldSssp {
 public:
  HeldSssp(const HeldGraph& held, Flat<const float> length, double width) : held_(held) {
    const mgg::TraversalGraph& graph = held.graph();
    const auto edges = static_cast<int64_t>(length.size());
    require(edges == held.edges(), "length: one for each edge out of a source");
    require(width > 0 && std::isfinite(width) && std::isfinite(1 / width), "width: a finite number above 0");
    edges_.resize(edges);
    bool sound = true;
    nb::gil_scoped_release release;
#pragma omp parallel for schedule(static) reduction(&& : sound)
    for (int64_t e = 0; e < edges; ++e) {
      edges_[e] = {graph.slot_of(graph.out.indices[e]), length.data()[e]};
      sound = sound && length.data()[e] >= 0;
    }
    if (!sound) throw std::invalid_argument("length: negative, or not a number");
    sssp_ = std::make_unique<mgg::Sssp>(graph, edges_.data(), width);
  }
  void begin(int64_t source) {
    require(source >= -1 && source < held_.graph().sources, "begin: no such source");
    sssp_->begin(source);
  }
  int64_t next() { return sssp_->next(); }
  void advance(int64_t bucket) { sssp_->advance(bucket); }
  int64_t run() {
    int64_t buckets = 0;
    for (int64_t bucket = sssp_->next(); bucket >= 0; bucket = sssp_->next(), ++buckets) sssp_->advance(bucket);
    return buckets;
  }
  void arrive(Flat<const int32_t> slots, Flat<const float> distance) {
    held_.check_slots(slots, distance.size());
    sssp_->arrive(slots.data(), distance.data(), static_cast<int64_t>(slots.size()));
  }
  void distances(Flat<float> out) const {
    require(static_cast<int64_t>(out.size()) == held_.graph().rows, "distances: one for each row");
    sssp_->distances(out.data());
  }

 private:
  const HeldGraph& held_;
  mgg::Values<mgg::WeightedEdge> edges_;
  std::unique_ptr<mgg::Sssp> sssp_;
};

class HeldComponents {
 public:
  explicit HeldComponents(const HeldGraph& held) : held_(held), components_(held.graph()) {}
  void link(Flat<const int64_t> names) {
    require(static_cast<int64_t>(names.size()) == held_.graph().sources, "link: a name for each source");
    nb::gil_scoped_release release;
    components_.link();
    components_.name(names.data());
  }
  void labels(Flat<int64_t> out) const {
    require(static_cast<int64_t>(out.size()) == held_.graph().rows, "labels: one for each row");
    nb::gil_scoped_release release;
    components_.labels(out.data());
  }
  int64_t arrive(Flat<const int32_t> slots, Flat<const int64_t> label) {
    held_.check_slots(slots, label.size());
    return components_.arrive(slots.data(), label.data(), static_cast<int64_t>(slots.size()));
  }

 private:
  const HeldGraph& held_;
  mgg::Components components_;
};

template <class T>
class HeldPageRank {
 public:
  HeldPageRank(const HeldGraph& held, Flat<const int32_t> out_degree, int64_t total, std::optional<Flat<const T>> share)
      : held_(held), out_degree_(out_degree), share_(share) {
    require(static_cast<int64_t>(out_degree.size()) == held.graph().rows, "out_degree: one for each row");
    require(total > 0, "total: at least 1 row");
    require(!share || static_cast<int64_t>(share->size()) == held.edges(), "share: one for each edge");
    pagerank_ = std::make_unique<mgg::PageRank<T>>(held.graph(), out_degree.data(), total, share ? share->data() : nullptr);
  }
  auto begin(Flat<T> rank, Flat<T> given, double damping) {
    const auto rows = static_cast<size_t>(held_.graph().rows);
    require(rank.size() == rows && given.size() == rows, "begin: values of each row");
    require(damping > 0 && damping < 1, "damping: between 0 and 1");
    rank_ = rank, given_ = given;
    return pair_of(pagerank_->begin(rank.data(), given.data(), damping));
  }
  auto advance(Flat<const int32_t> slots, Flat<const T> arrived, double dangling) {
    held_.check_slots(slots, arrived.size());
    require(rank_.is_valid(), "advance: begin first");
    nb::gil_scoped_release release;
    return pair_of(pagerank_->advance(slots.data(), arrived.data(), static_cast<int64_t>(slots.size()), dangling));
  }

 private:
  static std::pair<double, double> pair_of(const typename mgg::PageRank<T>::Totals& totals) {
    return {totals.change, totals.dangling};
  }
  const HeldGraph& held_;
  Flat<const int32_t> out_degree_;
  std::optional<Flat<const T>> share_;
  std::unique_ptr<mgg::PageRank<T>> pagerank_;
  Flat<T> rank_, given_;
};

template <class T>
void bind_pagerank(nb::module_& m, const char* name) {
  nb::class_<HeldPageRank<T>>(m, name, R"(PageRank of a rank's rows.

out_degree: int32 [n], of the rows, over all ranks. total: rows of all ranks. share: [E] in the order of in_indices, a
factor of what each edge carries; None: 1.)")
      .def(nb::init<const HeldGraph&, Flat<const int32_t>, int64_t, std::optional<Flat<const T>>>(), "graph"_a,
           "out_degree"_a.noconvert(), "total"_a, "share"_a.noconvert().none(), nb::keep_alive<1, 2>())
      .def("begin", &HeldPageRank<T>::begin, "rank"_a.noconvert(), "given"_a.noconvert(), "damping"_a,
           "Set all ranks to 1 / total, and `given` [n] to the share of each row along each edge; return (0, dangling).")
      .def("advance", &HeldPageRank<T>::advance, "slots"_a.noconvert(), "arrived"_a.noconvert(), "dangling"_a,
           R"(Do one iteration; return this rank's sum of |new - old|, and the rank of its rows without out-edges.

slots: int32 [k]; arrived: [k], shares of the halo's rows. dangling: rank of all ranks' rows without out-edges.)");
}

}  // namespace

void bind_traversal(nb::module_& m) {
  nb::class_<HeldGraph>(m, "TraversalGraph", R"(One rank's edges for traversals.

in_indptr int64 [n + 1], in_indices int32 [E]: sources of each row's edges, ascending. out_indptr int64 [S + 1],
out_indices int32 [E]: rows that each source has edges to. slot: int32 [n], each row's own number among the sources,
ascending; None where row i is source i. Arrays are kept. Raises ValueError where they do not fit.)")
      .def(nb::init<Flat<const int64_t>, Flat<const int32_t>, Flat<const int64_t>, Flat<const int32_t>,
                    std::optional<Flat<const int32_t>>, int>(),
           "in_indptr"_a.noconvert(), "in_indices"_a.noconvert(), "out_indptr"_a.noconvert(),
           "out_indices"_a.noconvert(), "slot"_a.noconvert().none(), "threads"_a);
  nb::class_<HeldBfs>(m, "Bfs", "Breadth-first search.")
      .def(nb::init<const HeldGraph&>(), "graph"_a, nb::keep_alive<1, 2>())
      .def("begin", &HeldBfs::begin, "parent"_a.noconvert(), "depth"_a.noconvert(), "source"_a, "row"_a,
           R"(Begin at a source; parent and depth, int32 [n], are filled as rows are reached, and are -1 elsewhere.

source: its slot, or -1 where this rank does not know it. row: its row, or -1 where this rank does not own it.)")
      .def("advance", &HeldBfs::advance, releases_gil(), "Go one level further; return how many rows of this rank are on it.")
      .def("arrive", &HeldBfs::arrive, "slots"_a.noconvert(), "depth"_a.noconvert(),
           "Take the depths of the halo's rows, int32 [k] at slots int32 [k], after `advance`.")
      .def("run", &HeldBfs::run, releases_gil(), "Go on to the last level of a graph that this rank has alone; return its number.");
  nb::class_<HeldSssp>(m, "Sssp", R"(Shortest paths from a source.

length: float32 [E], at least 0, in the order of out_indices. width: distance that a bucket spans.)")
      .def(nb::init<const HeldGraph&, Flat<const float>, double>(), "graph"_a, "length"_a.noconvert(), "width"_a,
           nb::keep_alive<1, 2>())
      .def("begin", &HeldSssp::begin, "source"_a, releases_gil(), "Begin at a slot; -1 where this rank does not know it.")
      .def("next", &HeldSssp::next, "Return the first bucket with sources; -1 without.")
      .def("advance", &HeldSssp::advance, "bucket"_a, releases_gil(), "Settle a bucket as far as this rank's edges say.")
      .def("arrive", &HeldSssp::arrive, "slots"_a.noconvert(), "distance"_a.noconvert(),
           "Take the distances of the halo's rows, float32 [k] at slots int32 [k].")
      .def("run", &HeldSssp::run, releases_gil(), "Settle all buckets of a graph that this rank has alone; return their number.")
      .def("distances", &HeldSssp::distances, "out"_a.noconvert(), "Fill float32 [n]; inf where a row is not reached.");
  nb::class_<HeldComponents>(m, "Components", "Connected components of an undirected graph.")
      .def(nb::init<const HeldGraph&>(), "graph"_a, nb::keep_alive<1, 2>())
      .def("link", &HeldComponents::link, "names"_a.noconvert(),
           "Find the components of this rank's edges, and name each by the least of its sources' names, int64 [S].")
      .def("labels", &HeldComponents::labels, "out"_a.noconvert(), "Fill int64 [n] with the names.")
      .def("arrive", &HeldComponents::arrive, "slots"_a.noconvert(), "label"_a.noconvert(),
           "Take the names of the halo's rows, int64 [k] at slots int32 [k]; return how many components have a lesser one.");
  bind_pagerank<float>(m, "PageRank_float32");
  bind_pagerank<double>(m, "PageRank_float64");
}
