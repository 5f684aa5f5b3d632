// Rows of a graph and the ranks that own them, for plans (split.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "python/bindings.h"

namespace mgg {

constexpr size_t few = 1 << 15;  // edges for which threads cost more than they save

// The owner of a row: bounds[p] <= row < bounds[p + 1].
class Owners {
 public:
  explicit Owners(const Flat<const int64_t>& bounds)
      : bounds_(bounds.data()), parts_(static_cast<int64_t>(bounds.size()) - 1) {
    const int64_t rows = bounds_[parts_];
    while ((rows >> shift_) > 4 * parts_) ++shift_;
    first_.resize((rows >> shift_) + 1);
    int64_t p = 0;
    for (size_t at = 0; at < first_.size(); ++at) {
      while (p + 1 < parts_ && bounds_[p + 1] <= static_cast<int64_t>(at) << shift_) ++p;
      first_[at] = p;
    }
  }
  int64_t of(int64_t row) const {
    int64_t p = first_[row >> shift_];
    while (bounds_[p + 1] <= row) ++p;
    return p;
  }
  bool has(int64_t row) const { return row >= 0 && row < bounds_[parts_]; }
  int64_t parts() const { return parts_; }
  int64_t begin(int64_t p) const { return bounds_[p]; }

 private:
  const int64_t* bounds_;
  int64_t parts_;
  int shift_ = 0;
  std::vector<int64_t> first_;
};

// A set of rows as bits, and how many rows of it lie before each word.
class Marks {
 public:
  explicit Marks(int64_t rows) : bits_((rows + 63) / 64, 0) {}
  void add(const int32_t* rows, int64_t count) {
#pragma omp parallel for schedule(static) if (count > static_cast<int64_t>(few))
    for (int64_t at = 0; at < count; ++at) {
      const uint64_t bit = uint64_t{1} << (rows[at] & 63);
      uint64_t& word = bits_[rows[at] >> 6];
      if (!(__atomic_load_n(&word, __ATOMIC_RELAXED) & bit)) __atomic_fetch_or(&word, bit, __ATOMIC_RELAXED);
    }
  }
  // Counts the rows, after which `rank` may be asked for.
  int64_t count() {
    before_.resize(bits_.size());
    int64_t sum = 0;
    for (size_t word = 0; word < bits_.size(); ++word) {
      before_[word] = static_cast<uint32_t>(sum);
      sum += __builtin_popcountll(bits_[word]);
    }
    return sum;
  }
  int64_t rank(int32_t row) const {
    return before_[row >> 6] + __builtin_popcountll(bits_[row >> 6] & ((uint64_t{1} << (row & 63)) - 1));
  }
  void list(int32_t* out) const {
    for (size_t word = 0; word < bits_.size(); ++word)
      for (uint64_t left = bits_[word]; left; left &= left - 1)
        *out++ = static_cast<int32_t>(word * 64 + __builtin_ctzll(left));
  }

 private:
  std::vector<uint64_t> bits_;
  std::vector<uint32_t> before_;
};

}  // namespace mgg
