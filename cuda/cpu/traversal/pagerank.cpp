#include "cpu/traversal/pagerank.h"

#include <algorithm>
#include <cmath>

namespace mgg {

namespace {

constexpr int64_t edges_each = 1 << 14;  // of a run
constexpr int lanes = 8;                 // sums of a row that are under way at once, added up in a fixed order

template <class T>
T sum_of(const T* values, const int32_t* index, int64_t count) {
  T sum[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sum[lane] += values[index[i + lane]];
  for (int lane = 0; i < count; ++i, ++lane) sum[lane] += values[index[i]];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

}  // namespace

template <class T>
PageRank<T>::PageRank(const TraversalGraph& graph, const int32_t* out_degree, int64_t total)
    : graph_(graph), total_(total), runs_(graph.in, graph.rows, edges_each), parts_(runs_.count()),
      inverse_(graph.rows), values_(graph.sources), out_degree_(out_degree) {}

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
  in_parallel(graph_.threads, runs_.count(), [&](int64_t run) {
    Part part;
    for (int64_t row = runs_.begin(run); row < runs_.end(run); ++row) {
      inverse_[row] = out_degree_[row] ? static_cast<T>(damping / out_degree_[row]) : T(0);
      rank_[row] = first;
      given_[row] = first * inverse_[row];
      if (!out_degree_[row]) part.dangling += first;
    }
    parts_[run] = part;
  });
  return total_of_parts();
}

template <class T>
typename PageRank<T>::Totals PageRank<T>::advance(const int32_t* slots, const T* arrived, int64_t count,
                                                  double dangling) {
  // The values that are read are in values_, and rows write what they give next to given_.
  if (graph_.slot)
    for (int64_t row = 0; row < graph_.rows; ++row) values_[graph_.slot[row]] = given_[row];
  else
    in_parallel(graph_.threads, runs_.count(), [&](int64_t run) {
      std::copy(given_ + runs_.begin(run), given_ + runs_.end(run), values_.begin() + runs_.begin(run));
    });
  for (int64_t i = 0; i < count; ++i) values_[slots[i]] = arrived[i];
  const T base = static_cast<T>((1 - damping_ + damping_ * dangling) / static_cast<double>(total_));
  in_parallel(graph_.threads, runs_.count(), [&](int64_t run) {
    Part part;
    for (int64_t row = runs_.begin(run); row < runs_.end(run); ++row) {
      const int64_t first = graph_.in.indptr[row];
      const T next = base + sum_of(values_.data(), graph_.in.indices + first, graph_.in.indptr[row + 1] - first);
      part.change += std::abs(static_cast<double>(next) - static_cast<double>(rank_[row]));
      rank_[row] = next;
      given_[row] = next * inverse_[row];
      if (inverse_[row] == T(0)) part.dangling += next;
    }
    parts_[run] = part;
  });
  return total_of_parts();
}

template class PageRank<float>;
template class PageRank<double>;

}  // namespace mgg
