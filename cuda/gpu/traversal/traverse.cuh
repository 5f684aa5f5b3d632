// Traversals by lists of edges, each of which a warp reads; see arguments.h.
#pragma once
#include "gpu/traversal/arguments.h"
#include "runtime/device.h"

namespace mgg {

constexpr uint32_t whole_warp = 0xFFFFFFFFu;

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

template <class Index>
MGG_DEVICE int64_t number_of(const DeviceLists<Index>& lists, int64_t list) {
  return lists.number ? lists.number[list] : list;
}

MGG_DEVICE int64_t first_thread() { return int64_t(device::block()) * device::threads() + device::thread(); }
MGG_DEVICE int64_t all_threads() { return int64_t(device::blocks()) * device::threads(); }

// Calls visit(source, value, place) for each edge of the sources for which taken(source) says so.
template <Reads READS, class Index, class Taken, class Visit>
MGG_DEVICE void each_list(const DeviceLists<Index>& lists, Taken&& taken, Visit&& visit) {
  if constexpr (READS == Reads::strided) {
    for (int64_t list = first_thread(); list - device::thread() % 32 < lists.count; list += all_threads()) {
      const int64_t source = list < lists.count ? number_of(lists, list) : 0;
      const bool mine = list < lists.count && taken(source);
      const int64_t first = mine ? lists.offset[list] : 0, last = mine ? lists.offset[list + 1] : 0;
      each_edge<READS>(lists.edge, first, last, [&](Index value, int64_t e) { visit(source, value, e); });
    }
  } else {
    for (int64_t list = first_thread() / 32; list < lists.count; list += all_threads() / 32) {
      const int64_t source = number_of(lists, list);
      if (taken(source))
        each_edge<READS>(lists.edge, lists.offset[list], lists.offset[list + 1],
                         [&](Index value, int64_t e) { visit(source, value, e); });
    }
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
        if (depth < 0) call.depth[row] = call.level + 1;
      });
}

// A row's list is read until a source on the level is found, which is the first of them, since lists ascend.
template <Reads READS, class Index>
MGG_KERNEL void bfs_bottom_up(DeviceBfs<Index> call) {
  const DeviceLists<Index>& lists = call.lists;
  const int lane = device::thread() % 32;
  const auto reach = [&](int64_t row, Index source) {
    call.parent[row] = static_cast<uint32_t>(source);
    call.depth[row] = call.level + 1;
  };
  if constexpr (READS == Reads::strided) {
    for (int64_t list = first_thread(); list - lane < lists.count; list += all_threads()) {
      const int64_t row = list < lists.count ? number_of(lists, list) : 0;
      const bool mine = list < lists.count && call.depth[row] < 0;
      int64_t e = mine ? lists.offset[list] : 0, last = mine ? lists.offset[list + 1] : 0;
      while (device::vote(whole_warp, e < last)) {
        const Index source = device::load_warp(lists.edge + e, e < last);
        if (e < last && call.depth[source] == call.level) reach(row, source), last = e;
        ++e;
      }
    }
  } else {
    constexpr int64_t line = 128 / static_cast<int64_t>(sizeof(Index));
    for (int64_t list = first_thread() / 32; list < lists.count; list += all_threads() / 32) {
      const int64_t row = number_of(lists, list);
      if (call.depth[row] >= 0) continue;
      const int64_t first = lists.offset[list], last = lists.offset[list + 1];
      for (int64_t e = (READS == Reads::aligned ? first / line * line : first) + lane; e - lane < last; e += 32) {
        const bool mine = e >= first && e < last;
        const Index source = device::load_warp(lists.edge + e, mine);
        const uint32_t above = device::vote(whole_warp, mine && call.depth[source] == call.level);
        if (!above) continue;
        if (lane == device::lowest(above)) reach(row, source);
        break;
      }
    }
  }
}

MGG_KERNEL void frontier_of_level(DeviceFrontier call) {
  uint64_t sources = 0, edges = 0;
  for (int64_t source = first_thread(); source < call.sources; source += all_threads())
    if (call.depth[source] == call.level) ++sources, edges += call.offset[source + 1] - call.offset[source];
  for (int other = 16; other > 0; other /= 2) {
    sources += device::from_lane_xor(whole_warp, sources, other);
    edges += device::from_lane_xor(whole_warp, edges, other);
  }
  if (device::thread() % 32 == 0 && sources) {
    device::add(&call.found[0], sources);
    device::add(&call.found[1], edges);
  }
}

template <Reads READS, class Index>
MGG_KERNEL void sssp_round(DeviceSssp<Index> call) {
  each_list<READS>(
      call.lists, [&](int64_t source) { return call.active[source] != 0; },
      [&](int64_t source, Index row, int64_t e) {
        const float shorter = device::float_of(call.value[source]) + call.lists.length[e];
        if (!(shorter < device::float_of(call.value[row]))) return;
        const uint32_t bits = device::bits_of(shorter);
        if (device::lower(&call.value[row], bits) > bits) call.next[row] = 1, *call.found = 1;
      });
}

template <Reads READS, class Index>
MGG_KERNEL void components_round(DeviceComponents<Index> call) {
  each_list<READS>(
      call.lists, [&](int64_t source) { return call.active[source] != 0; },
      [&](int64_t source, Index row, int64_t) {
        const uint64_t label = call.value[source];
        if (label >= call.value[row]) return;
        device::lower(&call.value[row], label);
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
  const auto sum_of = [&](int64_t first, int64_t last) {
    double sum = 0;  // many equal values would all be rounded the same way
    each_edge<READS>(lists.edge, first, last, [&](Index source, int64_t e) {
      sum += lists.length ? call.given[source] * lists.length[e] : call.given[source];
    });
    return sum;
  };
  if constexpr (READS == Reads::strided) {
    for (int64_t list = first_thread(); list - lane < lists.count; list += all_threads()) {
      const bool mine = list < lists.count;
      const double sum = sum_of(mine ? lists.offset[list] : 0, mine ? lists.offset[list + 1] : 0);
      if (mine) enter(call, number_of(lists, list), sum);
    }
  } else {
    for (int64_t list = first_thread() / 32; list < lists.count; list += all_threads() / 32) {
      double sum = sum_of(lists.offset[list], lists.offset[list + 1]);
      for (int other = 16; other > 0; other /= 2) sum += device::from_lane_xor(whole_warp, sum, other);
      if (lane == 0) enter(call, number_of(lists, list), sum);
    }
  }
}

template <class T>
MGG_KERNEL void pack_values(DevicePack<T> call) {
  for (int64_t i = first_thread(); i < call.count; i += all_threads())
    call.outbox[call.place[i]] = call.value[call.number[i]];
}

template <class T>
MGG_KERNEL void arrive_values(DeviceArrive<T> call) {
  for (int64_t i = first_thread(); i < call.count; i += all_threads()) {
    const T arrived = call.arrived[call.place[i]];
    T& value = call.value[call.number[i]];
    if (!call.all && arrived >= value) continue;
    value = arrived;
    if (call.next) call.next[call.number[i]] = 1;
    if (call.found) *call.found = 1;
  }
}

}  // namespace mgg
