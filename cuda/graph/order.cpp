// Rabbit order: a numbering of rows that keeps communities, and the communities within them, together.
//
// Arai, Shiokawa, Yamamuro, Onizuka, Iwamura: "Rabbit Order: Just-in-time Parallel Reordering for Fast Graph
// Analysis", IPDPS 2016. Vertices are taken by ascending degree; each is merged into the neighbour
// with the largest gain in modularity, if there is a gain. A merged vertex's edges wait at it and are added to its
// owner's only when that one's turn comes (the paper's lazy aggregation), so the work is linear in the edges but
// for the few levels that an edge moves up. A depth-first walk over the merges numbers the vertices.
//
// One thread, sums of integers, ties to the lower number: the same graph gives the same order everywhere.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "bind.h"

namespace {

using mgg::Flat;

struct Edge {
  int32_t end;
  uint32_t weight;  // how many edges it stands for
};

class Dendrogram {
 public:
  Dendrogram(const int64_t* indptr, const int32_t* indices, int32_t nodes)
      : indptr_(indptr), indices_(indices), nodes_(nodes), total_(static_cast<double>(indptr[nodes])), owner_(nodes),
        first_child_(nodes, none), sibling_(nodes, none), done_(nodes, false), strength_(nodes), waiting_(nodes),
        weight_to_(nodes, 0) {
    std::iota(owner_.begin(), owner_.end(), 0);
    for (int32_t v = 0; v < nodes; ++v) strength_[v] = degree(v);
    for (const int32_t v : by_degree()) merge(v);
  }

  // Communities by the number of their top vertex; in each a vertex, then its children in the order of merging.
  void number(int64_t* order) const {
    std::vector<int32_t> stack;
    for (int32_t top = 0; top < nodes_; ++top) {
      if (owner_[top] != top) continue;
      stack.push_back(top);
      while (!stack.empty()) {
        const int32_t v = stack.back();
        stack.pop_back();
        *order++ = v;
        for (int32_t child = first_child_[v]; child != none; child = sibling_[child]) stack.push_back(child);
      }
    }
  }

  // The edges of each vertex whose other end is in the same community.
  void count_inside(int64_t* inside) {
    for (int32_t v = 0; v < nodes_; ++v) {
      const int32_t top = top_of(v);
      inside[v] = 0;
      for (int64_t e = indptr_[v]; e < indptr_[v + 1]; ++e) inside[v] += top_of(indices_[e]) == top;
    }
  }

 private:
  static constexpr int32_t none = -1;

  int64_t degree(int32_t v) const { return indptr_[v + 1] - indptr_[v]; }

  std::vector<int32_t> by_degree() const {
    std::vector<int32_t> sorted(nodes_);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return degree(a) < degree(b); });
    return sorted;
  }

  int32_t top_of(int32_t v) {
    while (owner_[v] != v) v = owner_[v] = owner_[owner_[v]];
    return v;
  }

  void add(int32_t end, int64_t weight, int32_t self) {
    const int32_t top = top_of(end);
    if (top == self) return;
    if (weight_to_[top] == 0) touched_.push_back(top);
    weight_to_[top] += weight;
  }

  // The edges of v and of all that was merged into it, by the vertices that own their other ends by now.
  void gather(int32_t v) {
    for (int64_t e = indptr_[v]; e < indptr_[v + 1]; ++e) add(indices_[e], 1, v);
    for (int32_t child = first_child_[v]; child != none; child = sibling_[child]) {
      for (const Edge& edge : waiting_[child]) add(edge.end, edge.weight, v);
      std::vector<Edge>().swap(waiting_[child]);
    }
  }

  // Merging v into u changes modularity by 2 (w(u, v) / 2m - d(u) d(v) / (2m)^2); w 2m - d d has its sign and order.
  int32_t best_neighbour(int32_t v) const {
    int32_t best = none;
    double best_gain = 0;
    for (const int32_t u : touched_) {
      const double gain = static_cast<double>(weight_to_[u]) * total_ -
                          static_cast<double>(strength_[u]) * static_cast<double>(strength_[v]);
      if (gain > best_gain || (best != none && gain == best_gain && u < best)) best = u, best_gain = gain;
    }
    return best;
  }

  void merge(int32_t v) {
    gather(v);
    const int32_t best = best_neighbour(v);
    done_[v] = true;
    if (best != none) {
      owner_[v] = best;
      strength_[best] += strength_[v];
      sibling_[v] = first_child_[best];
      first_child_[best] = v;
    }
    const bool wanted = best != none && !done_[best];  // no turn is left to those that are done
    if (wanted) waiting_[v].reserve(touched_.size());
    constexpr int64_t most = std::numeric_limits<uint32_t>::max();
    for (const int32_t u : touched_) {
      if (wanted && u != best) waiting_[v].push_back({u, static_cast<uint32_t>(std::min(weight_to_[u], most))});
      weight_to_[u] = 0;
    }
    touched_.clear();
  }

  const int64_t* indptr_;
  const int32_t* indices_;
  int32_t nodes_;
  double total_;                                      // 2m
  std::vector<int32_t> owner_;                        // the vertex merged into; itself at the top
  std::vector<int32_t> first_child_, sibling_;        // what was merged into a vertex, the last one first
  std::vector<bool> done_;
  std::vector<int64_t> strength_;                     // summed degrees of a community, at its top
  std::vector<std::vector<Edge>> waiting_;
  std::vector<int64_t> weight_to_;                    // 0 but for those in touched_
  std::vector<int32_t> touched_;
};

void check(const Flat<const int64_t>& indptr, const Flat<const int32_t>& indices, size_t nodes) {
  if (nodes > std::numeric_limits<int32_t>::max()) throw std::invalid_argument("order: more than 2**31 - 1 rows");
  if (indptr.size() != nodes + 1) throw std::invalid_argument("order: one place for each row");
  const int64_t* offset = indptr.data();
  if (offset[0] != 0 || offset[nodes] != static_cast<int64_t>(indices.size()) ||
      !std::is_sorted(offset, offset + nodes + 1))
    throw std::invalid_argument("order: indptr goes from 0 to the number of edges and never decreases");
  for (size_t e = 0; e < indices.size(); ++e)
    if (indices.data()[e] < 0 || static_cast<size_t>(indices.data()[e]) >= nodes)
      throw std::invalid_argument("order: an edge names no row");
}

void rabbit_order(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<int64_t> order,
                  Flat<int64_t> inside) {
  check(indptr, indices, order.size());
  if (inside.size() != order.size()) throw std::invalid_argument("order: one count for each row");
  nb::gil_scoped_release release;
  Dendrogram merges(indptr.data(), indices.data(), static_cast<int32_t>(order.size()));
  merges.number(order.data());
  merges.count_inside(inside.data());
}

}  // namespace

void bind_order(nb::module_& m) {
  m.def("rabbit_order", &rabbit_order, "indptr"_a.noconvert(), "indices"_a.noconvert(), "order"_a.noconvert(),
        "inside"_a.noconvert(), R"(Number the vertices so that communities lie in a row.

indptr int64 [N + 1], indices int32 [E]: a symmetric pattern. order int64 [N] is filled with a permutation, new -> old;
inside int64 [N] with the number of each row's edges to its own community. Raises ValueError for arrays that are no
CSR.)");
}
