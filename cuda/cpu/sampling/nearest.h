// k of a row's edges, one after the other, each with probability proportional to its weight among those that are left:
// those with the k smallest keys (mgg/sampling.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/philox.h"
#include "cpu/sampling/sample.h"
#include "mgg/sampling.h"

namespace mgg {
namespace MGG_ISA {
namespace {

class Nearest {
 public:
  Nearest(std::vector<std::pair<double, int64_t>>& heap, const SampleKey& key) : heap_(heap), key_(key) {}

  // Leaves the edges with the k smallest keys in found(), (key, place in the row), ascending by place, k = -1: all of
  // positive weight. Returns the next smallest key; infinity if no edge is left.
  double choose(const float* weight, int64_t degree, int64_t k, uint32_t stream, uint64_t id) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto most = k < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(k) + 1;
    double bound = infinity;
    heap_.clear();
    for (int64_t first = 0; first < degree; first += edges_at_once) {
      const int count = static_cast<int>(std::min<int64_t>(edges_at_once, degree - first));
      keys_of(weight + first, first, count, stream, id);
      for (int i = 0; i < count; ++i) {
        if (!(keys_[i] < bound)) continue;
        if (heap_.size() == most) std::pop_heap(heap_.begin(), heap_.end()), heap_.pop_back();
        heap_.emplace_back(keys_[i], first + i);
        if (k >= 0) std::push_heap(heap_.begin(), heap_.end());
        if (heap_.size() == most) bound = heap_.front().first;
      }
    }
    if (heap_.size() == most) std::pop_heap(heap_.begin(), heap_.end()), heap_.pop_back();
    std::sort(heap_.begin(), heap_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return bound;
  }

  const std::vector<std::pair<double, int64_t>>& found() const { return heap_; }

 private:
  static constexpr int quads = 32, edges_at_once = 2 * quads;  // an edge takes two words

  void keys_of(const float* weight, int64_t first, int count, uint32_t stream, uint64_t id) {
    const int drawn = (count + 1) / 2;
#pragma omp simd
    for (int quad = 0; quad < drawn; ++quad)
      counters_.set(quad, node_counter(key_.step, stream, id, first / 2 + quad));
    counters_.draw(drawn, key_.seed);
#pragma omp simd
    for (int i = 0; i < count; ++i) keys_[i] = edge_key(counters_.word[2 * i], counters_.word[2 * i + 1], weight[i]);
  }

  std::vector<std::pair<double, int64_t>>& heap_;
  const SampleKey key_;
  Counters<quads> counters_;
  double keys_[edges_at_once];
};

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
