// Traversals by lists of edges, each of which a warp reads; see arguments.h.
#pragma once
#include "gpu/traversal/arguments.h"
#include "runtime/device.h"

namespace mgg {

constexpr uint32_t whole_warp = 0xFFFFFFFFu;
constexpr uint32_t no_parent = 0xFFFFFFFFu;

// Calls visit(value, place) for each edge of a source's list, on whichever lane has read it. All lanes of a warp call it,
// merged and aligned for one list, strided for one each; an empty list has last <= first.
template <Reads READS, class Index, class Visit>
MGG_DEVICE void each_edge(const Index* edges, int64_t first, int64_t last, Visit&& visit) {
  constexpr int64_t line = 128 / static_cast<int64_t>(sizeof(Index));
  const int lane = device::thread() % 32;
  if constexpr (READS == Reads::strided) {
    for (int64_t e = first; device::vote(whole_warp, e < last); ++e) {
      const Index value = device::load_warp(edges + e, e < last);
      if (e < last) visit(value, e);
    }
  } else {
    for (int64_t e = (READS == Reads::aligned ? first / line * line : first) + lane; e - lane < last; e += 32) {
      const bool mine = e >= first && e < last;
      const Index value = device::load_warp(edges + e, mine);
      if (mine) visit(value, e);
    }
  }
}

// Calls visit(source, value, place) for each edge of the sources for which taken(source) says so.
template <Reads READS, class Index, class Taken, class Visit>
MGG_DEVICE void each_list(const DeviceLists<Index>& lists, Taken&& taken, Visit&& visit) {
  const int64_t thread = int64_t(device::block()) * device::threads() + device::thread();
  const int64_t threads = int64_t(device::blocks()) * device::threads();
  if constexpr (READS == Reads::strided) {
    for (int64_t source = thread; source - device::thread() % 32 < lists.sources; source += threads) {
      const bool mine = source < lists.sources && taken(source);
      const int64_t first = mine ? lists.offset[source] : 0, last = mine ? lists.offset[source + 1] : 0;
      each_edge<READS>(lists.edge, first, last, [&](Index value, int64_t e) { visit(source, value, e); });
    }
  } else {
    for (int64_t source = thread / 32; source < lists.sources; source += threads / 32)
      if (taken(source))
        each_edge<READS>(lists.edge, lists.offset[source], lists.offset[source + 1],
                         [&](Index value, int64_t e) { visit(source, value, e); });
  }
}

template <Reads READS, class Index>
MGG_KERNEL void bfs_level(DeviceBfs<Index> call) {
  each_list<READS>(
      call.lists, [&](int64_t source) { return call.depth[source] == call.level; },
      [&](int64_t source, Index row, int64_t) {
        const int32_t depth = call.depth[row];
        if (depth >= 0 && depth <= call.level) return;
        device::lower(&call.parent[row], static_cast<uint32_t>(source));
        if (depth < 0) call.depth[row] = call.level + 1, *call.found = 1;
      });
}

template <Reads READS, class Index>
MGG_KERNEL void sssp_round(DeviceSssp<Index> call) {
  each_list<READS>(
      call.lists, [&](int64_t source) { return call.active[source] != 0; },
      [&](int64_t source, Index row, int64_t e) {
        const float shorter = device::float_of(call.distance[source]) + call.lists.length[e];
        if (!(shorter < device::float_of(call.distance[row]))) return;
        const uint32_t bits = device::bits_of(shorter);
        if (device::lower(&call.distance[row], bits) > bits) call.next[row] = 1, *call.found = 1;
      });
}

template <Reads READS, class Index>
MGG_KERNEL void components_round(DeviceComponents<Index> call) {
  each_list<READS>(
      call.lists, [&](int64_t source) { return call.active[source] != 0; },
      [&](int64_t source, Index row, int64_t) {
        const uint64_t label = call.label[source];
        if (label >= call.label[row]) return;
        device::lower(&call.label[row], label);
        call.next[row] = 1, *call.found = 1;
      });
}

template <class Index>
MGG_DEVICE void enter(const DevicePageRank<Index>& call, int64_t row, double sum) {
  const float rank = static_cast<float>(call.base + sum), before = call.rank[row];
  call.rank[row] = rank;
  call.next[row] = rank * call.inverse[row];
  call.change[row] = rank > before ? rank - before : before - rank;
  call.dangling[row] = call.inverse[row] == 0 ? rank : 0;
}

// A row's sum is a thread's, or a warp's whose lanes' sums are added in a tree: the same bits in every run.
template <Reads READS, class Index>
MGG_KERNEL void pagerank_round(DevicePageRank<Index> call) {
  const DeviceLists<Index>& lists = call.lists;
  const int lane = device::thread() % 32;
  const int64_t thread = int64_t(device::block()) * device::threads() + device::thread();
  const int64_t threads = int64_t(device::blocks()) * device::threads();
  const auto sum_of = [&](int64_t first, int64_t last) {
    double sum = 0;  // many equal values would all be rounded the same way
    each_edge<READS>(lists.edge, first, last, [&](Index source, int64_t) { sum += call.given[source]; });
    return sum;
  };
  if constexpr (READS == Reads::strided) {
    for (int64_t row = thread; row - lane < lists.sources; row += threads) {
      const bool mine = row < lists.sources;
      const double sum = sum_of(mine ? lists.offset[row] : 0, mine ? lists.offset[row + 1] : 0);
      if (mine) enter(call, row, sum);
    }
  } else {
    for (int64_t row = thread / 32; row < lists.sources; row += threads / 32) {
      double sum = sum_of(lists.offset[row], lists.offset[row + 1]);
      for (int other = 16; other > 0; other /= 2) sum += device::from_lane_xor(whole_warp, sum, other);
      if (lane == 0) enter(call, row, sum);
    }
  }
}

}  // namespace mgg
