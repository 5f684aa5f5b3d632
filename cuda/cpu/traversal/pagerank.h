// PageRank by pulling: each row sums the shares of its sources.
//
// Brin, Page: "The Anatomy of a Large-Scale Hypertextual Web Search Engine", 1998, with the rank of rows without
// out-edges spread over all rows. Each iteration takes the values of the one before (Jacobi), so that results have the
// same bits for any number of threads.
//
// Rows of about as many edges are summed side by side, an edge of each in turn, so that no branch depends on how many
// edges a row has (Kreutzer et al.: "A Unified Sparse Matrix Data Format for Efficient General Sparse Matrix-Vector
// Multiplication on Modern Processors with Wide SIMD Units", SIAM J. Sci. Comput. 36, 2014). Their edges lie in that
// order; rows of many edges are summed alone.
#pragma once
#include <vector>

#include "cpu/traversal/graph.h"

namespace mgg {

template <class T>
class PageRank {
 public:
  // out_degree: of this rank's rows, over all ranks. total: rows of all ranks. share: [edges], in the order of graph.in,
  // a factor of what each edge carries; or null, where all are 1.
  PageRank(const TraversalGraph& graph, const int32_t* out_degree, int64_t total, const T* share);

  struct Totals {
    double change;    // sum of |new - old| over this rank's rows
    double dangling;  // rank of its rows without out-edges
  };
  // rank: [rows], which are set to 1 / total. given: [rows], the share that each row gives along each of its edges, for
  // other ranks.
  Totals begin(T* rank, T* given, double damping);
  // Takes the shares of the halo's rows at `slots`, and sums. dangling: sum of the ranks of all rows without out-edges.
  Totals advance(const int32_t* slots, const T* arrived, int64_t count, double dangling);

 private:
  struct Part {
    double change = 0, dangling = 0;
  };
  static constexpr int side = 8;  // rows that are summed side by side
  // Rows order_[row] .. order_[row + side - 1], of which the last ones may be missing; or a row of many edges.
  struct Slice {
    int64_t row, first;  // of order_; of indices_, or of the graph's edges where the row is alone
    int32_t rows, edges;
    bool alone;
  };
  void slice(int64_t begin, int64_t end);
  template <bool SHARED>
  void sum(const Slice& slice, double base, Part& part);
  void store(int64_t row, T next, Part& part);
  void give(Values<T>& values, int64_t row, T value);
  Totals total_of_parts() const;

  const TraversalGraph graph_;
  const int64_t total_;
  std::vector<Slice> slices_;
  std::vector<int32_t> order_;    // rows, by number of edges within a window
  Values<int32_t> indices_;       // of each slice an edge of each row, then the next one of each
  Values<T> shares_;              // of the same edges, 0 where one is missing; empty without shares
  std::vector<int64_t> first_;    // slices of each part of the work
  std::vector<Part> parts_;       // summed in order
  Values<T> inverse_;             // damping / out-degree of each row, 0 without out-edges
  Values<T> values_, next_;       // share of each source, and 0 for missing edges of a slice; swapped
  const int32_t* out_degree_;
  const T* share_;
  T* rank_ = nullptr;
  T* given_ = nullptr;
  double damping_ = 0;
};

}  // namespace mgg
