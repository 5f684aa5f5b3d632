// Breadth-first search that follows edges out of the frontier where it is small, and into rows that are not reached yet
// where it is large.
//
// Beamer, Asanovic, Patterson: "Direction-Optimizing Breadth-First Search", SC '12. Which of the two a rank takes is its
// own choice: a row's parent is the first of its sources on the level before, either way.
#pragma once
#include <vector>

#include "cpu/traversal/graph.h"

namespace mgg {

class Bfs {
 public:
  explicit Bfs(const TraversalGraph& graph);

  // parent: for each row its source in the tree, its own slot at the root, -1 where it is not reached. depth: of each
  // row, or -1. source: its slot if this rank knows it, else -1; row: its row if this rank owns it, else -1.
  void begin(int32_t* parent, int32_t* depth, int64_t source, int64_t row);
  // Goes one level further; returns how many rows of this rank are on it.
  int64_t advance();
  // Adds arrived rows to the frontier: depths of the rows at `slots`.
  void arrive(const int32_t* slots, const int32_t* depth, int64_t count);

 private:
  struct alignas(64) Found {  // by a thread
    std::vector<int32_t> sources;
    int64_t edges, first;  // out of them; place in the queue
  };
  void down();  // out of the frontier
  void reach_from(int32_t source, Found& mine);
  void up();    // into rows that are not reached
  bool is_large() const;  // whether `up` looks at fewer edges
  void to_queue();
  void to_bits();

  const TraversalGraph graph_;
  Values<int32_t> head_;  // the first source of each row; -1 without edges
  Bits reached_, reached_at_first_, front_, next_;  // reached_: while the search goes up
  std::vector<int32_t> queue_;
  std::vector<Found> found_;
  int32_t* parent_ = nullptr;
  int32_t* depth_ = nullptr;
  int32_t level_ = 0;
  bool up_ = false;           // the frontier is in bits, and not in the queue
  int64_t frontier_ = 0;      // rows and halo on the level
  int64_t before_ = 0;        // the same of the level before
  int64_t out_edges_ = 0;     // of the frontier, while it is in the queue
  int64_t reachable_ = 0;     // rows with edges
  int64_t unreached_ = 0;     // of these, rows that are on no level yet
};

}  // namespace mgg
