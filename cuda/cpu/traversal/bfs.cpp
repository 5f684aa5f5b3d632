#include "cpu/traversal/bfs.h"

#include <algorithm>

namespace mgg {

namespace {

constexpr double down_cost = 4;  // of an edge out of the frontier, in edges into a row that is not reached
constexpr int64_t go_down = 18;   // Beamer's beta: down once the frontier has less than 1 / 18 of the sources
constexpr int32_t none = -1;
constexpr int64_t few_edges = 1024;  // that one thread looks at sooner than several
constexpr int64_t sources_each = 16, ahead = 4;
constexpr int64_t words_each = 64;  // of bits, that a thread claims at once

}  // namespace

Bfs::Bfs(const TraversalGraph& graph)
    : graph_(graph), head_(graph.rows, none), reached_(graph.rows), reached_at_first_(graph.rows),
      front_(graph.sources), next_(graph.sources), found_(graph.threads) {
  for (int64_t row = 0; row < graph.rows; ++row) {
    if (graph.in.degree(row))
      head_[row] = graph.in.indices[graph.in.indptr[row]], ++reachable_;
    else
      reached_at_first_.add(row);  // nothing can reach it
  }
  for (int64_t row = graph.rows; row < 64 * reached_.words(); ++row) reached_at_first_.add(row);
}

void Bfs::begin(int32_t* parent, int32_t* depth, int64_t source, int64_t row) {
  parent_ = parent, depth_ = depth;
  in_parallel(graph_.threads, reached_.words(), [&](int64_t word) {
    const int64_t last = std::min(64 * word + 64, graph_.rows);
    std::fill(parent + 64 * word, parent + last, none);
    std::fill(depth + 64 * word, depth + last, none);
  });
  queue_.clear();
  level_ = 0, up_ = false, before_ = 0;
  unreached_ = reachable_;
  out_edges_ = frontier_ = 0;
  if (row >= 0) parent[row] = static_cast<int32_t>(source), depth[row] = 0;
  if (source >= 0) {
    queue_.push_back(static_cast<int32_t>(source));
    out_edges_ = graph_.out.degree(source), frontier_ = 1;
  }
}

int64_t Bfs::advance() {
  const bool turns = up_ ? frontier_ < before_ && frontier_ < graph_.sources / go_down : is_large();
  if (turns) up_ ? to_queue() : to_bits();
  before_ = frontier_;
  ++level_;
  up_ ? up() : down();
  return frontier_;
}

// Beamer's rule compares edges out of the frontier with those that are left. This one says how many of these would be
// looked at: a row looks until it finds an edge from the frontier, of which there is one in edges / out_edges_.
bool Bfs::is_large() const {
  if (!out_edges_) return false;
  const double edges = static_cast<double>(graph_.in.indptr[graph_.rows]), out = static_cast<double>(out_edges_);
  const double looked_at = std::min(edges / static_cast<double>(reachable_), edges / out);
  return down_cost * out > looked_at * static_cast<double>(unreached_);
}

void Bfs::down() {
  const int64_t size = static_cast<int64_t>(queue_.size());
  WorkQueue claimed((size + sources_each - 1) / sources_each, graph_.threads);
  for (Found& found : found_) found.sources.clear(), found.edges = 0;
#pragma omp parallel num_threads(graph_.threads) if (out_edges_ > few_edges)
  {
    Found& mine = found_[omp_get_thread_num()];
    claimed.each([&](int64_t item) {
      for (int64_t i = sources_each * item; i < std::min(sources_each * (item + 1), size); ++i) {
        if (i + 2 * ahead < size) __builtin_prefetch(&graph_.out.indptr[queue_[i + 2 * ahead]]);
        if (i + ahead < size) __builtin_prefetch(graph_.out.indices + graph_.out.indptr[queue_[i + ahead]]);
        reach_from(queue_[i], mine);
      }
    });
  }
  int64_t total = 0;
  out_edges_ = 0;
  for (Found& found : found_) {
    found.first = total;
    total += static_cast<int64_t>(found.sources.size());
    out_edges_ += found.edges;
  }
  queue_.resize(total);
#pragma omp parallel for num_threads(graph_.threads) schedule(static, 1) if (total > few_edges)
  for (size_t thread = 0; thread < found_.size(); ++thread)
    std::copy(found_[thread].sources.begin(), found_[thread].sources.end(), queue_.begin() + found_[thread].first);
  frontier_ = total;
  unreached_ -= frontier_;
}

// The parent of a row is the first of the sources on the level that have an edge to it. The thread that finds the row
// not reached enters it.
void Bfs::reach_from(int32_t source, Found& mine) {
  const int32_t* index = graph_.out.indices + graph_.out.indptr[source];
  const int32_t* const end = graph_.out.indices + graph_.out.indptr[source + 1];
  for (; index < end; ++index) {
    const int32_t row = *index, seen_at = __atomic_load_n(&depth_[row], __ATOMIC_RELAXED);
    if (seen_at != none && seen_at < level_) continue;
    int32_t seen = __atomic_load_n(&parent_[row], __ATOMIC_RELAXED);
    while (seen == none || source < seen)
      if (__atomic_compare_exchange_n(&parent_[row], &seen, source, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        if (seen != none) break;
        __atomic_store_n(&depth_[row], level_, __ATOMIC_RELAXED);
        mine.sources.push_back(graph_.slot_of(row));
        mine.edges += graph_.out.degree(mine.sources.back());
        break;
      }
  }
}

void Bfs::up() {
  int64_t found = 0;
  const bool same = !graph_.slot;
  WorkQueue claimed((reached_.words() + words_each - 1) / words_each, graph_.threads);
#pragma omp parallel num_threads(graph_.threads) reduction(+ : found)
  claimed.each([&](int64_t item) {
    const int64_t last = std::min(words_each * (item + 1), reached_.words());
    for (int64_t word = words_each * item; word < last; ++word) {
      uint64_t here = 0;
      for (uint64_t left = ~reached_.word(word); left; left &= left - 1) {
        const int64_t row = 64 * word + __builtin_ctzll(left);
        int32_t source = head_[row];
        if (!front_.has(source)) {
          const int64_t end = graph_.in.indptr[row + 1];
          int64_t e = graph_.in.indptr[row] + 1;
          while (e < end && !front_.has(graph_.in.indices[e])) ++e;
          if (e == end) continue;
          source = graph_.in.indices[e];
        }
        parent_[row] = source;
        depth_[row] = level_;
        here |= left & -left;
      }
      if (here) reached_.word(word) |= here, found += __builtin_popcountll(here);
      if (same)
        next_.word(word) = here;
      else
        for (uint64_t left = here; left; left &= left - 1)
          next_.add_atomic(graph_.slot[64 * word + __builtin_ctzll(left)]);
    }
  });
  std::swap(front_, next_);
  if (!same) next_.clear();
  frontier_ = found;
  unreached_ -= found;
}

void Bfs::arrive(const int32_t* slots, const int32_t* depth, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (depth[i] != level_) continue;
    ++frontier_;
    if (up_)
      front_.add(slots[i]);
    else
      queue_.push_back(slots[i]), out_edges_ += graph_.out.degree(slots[i]);
  }
}

void Bfs::to_bits() {
  up_ = true;
  in_parallel(graph_.threads, reached_.words(), [&](int64_t word) {
    uint64_t bits = reached_at_first_.word(word);
    for (int64_t row = 64 * word; row < std::min(64 * word + 64, graph_.rows); ++row)
      bits |= static_cast<uint64_t>(depth_[row] != none) << (row & 63);
    reached_.word(word) = bits;
  });
  front_.clear();
  for (const int32_t source : queue_) front_.add(source);
}

void Bfs::to_queue() {
  up_ = false;
  queue_.clear();
  out_edges_ = 0;
  for (int64_t word = 0; word < front_.words(); ++word)
    for (uint64_t left = front_.word(word); left; left &= left - 1) {
      queue_.push_back(static_cast<int32_t>(64 * word + __builtin_ctzll(left)));
      out_edges_ += graph_.out.degree(queue_.back());
    }
}

}  // namespace mgg
