// One rank's edges for traversals; sets of bits; loops over threads.
//
// A rank has n rows and knows S sources: its own rows and its halo. Both are numbered so that some sources with the
// most edges come first (mgg_hpc/traversal/part.py): the values that are read most lie together, and the first source
// of a row's edges is often the one with the most edges itself. The order is the same on any number of ranks, so "the
// first one" is, too.
#pragma once
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cpu/work_queue.h"

namespace mgg {

// Memory in large pages where the kernel gives them, since it is read in no order (NumPy does the same for its arrays).
template <class T>
struct LargePages {
  using value_type = T;
  static constexpr size_t page = 2 << 20;
  LargePages() = default;
  template <class U>
  LargePages(const LargePages<U>&) {}
  T* allocate(size_t count) {
    const size_t bytes = (count * sizeof(T) + page - 1) / page * page;
    if (count * sizeof(T) < page) return static_cast<T*>(::operator new(count * sizeof(T)));
    void* memory = std::aligned_alloc(page, bytes);
    if (!memory) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    if (count * sizeof(T) < page)
      ::operator delete(memory);
    else
      std::free(memory);
  }
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;  // left as it is: threads write it first
  }
  template <class U, class... Values>
  void construct(U* at, Values&&... values) {
    ::new (static_cast<void*>(at)) U(std::forward<Values>(values)...);
  }
  bool operator==(const LargePages&) const { return true; }
  bool operator!=(const LargePages&) const { return false; }
};
template <class T>
using Values = std::vector<T, LargePages<T>>;

struct Csr {
  const int64_t* indptr;
  const int32_t* indices;  // ascending in each row
  int64_t degree(int64_t row) const { return indptr[row + 1] - indptr[row]; }
};

struct TraversalGraph {
  int64_t rows, sources;
  const int32_t* slot;  // of each row among the sources, ascending; null where row i is source i
  Csr in;               // sources of the edges into each row
  Csr out;              // rows that each source has edges to
  int threads;

  int32_t slot_of(int64_t row) const { return slot ? slot[row] : static_cast<int32_t>(row); }
};

class Bits {
 public:
  explicit Bits(int64_t count) : words_((count + 63) / 64), word_(new uint64_t[words_ + 1]()) {}
  int64_t words() const { return words_; }
  uint64_t& word(int64_t at) { return word_[at]; }
  uint64_t word(int64_t at) const { return word_[at]; }
  bool has(int64_t bit) const { return word_[bit >> 6] >> (bit & 63) & 1; }
  void add(int64_t bit) { word_[bit >> 6] |= uint64_t{1} << (bit & 63); }
  void add_atomic(int64_t bit) { __atomic_fetch_or(&word_[bit >> 6], uint64_t{1} << (bit & 63), __ATOMIC_RELAXED); }
  void clear() { std::fill_n(word_.get(), words_, 0); }

 private:
  int64_t words_;
  std::unique_ptr<uint64_t[]> word_;
};

// Calls work(item) for each item of 0 .. count - 1 on all threads.
template <class Work>
void in_parallel(int threads, int64_t count, Work&& work) {
  WorkQueue queue(count, threads);
#pragma omp parallel num_threads(threads)
  queue.each(work);
}

// The same for items that threads take `run` at a time.
template <class Work>
void in_parallel_runs(int threads, int64_t count, int64_t run, Work&& work) {
  in_parallel(threads, (count + run - 1) / run, [&](int64_t number) {
    for (int64_t item = run * number, last = std::min(item + run, count); item < last; ++item) work(item);
  });
}

}  // namespace mgg
