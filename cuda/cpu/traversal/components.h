// Connected components of an undirected graph by linking trees of sources, most of which need only their first edges.
//
// Sutton, Ben-Nun, Barak: "Optimizing Parallel Graph Connectivity Computation via Subgraph Sampling" (Afforest), IPDPS
// 2018. Each rank finds the components of its own edges, halo included; labels then cross until none gets smaller.
#pragma once
#include <vector>

#include "cpu/traversal/graph.h"

namespace mgg {

class Components {
 public:
  explicit Components(const TraversalGraph& graph) : graph_(graph), parent_(graph.sources) {}

  // Links this rank's edges: parent_ is the root of each source then.
  void link();
  // Labels each tree by the smallest of its members' names, int64 [sources].
  void name(const int64_t* names);
  // label: int64 [rows], of each row's tree.
  void labels(int64_t* label) const;
  // Takes labels that arrived for the sources at `slots`; returns how many trees have a smaller one now.
  int64_t arrive(const int32_t* slots, const int64_t* arrived, int64_t count);

 private:
  void link(int32_t u, int32_t v);
  void compress();
  int32_t largest() const;  // the root of most of a sample of sources

  const TraversalGraph graph_;
  Values<int32_t> parent_;  // never larger than the source itself
  Values<int64_t> label_;   // of roots
};

}  // namespace mgg
