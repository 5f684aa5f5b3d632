// Which items of 0 .. count - 1 a thread works on next.
//
// Neighbouring items share rows and prefetch for each other, so a thread takes runs of them: long ones at first, which
// leaves little to hand out, and single ones at the end, which lets all threads finish together. (OpenMP's guided
// schedule begins with a whole share for each thread: too much for one that is slowed down.)
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace mgg {

class WorkQueue {
 public:
  explicit WorkQueue(int64_t count, int threads) : count_(count), parts_(2 * int64_t(threads)) {}

  // Calls work(item) for each item that this thread gets. Returns once no more are left to take.
  template <class Work>
  void each(Work&& work) {
    for (int64_t first = next_.load(std::memory_order_relaxed); first < count_;) {
      const int64_t last = first + std::max<int64_t>(1, (count_ - first) / parts_);
      if (!next_.compare_exchange_weak(first, last, std::memory_order_relaxed)) continue;
      for (int64_t item = first; item < last; ++item) work(item);
      first = next_.load(std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<int64_t> next_{0};
  const int64_t count_, parts_;
};

}  // namespace mgg
