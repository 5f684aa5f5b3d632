// PageRank by pulling: each row sums what its sources give it.
//
// Brin, Page: "The Anatomy of a Large-Scale Hypertextual Web Search Engine", 1998, with the rank of rows without out-edges
// spread over all rows. Each iteration takes the values of the one before (Jacobi), so that results have the same bits
// for any number of threads.
#pragma once
#include <vector>

#include "cpu/traversal/graph.h"

namespace mgg {

template <class T>
class PageRank {
 public:
  // out_degree: of this rank's rows, over all ranks. total: rows of all ranks.
  PageRank(const TraversalGraph& graph, const int32_t* out_degree, int64_t total);

  struct Totals {
    double change;    // sum of |new - old| over this rank's rows
    double dangling;  // rank of its rows without out-edges
  };
  // rank: [rows], which are set to 1 / total. given: [rows], what each row gives along each of its edges.
  Totals begin(T* rank, T* given, double damping);
  // Takes what the halo's rows give at `slots`, and sums. dangling: rank of all rows without out-edges, of all ranks.
  Totals advance(const int32_t* slots, const T* arrived, int64_t count, double dangling);

 private:
  struct Part {
    double change = 0, dangling = 0;
  };
  Totals total_of_parts() const;
  const TraversalGraph graph_;
  const int64_t total_;
  Runs runs_;
  std::vector<Part> parts_;    // of each run, summed in order
  std::vector<T> inverse_;     // damping / out-degree of each row, 0 without out-edges
  std::vector<T> values_;      // what each source gives; with one rank rows are sources, and `given` is written instead
  const int32_t* out_degree_;
  T* rank_ = nullptr;
  T* given_ = nullptr;
  double damping_ = 0;
};

}  // namespace mgg
