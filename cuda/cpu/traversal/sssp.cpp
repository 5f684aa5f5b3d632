#include "cpu/traversal/sssp.h"

#include <algorithm>
#include <limits>

namespace mgg {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int64_t none = std::numeric_limits<int64_t>::max();
constexpr size_t own_bucket = 1024;  // sources up to which a thread goes on with a bucket of its own
constexpr int64_t sources_each = 32, values_each = 4096;
// Prefetch distances: in sources, in edges of a source, and in edges whose slots' distances are read. Edges are
// prefetched past the end of a source, since a comparison with the end takes longer.
constexpr int64_t sources_ahead = 4, edges_ahead = 32, distances_ahead = 16;

float load(const float* at) {
  float value;
  __atomic_load(at, &value, __ATOMIC_RELAXED);
  return value;
}

}  // namespace

Sssp::Sssp(const TraversalGraph& graph, const WeightedEdge* edges, double width)
    : graph_(graph), edges_(edges), scale_(1 / width), distance_(graph.sources), relaxed_(graph.sources),
      bins_(graph.threads) {}

void Sssp::begin(int64_t source) {
  in_parallel_runs(graph_.threads, graph_.sources, values_each,
                   [&](int64_t slot) { distance_[slot] = relaxed_[slot] = infinity; });
  for (Bins& bins : bins_)
    for (std::vector<int32_t>& bin : bins.of) bin.clear();
  base_ = first_ = 0;
  if (source >= 0) distance_[source] = 0, put(bins_[0], static_cast<int32_t>(source), int64_t{0});
}

void Sssp::put(Bins& bins, int32_t slot, int64_t bucket) {
  bins.of[std::min(bucket - base_, window)].push_back(slot);
}

int64_t Sssp::next() {
  do {
    for (; first_ < window; ++first_)
      for (const Bins& bins : bins_)
        if (!bins.of[first_].empty()) return base_ + first_;
  } while (refill());
  return -1;
}

bool Sssp::refill() {
  int64_t first = none;
  for (const Bins& bins : bins_)
    for (const int32_t slot : bins.of[window])
      if (relaxed_[slot] != distance_[slot]) first = std::min(first, bucket_of(distance_[slot]));
  if (first == none) return false;
  move_window(first);
  return true;
}

void Sssp::move_window(int64_t first) {
  std::vector<int32_t> all;
  for (Bins& bins : bins_)
    for (std::vector<int32_t>& bin : bins.of) {
      all.insert(all.end(), bin.begin(), bin.end());
      bin.clear();
    }
  base_ = first;
  first_ = 0;
  for (const int32_t slot : all)
    if (relaxed_[slot] != distance_[slot]) put(bins_[0], slot, bucket_of(distance_[slot]));
}

// Prefetches the first edges of a later source, and the offset and distances of one later still: edges lie where the
// offset says, so that must be there first.
void Sssp::prefetch(const std::vector<int32_t>& sources, int64_t i) const {
  const auto size = static_cast<int64_t>(sources.size());
  if (i + 2 * sources_ahead < size) {
    const int32_t slot = sources[i + 2 * sources_ahead];
    __builtin_prefetch(&graph_.out.indptr[slot]);
    __builtin_prefetch(&distance_[slot]);
    __builtin_prefetch(&relaxed_[slot]);
  }
  if (i + sources_ahead < size) {
    const WeightedEdge* first = edges_ + graph_.out.indptr[sources[i + sources_ahead]];
    for (int64_t e = 0; e < edges_ahead; e += 64 / sizeof(WeightedEdge)) __builtin_prefetch(first + e);
  }
}

void Sssp::relax(Bins& bins, int32_t slot, int64_t bucket) {
  const float from = load(&distance_[slot]);
  if (from == load(&relaxed_[slot]) || bucket_of(from) < bucket) return;  // this was done already
  __atomic_store(&relaxed_[slot], const_cast<float*>(&from), __ATOMIC_RELAXED);
  const WeightedEdge* edge = edges_ + graph_.out.indptr[slot];
  const WeightedEdge* const end = edges_ + graph_.out.indptr[slot + 1];
  float* const distance = distance_.data();
  for (; edge < end; ++edge) {
    __builtin_prefetch(edge + edges_ahead);
    __builtin_prefetch(distance + std::min(edge + distances_ahead, end - 1)->slot);
    float shorter = from + edge->length, now = load(distance + edge->slot);
    while (shorter < now)
      if (__atomic_compare_exchange(distance + edge->slot, &now, &shorter, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        // A source that waits in the same later bucket is there already.
        const int64_t into = bucket_of(shorter);
        if (into == bucket || into != bucket_of(now)) put(bins, edge->slot, into);
        break;
      }
  }
}

void Sssp::advance(int64_t bucket) {
  const int64_t at = bucket - base_;
  if (at < 0 || at >= window) return;
  for (;;) {
    frontier_.clear();
    for (Bins& bins : bins_) {
      frontier_.insert(frontier_.end(), bins.of[at].begin(), bins.of[at].end());
      bins.of[at].clear();
    }
    if (frontier_.empty()) return;
    const int64_t size = static_cast<int64_t>(frontier_.size());
    if (size <= sources_each) {  // not worth the other threads
      for (const int32_t slot : frontier_) relax(bins_[0], slot, bucket);
      continue;
    }
    WorkQueue claimed((size + sources_each - 1) / sources_each, graph_.threads);
#pragma omp parallel num_threads(graph_.threads)
    {
      Bins& mine = bins_[omp_get_thread_num()];
      claimed.each([&](int64_t item) {
        for (int64_t i = sources_each * item; i < std::min(sources_each * (item + 1), size); ++i) {
          prefetch(frontier_, i);
          relax(mine, frontier_[i], bucket);
        }
      });
      std::vector<int32_t> few;
      while (!mine.of[at].empty() && mine.of[at].size() < own_bucket) {
        few.clear();
        few.swap(mine.of[at]);
        for (size_t i = 0; i < few.size(); ++i) {
          prefetch(few, static_cast<int64_t>(i));
          relax(mine, few[i], bucket);
        }
      }
    }
  }
}

void Sssp::arrive(const int32_t* slots, const float* distance, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (distance[i] < distance_[slots[i]]) {
      distance_[slots[i]] = distance[i];
      // Another rank may still be at buckets before this rank's window.
      if (bucket_of(distance[i]) < base_) move_window(bucket_of(distance[i]));
      put(bins_[0], slots[i], bucket_of(distance[i]));
      first_ = std::min(first_, bucket_of(distance[i]) - base_);
    }
}

void Sssp::distances(float* out) const {
  in_parallel_runs(graph_.threads, graph_.rows, values_each,
                   [&](int64_t row) { out[row] = distance_[graph_.slot_of(row)]; });
}

}  // namespace mgg
