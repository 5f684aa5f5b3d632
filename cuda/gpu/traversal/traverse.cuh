// Traversals by lists of edges, each of which a warp reads; see arguments.h.
#pragma once
#include "gpu/traversal/arguments.h"
#include "runtime/device.h"

namespace mgg {

constexpr uint32_t whole_warp = 0xFFFFFFFFu;

constexpr int64_t line_edges = 32;  // edges of a 128-byte line; a warp reads a list from a line's start (section 2.4)

// Calls visit(value, place) for each edge of a list, on whichever lane has read it. All lanes of a warp call it.
template <class Visit>
MGG_DEVICE void each_edge(const int32_t* edges, int64_t first, int64_t last, Visit&& visit) {
  const int lane = device::thread() % 32;
  for (int64_t e = first / line_edges * line_edges + lane; e - lane < last; e += 32) {
    const bool mine = e >= first && e < last;
    const int32_t value = device::load_warp(edges + e, mine);
    if (mine) visit(value, e);
  }
}

MGG_DEVICE int64_t number_of(const DeviceLists& lists, int64_t list) { return lists.number ? lists.number[list] : list; }

MGG_DEVICE int64_t first_thread() { return int64_t(device::block()) * device::threads() + device::thread(); }
MGG_DEVICE int64_t all_threads() { return int64_t(device::blocks()) * device::threads(); }

// Calls visit(source, value, place) for each edge of the sources for which taken(source) says so.
template <class Taken, class Visit>
MGG_DEVICE void each_list(const DeviceLists& lists, Taken&& taken, Visit&& visit) {
  for (int64_t list = first_thread() / 32; list < lists.count; list += all_threads() / 32) {
    const int64_t source = number_of(lists, list);
    if (taken(source))
      each_edge(lists.edge, lists.offset[list], lists.offset[list + 1],
                [&](int32_t value, int64_t e) { visit(source, value, e); });
  }
}

MGG_KERNEL void bfs_level(DeviceBfs call) {
  each_list(
      call.lists, [&](int64_t source) { return call.depth[source] == call.level; },
      [&](int64_t source, int32_t row, int64_t) {
        const int32_t depth = call.depth[row];
        if (depth >= 0 && depth <= call.level) return;
        device::lower(&call.parent[row], static_cast<uint32_t>(source));
        if (depth < 0) call.depth[row] = call.level + 1;
      });
}

// A row's list is read until a source on the level is found, which is the first of them, since lists ascend.
MGG_KERNEL void bfs_bottom_up(DeviceBfs call) {
  const DeviceLists& lists = call.lists;
  const int lane = device::thread() % 32;
  for (int64_t list = first_thread() / 32; list < lists.count; list += all_threads() / 32) {
    const int64_t row = number_of(lists, list);
    if (call.depth[row] >= 0) continue;
    const int64_t first = lists.offset[list], last = lists.offset[list + 1];
    for (int64_t e = first / line_edges * line_edges + lane; e - lane < last; e += 32) {
      const bool mine = e >= first && e < last;
      const int32_t source = device::load_warp(lists.edge + e, mine);
      const uint32_t above = device::vote(whole_warp, mine && call.depth[source] == call.level);
      if (!above) continue;
      if (lane == device::lowest(above)) {
        call.parent[row] = static_cast<uint32_t>(source);
        call.depth[row] = call.level + 1;
      }
      break;
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

MGG_KERNEL void sssp_round(DeviceSssp call) {
  each_list(
      call.lists, [&](int64_t source) { return call.active[source] != 0; },
      [&](int64_t source, int32_t row, int64_t e) {
        const float shorter = device::float_of(call.value[source]) + call.lists.length[e];
        if (!(shorter < device::float_of(call.value[row]))) return;
        const uint32_t bits = device::bits_of(shorter);
        if (device::lower(&call.value[row], bits) > bits) call.next[row] = 1, *call.found = 1;
      });
}

MGG_KERNEL void components_round(DeviceComponents call) {
  each_list(
      call.lists, [&](int64_t source) { return call.active[source] != 0; },
      [&](int64_t source, int32_t row, int64_t) {
        const uint64_t label = call.value[source];
        if (label >= call.value[row]) return;
        device::lower(&call.value[row], label);
        call.next[row] = 1, *call.found = 1;
      });
}

MGG_DEVICE void enter(const DevicePageRank& call, int64_t row, double sum) {
  const float rank = static_cast<float>(call.base + sum), before = call.rank[row];
  call.rank[row] = rank;
  call.next[row] = rank * call.inverse[row];
  call.change[row] = rank > before ? rank - before : before - rank;
  call.dangling[row] = call.inverse[row] == 0 ? rank : 0;
}

// A row's sum is a warp's, whose lanes' sums are added in a tree: the same bits in every run.
MGG_KERNEL void pagerank_round(DevicePageRank call) {
  const DeviceLists& lists = call.lists;
  for (int64_t list = first_thread() / 32; list < lists.count; list += all_threads() / 32) {
    double sum = 0;  // many equal values would all be rounded the same way
    each_edge(lists.edge, lists.offset[list], lists.offset[list + 1], [&](int32_t source, int64_t e) {
      sum += lists.length ? call.given[source] * lists.length[e] : call.given[source];
    });
    for (int other = 16; other > 0; other /= 2) sum += device::from_lane_xor(whole_warp, sum, other);
    if (device::thread() % 32 == 0) enter(call, number_of(lists, list), sum);
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
