#include "cpu/traversal/pagerank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mgg {

namespace {

constexpr int64_t edges_each = 1 << 14;  // of a part of the work
constexpr int64_t window = 256;          // rows that are sorted by number of edges, and read values near each other
constexpr int64_t many = 256;            // edges of a row that is summed alone

// Sums of so many values are added up in float64: many equal values would all be rounded the same way.
constexpr int64_t block = 16;

// value(i): of edge i.
template <class T, class Value>
double sum_of(const Value& value, int64_t count) {
  double sum = 0;
  for (int64_t first = 0; first < count; first += 4 * block) {
    const int64_t last = std::min(first + 4 * block, count);
    T a = 0, b = 0, c = 0, d = 0;  // in a fixed order, whatever the threads
    int64_t i = first;
    for (; i + 4 <= last; i += 4) {
      a += value(i), b += value(i + 1);
      c += value(i + 2), d += value(i + 3);
    }
    if (i < last) a += value(i);
    if (i + 1 < last) b += value(i + 1);
    if (i + 2 < last) c += value(i + 2);
    sum += (static_cast<double>(a) + c) + (static_cast<double>(b) + d);
  }
  return sum;
}

}  // namespace

template <class T>
PageRank<T>::PageRank(const TraversalGraph& graph, const int32_t* out_degree, int64_t total, const T* share)
    : graph_(graph), total_(total), order_(graph.rows), inverse_(graph.rows), values_(graph.sources + 1),
      next_(graph.sources + 1), out_degree_(out_degree), share_(share) {
  values_[graph.sources] = next_[graph.sources] = 0;  // of edges that are missing
  std::iota(order_.begin(), order_.end(), 0);
  first_.push_back(0);
  for (int64_t begin = 0; begin < graph.rows; begin += window) slice(begin, std::min(begin + window, graph.rows));
  int64_t cost = 0;
  for (size_t at = 0; at < slices_.size(); ++at) {
    cost += int64_t{slices_[at].edges} * slices_[at].rows + side;
    if (cost < edges_each && at + 1 < slices_.size()) continue;
    first_.push_back(static_cast<int64_t>(at) + 1);
    cost = 0;
  }
  parts_.resize(first_.size() - 1);
}

// Cuts a window of rows into slices.
template <class T>
void PageRank<T>::slice(int64_t begin, int64_t end) {
  std::stable_sort(order_.begin() + begin, order_.begin() + end,
                   [&](int32_t a, int32_t b) { return graph_.in.degree(a) > graph_.in.degree(b); });
  int64_t row = begin;
  for (; row < end && graph_.in.degree(order_[row]) > many; ++row)
    slices_.push_back({row, graph_.in.indptr[order_[row]], 1, static_cast<int32_t>(graph_.in.degree(order_[row])), true});
  for (; row < end; row += side) {
    const auto rows = static_cast<int32_t>(std::min<int64_t>(side, end - row));
    const auto edges = static_cast<int32_t>(graph_.in.degree(order_[row]));
    const auto first = static_cast<int64_t>(indices_.size());
    slices_.push_back({row, first, rows, edges, false});
    indices_.resize(first + int64_t{edges} * side, static_cast<int32_t>(graph_.sources));
    if (share_) shares_.resize(indices_.size(), T(0));
    for (int32_t i = 0; i < rows; ++i) {
      const int64_t mine = graph_.in.indptr[order_[row + i]], count = graph_.in.degree(order_[row + i]);
      for (int64_t e = 0; e < count; ++e) {
        indices_[first + e * side + i] = graph_.in.indices[mine + e];
        if (share_) shares_[first + e * side + i] = share_[mine + e];
      }
    }
  }
}

template <class T>
typename PageRank<T>::Totals PageRank<T>::total_of_parts() const {
  Totals sum{0, 0};
  for (const Part& part : parts_) sum.change += part.change, sum.dangling += part.dangling;
  return sum;
}

template <class T>
typename PageRank<T>::Totals PageRank<T>::begin(T* rank, T* given, double damping) {
  rank_ = rank, given_ = given, damping_ = damping;
  const T first = static_cast<T>(1.0 / static_cast<double>(total_));
  Totals sum{0, 0};
  for (int64_t row = 0; row < graph_.rows; ++row) {
    inverse_[row] = out_degree_[row] ? static_cast<T>(damping / out_degree_[row]) : T(0);
    rank_[row] = first;
    give(values_, row, first * inverse_[row]);
    if (!out_degree_[row]) sum.dangling += first;
  }
  return sum;
}

template <class T>
void PageRank<T>::give(Values<T>& values, int64_t row, T value) {
  values[graph_.slot_of(row)] = value;
  if (graph_.slot) given_[row] = value;
}

template <class T>
void PageRank<T>::store(int64_t row, T next, Part& part) {
  part.change += std::abs(next - rank_[row]);
  rank_[row] = next;
  give(next_, row, next * inverse_[row]);
  if (inverse_[row] == T(0)) part.dangling += next;
}

template <class T>
template <bool SHARED>
void PageRank<T>::sum(const Slice& slice, double base, Part& part) {
  const int32_t* row = order_.data() + slice.row;
  if (slice.alone) {
    const int32_t* index = graph_.in.indices + slice.first;
    const auto value = [&](int64_t i) {
      if constexpr (SHARED) return values_[index[i]] * share_[slice.first + i];
      return values_[index[i]];
    };
    const double found = sum_of<T>(value, slice.edges);
    return store(*row, static_cast<T>(base + found), part);
  }
  const T *values = values_.data(), *share = SHARED ? shares_.data() + slice.first : nullptr;
  const int32_t* index = indices_.data() + slice.first;
  const auto value = [&](int i) {
    if constexpr (SHARED) return values[index[i]] * share[i];
    return values[index[i]];
  };
  double sums[side];
  for (double& each : sums) each = base;
  for (int64_t first = 0; first < slice.edges; first += block) {
    T s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    for (int64_t e = first; e < std::min<int64_t>(first + block, slice.edges); ++e) {
      s0 += value(0), s1 += value(1), s2 += value(2), s3 += value(3);
      s4 += value(4), s5 += value(5), s6 += value(6), s7 += value(7);
      index += side;
      if constexpr (SHARED) share += side;
    }
    const T found[side] = {s0, s1, s2, s3, s4, s5, s6, s7};
    for (int i = 0; i < side; ++i) sums[i] += found[i];
  }
  for (int32_t i = 0; i < slice.rows; ++i) store(row[i], static_cast<T>(sums[i]), part);
}

template <class T>
typename PageRank<T>::Totals PageRank<T>::advance(const int32_t* slots, const T* arrived, int64_t count,
                                                  double dangling) {
  for (int64_t i = 0; i < count; ++i) values_[slots[i]] = arrived[i];
  const double base = (1 - damping_ + damping_ * dangling) / static_cast<double>(total_);
  in_parallel(graph_.threads, static_cast<int64_t>(parts_.size()), [&](int64_t at) {
    Part part;
    for (int64_t i = first_[at]; i < first_[at + 1]; ++i)
      share_ ? sum<true>(slices_[i], base, part) : sum<false>(slices_[i], base, part);
    parts_[at] = part;
  });
  values_.swap(next_);
  return total_of_parts();
}

template class PageRank<float>;
template class PageRank<double>;

}  // namespace mgg
