// k of a row's edges, one after the other, each with probability proportional to its weight among those that are left:
// the k smallest of Exp(1) / weight (Efraimidis and Spirakis, IPL 2006).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/philox.h"
#include "cpu/sampling/sample.h"

namespace mgg {
namespace MGG_ISA {
namespace {

// -log((2 bits + 1) / 2^53) for bits below 2^52. Additions, multiplications and divisions alone: the same bits on all
// processors, many values at a time. For x = m 2^n, m in [sqrt(1/2), sqrt(2)): log x = n log 2 + 2 artanh(s), where
// s = (m - 1) / (m + 1), and the terms of the series after the 11th are less than a rounding.
inline double exponential(uint64_t bits) {
  const double x = static_cast<double>(static_cast<int64_t>(2 * bits + 1)) * 0x1p-53;
  constexpr uint64_t root = 0x3FE6A09E667F3BCDu;  // the bits of sqrt(1/2)
  uint64_t whole;
  std::memcpy(&whole, &x, sizeof whole);
  const int64_t n = static_cast<int64_t>(whole - root) >> 52;
  whole -= static_cast<uint64_t>(n) << 52;
  double m;
  std::memcpy(&m, &whole, sizeof m);
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 1.0 / 21;
  series = series * z + 1.0 / 19, series = series * z + 1.0 / 17, series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13, series = series * z + 1.0 / 11, series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7, series = series * z + 1.0 / 5, series = series * z + 1.0 / 3;
  return -(static_cast<double>(n) * 0.693147180559945309417 + (2 * s + 2 * s * z * series));
}

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

  // An edge of weight 0 has an infinite key.
  void keys_of(const float* weight, int64_t first, int count, uint32_t stream, uint64_t id) {
    const int drawn = (count + 1) / 2;
#pragma omp simd
    for (int quad = 0; quad < drawn; ++quad)
      counters_.set(quad, node_counter(key_.step, stream, id, first / 2 + quad));
    counters_.draw(drawn, key_.seed);
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const uint64_t bits = uint64_t(counters_.word[2 * i]) << 20 | counters_.word[2 * i + 1] >> 12;
      keys_[i] = exponential(bits) / static_cast<double>(weight[i]);
    }
  }

  std::vector<std::pair<double, int64_t>>& heap_;
  const SampleKey key_;
  Counters<quads> counters_;
  double keys_[edges_at_once];
};

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
