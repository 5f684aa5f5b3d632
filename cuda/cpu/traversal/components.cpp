#include "cpu/traversal/components.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace mgg {

namespace {

constexpr int64_t first_edges = 2;  // of each row, that are linked before the largest component is looked for
constexpr int64_t rows_each = 1024;
constexpr int sampled = 1024;

int32_t load(const int32_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

}  // namespace

// Links the roots of two trees, the larger one below the smaller one.
void Components::link(int32_t u, int32_t v) {
  int32_t* parent = parent_.data();
  int32_t a = load(parent + u), b = load(parent + v);
  while (a != b) {
    const int32_t high = std::max(a, b), low = std::min(a, b);
    int32_t above = load(parent + high);
    if (above == low) return;
    if (above == high && __atomic_compare_exchange_n(parent + high, &above, low, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED))
      return;
    a = load(parent + load(parent + high));
    b = load(parent + low);
  }
}

void Components::compress() {
  int32_t* parent = parent_.data();
  in_parallel_runs(graph_.threads, graph_.sources, rows_each, [&](int64_t u) {
    int32_t root = load(parent + u);
    while (root != load(parent + root)) root = load(parent + root);
    __atomic_store_n(parent + u, root, __ATOMIC_RELAXED);
  });
}

int32_t Components::largest() const {
  std::unordered_map<int32_t, int> count;
  uint64_t state = 1;
  for (int i = 0; i < sampled; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ++count[parent_[(state >> 33) % static_cast<uint64_t>(graph_.sources)]];
  }
  return std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void Components::link() {
  const auto over_rows = [&](auto&& work) { in_parallel_runs(graph_.threads, graph_.rows, rows_each, work); };
  in_parallel_runs(graph_.threads, graph_.sources, rows_each,
                   [&](int64_t u) { parent_[u] = static_cast<int32_t>(u); });
  if (!graph_.sources) return;
  // A row's first source is its smallest: pointing there makes no circle, and needs no look at roots.
  over_rows([&](int64_t row) {
    const int32_t u = graph_.slot_of(row);
    if (graph_.in.degree(row)) parent_[u] = std::min(u, graph_.in.indices[graph_.in.indptr[row]]);
  });
  compress();
  over_rows([&](int64_t row) {
    const int32_t u = graph_.slot_of(row);
    const int32_t* source = graph_.in.indices + graph_.in.indptr[row];
    const int64_t edges = std::min(first_edges, graph_.in.degree(row));
    if (edges && source[0] > u) link(u, source[0]);
    for (int64_t i = 1; i < edges; ++i) link(u, source[i]);
  });
  compress();
  const int32_t skipped = largest();
  over_rows([&](int64_t row) {
    const int32_t u = graph_.slot_of(row);
    const bool inside = load(&parent_[u]) == skipped;
    // An edge that leaves the tree is seen from its other end, where that is a row of this rank.
    if (inside && !graph_.slot) return;
    for (int64_t e = graph_.in.indptr[row] + first_edges; e < graph_.in.indptr[row + 1]; ++e)
      if (!inside || load(&parent_[graph_.in.indices[e]]) != skipped) link(u, graph_.in.indices[e]);
  });
  compress();
}

void Components::name(const int64_t* names) {
  label_.resize(graph_.sources);
  in_parallel_runs(graph_.threads, graph_.sources, rows_each, [&](int64_t u) {
    if (parent_[u] == u) label_[u] = std::numeric_limits<int64_t>::max();
  });
  in_parallel_runs(graph_.threads, graph_.sources, rows_each, [&](int64_t u) {
    int64_t* label = &label_[parent_[u]];
    int64_t now = __atomic_load_n(label, __ATOMIC_RELAXED);
    while (names[u] < now &&
           !__atomic_compare_exchange_n(label, &now, names[u], true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  });
}

void Components::labels(int64_t* label) const {
  in_parallel_runs(graph_.threads, graph_.rows, rows_each,
                   [&](int64_t row) { label[row] = label_[parent_[graph_.slot_of(row)]]; });
}

int64_t Components::arrive(const int32_t* slots, const int64_t* arrived, int64_t count) {
  int64_t smaller = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t& label = label_[parent_[slots[i]]];
    if (arrived[i] < label) label = arrived[i], ++smaller;
  }
  return smaller;
}

}  // namespace mgg
