// Shortest paths from one source by buckets of distances.
//
// Meyer, Sanders: "Delta-stepping: a parallelizable shortest path algorithm", J. Algorithms 49 (2003); threads finish
// small buckets by themselves as in Zhang et al.: "Optimizing Ordered Graph Algorithms with GraphIt", CGO 2020.
// A distance is the least sum over all paths, each rounded from the source on, so results have the same bits for any
// number of threads and ranks.
#pragma once
#include <algorithm>
#include <vector>

#include "cpu/traversal/graph.h"

namespace mgg {

struct WeightedEdge {  // an edge out of a source
  int32_t slot;
  float length;  // at least 0
};

class Sssp {
 public:
  // edges: in the order of graph.out. width: of a bucket, above 0.
  Sssp(const TraversalGraph& graph, const WeightedEdge* edges, double width);

  void begin(int64_t source);  // its slot, or -1 if it is no source of this rank
  // The first bucket that has sources, or -1.
  int64_t next();
  // Settles the sources of a bucket as far as this rank's edges say, and fills later ones.
  void advance(int64_t bucket);
  // Takes distances that arrived for the sources at `slots`.
  void arrive(const int32_t* slots, const float* distance, int64_t count);
  void distances(float* out) const;  // [rows]; infinite where a row is not reached

 private:
  static constexpr int64_t window = 1024;  // buckets that are kept apart; one more has all sources further on
  struct alignas(64) Bins {
    std::vector<std::vector<int32_t>> of = std::vector<std::vector<int32_t>>(window + 1);
  };
  int64_t bucket_of(float distance) const {
    return static_cast<int64_t>(std::min(static_cast<double>(distance) * scale_, 4e18));
  }
  void put(Bins& bins, int32_t slot, int64_t bucket);
  void prefetch(const std::vector<int32_t>& sources, int64_t i) const;
  void relax(Bins& bins, int32_t slot, int64_t bucket);
  bool refill();  // moves the window to the first bucket after it that has sources
  void move_window(int64_t first);

  const TraversalGraph graph_;
  const WeightedEdge* edges_;
  const double scale_;  // buckets for each unit of distance
  Values<float> distance_, relaxed_;  // of each source; the distance with which its edges were looked at last
  std::vector<Bins> bins_;                 // of each thread
  std::vector<int32_t> frontier_;
  int64_t base_ = 0;   // the first bucket of the window
  int64_t first_ = 0;  // buckets of the window before this one are empty
};

}  // namespace mgg
