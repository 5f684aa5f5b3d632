// How many columns of a wide row one sweep over the edges takes: all of them, or a slice.
//
// Slices of a few lines let more rows share a cache, where sources lie far apart; whole rows cost fewer instructions,
// where rows come from the cache anyway. Which one is faster depends on the graph, its order and the machine, and both
// give the same bits: so the first calls use them alternately, and later ones the faster one.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <utility>

namespace mgg {

constexpr int64_t slice_bytes = 256;         // four lines of each row
constexpr int64_t worth_trying = 64 << 20;   // bytes of all rows read by a call; smaller ones lie in the caches
constexpr int tries = 3;                     // of whole rows, and of slices
constexpr int settled = 1 + 2 * tries;       // calls after which one of them is chosen
constexpr double better = 0.97;              // share of the time of whole rows that slices may take to be chosen

// The choice of one schedule, for each width and type of rows.
class Sweeps {
 public:
  // Columns for the next call's sweeps over rows of `stride` values of `size` bytes, which reads `edges` of them.
  int64_t columns(int64_t stride, int64_t size, int64_t edges) const {
    if (stride * size < 2 * slice_bytes || edges * stride * size < worth_trying) return stride;
    return sliced({stride, size}) ? slice_bytes / size : stride;
  }

  // Enters the seconds of a call that swept `columns` at a time.
  void took(int64_t stride, int64_t size, int64_t columns, double seconds) {
    Tried& tried = tried_[{stride, size}];
    // The first call finds cold caches, and pages that no one touched.
    double& least = tried.least[columns < stride];
    if (tried.calls++ > 0 && (least == 0 || seconds < least)) least = seconds;
  }

 private:
  using Format = std::pair<int64_t, int64_t>;
  struct Tried {
    int calls = 0;
    std::array<double, 2> least{};  // seconds: whole rows, slices
  };

  bool sliced(const Format& format) const {
    const auto found = tried_.find(format);
    if (found == tried_.end()) return false;
    const Tried& tried = found->second;
    if (tried.calls < settled) return tried.calls % 2 == 1;
    return tried.least[1] < better * tried.least[0];
  }

  std::map<Format, Tried> tried_;
};

}  // namespace mgg
