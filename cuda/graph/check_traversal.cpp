// Checks of the results of traversals, edge by edge. None of them shares code with the kernels (traversal/checks.py).
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bind.h"

namespace {

using mgg::Flat;
using mgg::require;

constexpr int64_t none = -1;

struct Edges {
  int64_t rows;
  const int64_t* indptr;
  const int32_t* indices;
  const int32_t* slot;  // of each row among the sources
};

Edges edges_of(const Flat<const int64_t>& indptr, const Flat<const int32_t>& indices, const Flat<const int32_t>& slot) {
  require(indptr.size() == slot.size() + 1, "check: an offset and a slot for each row");
  return {static_cast<int64_t>(slot.size()), indptr.data(), indices.data(), slot.data()};
}

// Returns the first row for which wrong(row) is true, or -1.
template <class Wrong>
int64_t first_wrong(const Edges& graph, Wrong&& wrong) {
  int64_t first = graph.rows;
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(dynamic, 256) reduction(min : first)
  for (int64_t row = 0; row < graph.rows; ++row)
    if (row < first && wrong(row)) first = row;
  return first == graph.rows ? none : first;
}

// Graph500's rules for a parent: it is the source of an edge into the row, and one level above it. skipped_level checks
// the other rules: edges skip no level, and none leads from a reached row to one that is not.
int64_t wrong_parent(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const int32_t> slot,
                     Flat<const int32_t> parent, Flat<const int32_t> depth, int64_t root) {
  const Edges graph = edges_of(indptr, indices, slot);
  require(parent.size() == slot.size(), "check: a parent for each row");
  const int32_t *above = parent.data(), *level = depth.data();
  return first_wrong(graph, [&](int64_t row) {
    const int32_t mine = level[graph.slot[row]];
    if (row == root) return mine != 0 || above[row] != graph.slot[row];
    if (mine < 0) return above[row] != none;
    if (mine == 0 || above[row] < 0 || above[row] >= static_cast<int64_t>(depth.size())) return true;
    if (level[above[row]] != mine - 1) return true;
    const int32_t* first = graph.indices + graph.indptr[row];
    return std::find(first, graph.indices + graph.indptr[row + 1], above[row]) == graph.indices + graph.indptr[row + 1];
  });
}

// Returns the first row with an edge for which wrong(value of the row, value of the source, edge) is true, or -1.
template <class T, class Wrong>
int64_t first_wrong_edge(const Edges& graph, const T* value, Wrong&& wrong) {
  return first_wrong(graph, [&](int64_t row) {
    const T mine = value[graph.slot[row]];
    for (int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e)
      if (wrong(mine, value[graph.indices[e]], e)) return true;
    return false;
  });
}

int64_t skipped_level(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const int32_t> slot,
                      Flat<const int32_t> depth) {
  return first_wrong_edge(edges_of(indptr, indices, slot), depth.data(), [](int32_t mine, int32_t source, int64_t) {
    return source >= 0 && (mine < 0 || mine > source + 1);
  });
}

// An edge makes a path of its length beyond its source's distance; sums are of the distances' type.
int64_t longer_distance(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const int32_t> slot,
                        Flat<const float> length, Flat<const float> distance) {
  require(length.size() == indices.size(), "check: a length for each edge");
  return first_wrong_edge(edges_of(indptr, indices, slot), distance.data(),
                          [along = length.data()](float mine, float source, int64_t e) {
                            return !(mine <= source + along[e]);
                          });
}

int64_t differing_label(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const int32_t> slot,
                        Flat<const int64_t> label) {
  return first_wrong_edge(edges_of(indptr, indices, slot), label.data(),
                          [](int64_t mine, int64_t source, int64_t) { return source != mine; });
}

// Marks what can be reached from the sources in `from`. With distances it follows only edges whose length is the
// difference of the distances of their ends.
void spread(Flat<const int64_t> out_indptr, Flat<const int32_t> out_indices, Flat<const int32_t> slot,
            Flat<const float> length, Flat<const float> distance, Flat<const int32_t> from, Flat<uint8_t> reached) {
  require(out_indptr.size() == reached.size() + 1, "spread: a mark for each source");
  require(length.size() == 0 || (length.size() == out_indices.size() && distance.size() == reached.size()),
          "spread: a length for each edge, and a distance for each source");
  const int64_t* indptr = out_indptr.data();
  const int32_t *row = out_indices.data(), *of = slot.data();
  const float* along = length.size() ? length.data() : nullptr;
  const float* at = distance.data();
  uint8_t* marks = reached.data();
  std::vector<int32_t> queue(from.data(), from.data() + from.size());
  nb::gil_scoped_release release;
  for (const int32_t source : queue) marks[source] = 1;
  for (size_t i = 0; i < queue.size(); ++i)
    for (int64_t e = indptr[queue[i]]; e < indptr[queue[i] + 1]; ++e) {
      const int32_t target = of[row[e]];
      if (marks[target] || (along && at[target] != at[queue[i]] + along[e])) continue;
      marks[target] = 1;
      queue.push_back(target);
    }
}

// Adds the value of each source, times the weight of the edge, to all rows that the source has an edge to.
void push(Flat<const int64_t> out_indptr, Flat<const int32_t> out_indices, Flat<const float> weight,
          Flat<const double> value, Flat<double> out) {
  require(out_indptr.size() == value.size() + 1, "push: a value for each source");
  require(weight.size() == 0 || weight.size() == out_indices.size(), "push: a weight for each edge");
  const float* factor = weight.size() ? weight.data() : nullptr;
  const auto sources = static_cast<int64_t>(value.size());
  const int64_t* indptr = out_indptr.data();
  const int32_t* row = out_indices.data();
  nb::gil_scoped_release release;
  for (int64_t source = 0; source < sources; ++source)
    for (int64_t e = indptr[source]; e < indptr[source + 1]; ++e)
      out.data()[row[e]] += factor ? factor[e] * value.data()[source] : value.data()[source];
}

}  // namespace

void bind_check_traversal(nb::module_& m) {
  m.def("wrong_parent", &wrong_parent, "indptr"_a.noconvert(), "indices"_a.noconvert(), "slot"_a.noconvert(),
        "parent"_a.noconvert(), "depth"_a.noconvert(), "root"_a,
        R"(Return the first row whose parent has no edge to it, or lies not one level above it; -1 without.

indptr int64 [n + 1], indices int32 [E]: sources of the edges into each row. slot: int32 [n], the row's own number among
the sources. parent: int32 [n], a source, or -1. depth: int32 [S], of each source, or -1. root: a row, or -1.)");
  m.def("skipped_level", &skipped_level, "indptr"_a.noconvert(), "indices"_a.noconvert(), "slot"_a.noconvert(),
        "depth"_a.noconvert(), R"(Return the first row that is more than one level below a source of an edge into it; or -1.

Arguments as of wrong_parent.)");
  m.def("longer_distance", &longer_distance, "indptr"_a.noconvert(), "indices"_a.noconvert(), "slot"_a.noconvert(),
        "length"_a.noconvert(), "distance"_a.noconvert(), R"(Return the first row to which an edge is a shorter way; or -1.

length: float32 [E]. distance: float32 [S], of each source. Others as of wrong_parent.)");
  m.def("differing_label", &differing_label, "indptr"_a.noconvert(), "indices"_a.noconvert(), "slot"_a.noconvert(),
        "label"_a.noconvert(), R"(Return the first row with an edge from a source of another label; -1 without.

label: int64 [S], of each source. Others as of wrong_parent.)");
  m.def("spread", &spread, "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "slot"_a.noconvert(),
        "length"_a.noconvert(), "distance"_a.noconvert(), "from_"_a.noconvert(), "reached"_a.noconvert(),
        R"(Mark what can be reached from sources.

out_indptr int64 [S + 1], out_indices int32 [E]: rows that each source has edges to. slot: int32 [n]. length: float32
[E], and distance: float32 [S], to follow only edges as long as distances differ; or [0]. from_: int32, the sources.
reached: uint8 [S], 1 where a source is reached already.)");
  m.def("push", &push, "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "weight"_a.noconvert(),
        "value"_a.noconvert(), "out"_a.noconvert(), R"(Add each source's value, times the weight, along all edges.

out_indptr int64 [S + 1], out_indices int32 [E]. weight: float32 [E], or [0] for 1. value: float64 [S]. out: float64
[n].)");
}
