// A hop of neighbour sampling: the draws of cpu/sampling/sample.cpp, a warp for each destination, and new rows in the order
// in which edges meet them.
//
// All sources are entered into a hash table at once, each with its edge's number, of which the lowest stays. So whether
// an edge is the first from its source does not depend on who came first; and the number of a new row is that of the
// edges before its first one that are the first from theirs: a running sum, which the caller computes.
#pragma once
#include "gpu/sampling/arguments.h"
#include "gpu/worker.cuh"
#include "mgg/sampling.h"

namespace mgg {

using Warp = Worker<32>;
using Thread = Worker<1>;
constexpr uint64_t no_row = ~uint64_t(0);
constexpr double infinity = __builtin_inf();
constexpr uint32_t again = 0x80000000u;  // of a place that was picked before

// A destination: its row, edges first .. first + degree - 1 in the memory that has them.
struct Destination {
  int64_t row, degree, first;
  bool near;
  MGG_DEVICE Destination(const DeviceHop& hop, int64_t number)
      : row(hop.nodes[number]), degree(hop.indptr[row + 1] - hop.indptr[row]) {
    const int64_t place = hop.near_first ? hop.near_first[row] : -1;
    near = place >= 0, first = near ? place : hop.indptr[row];
  }
  // A value of the edge at a place in the row, for the lanes that want one. All lanes of the warp call it.
  template <class T>
  MGG_DEVICE T load(const void* nearby, const void* all, int64_t place, bool wanted) const {
    return device::load_warp(static_cast<const T*>(near ? nearby : all) + first + place, wanted);
  }
  MGG_DEVICE Philox words(const DeviceHop& hop, uint64_t quad) const {
    const auto id = static_cast<uint64_t>(hop.ids ? hop.ids[row] : row);
    return draw(hop.seed, static_cast<uint32_t>(hop.step), static_cast<uint32_t>(hop.stream), id, quad);
  }
  MGG_DEVICE uint32_t word(const DeviceHop& hop, uint64_t number) const {
    const Philox four = words(hop, number / 4);
    const uint32_t low = number & 1 ? four.word[1] : four.word[0], high = number & 1 ? four.word[3] : four.word[2];
    return number & 2 ? high : low;
  }
};

MGG_KERNEL void count_draws(DeviceHop hop) {
  for (int64_t i = Thread::number(); i < hop.count; i += Thread::workers()) {
    const int64_t degree = Destination(hop, i).degree;
    hop.slot[i + 1] = degree < hop.fanout ? degree : hop.fanout;
  }
}

// Floyd's sample, in which pick i of k out of d takes place d - k + i if what it has drawn was picked before: by a pick that
// has drawn the same, or by pick j that has taken d - k + j for the same reason. (What others draw stays readable.)
MGG_DEVICE bool picked_before(const uint32_t* place, int64_t pick, int64_t left_out) {
  for (;;) {
    const uint32_t value = place[pick] & ~again;
    for (int64_t before = 0; before < pick; ++before)
      if ((place[before] & ~again) == value) return true;
    const int64_t other = int64_t(value) - left_out;
    if (other < 0 || other >= pick) return false;
    pick = other;
  }
}

MGG_KERNEL void draw_evenly(DeviceHop hop) {
  const Warp warp;
  for (int64_t i = Warp::number(); i < hop.count; i += Warp::workers()) {
    const Destination to(hop, i);
    const int64_t left_out = to.degree - hop.fanout;
    if (left_out <= 0) continue;
    uint32_t* place = hop.place + hop.slot[i];
    uint64_t spare = static_cast<uint64_t>(hop.fanout + 3) / 4 * 4;  // words after the picks' last quad
    for (int64_t first = 0; first < hop.fanout; first += 32) {
      const int64_t pick = first + warp.lane;
      const auto range = static_cast<uint32_t>(left_out + pick + 1);
      uint32_t value = 0;
      uint32_t refused = device::vote(warp.mask, pick < hop.fanout && !bounded(to.word(hop, pick), range, value));
      for (; refused; refused &= refused - 1) {
        const int turn = device::lowest(refused);
        if (warp.lane == turn)
          while (!bounded(to.word(hop, spare++), range, value)) continue;
        spare = device::from_lane(warp.mask, spare, turn);
      }
      if (pick < hop.fanout) place[pick] = value;
    }
    warp.sync();
    for (int64_t pick = warp.lane; pick < hop.fanout; pick += 32)
      if (picked_before(place, pick, left_out)) place[pick] |= again;
  }
}

// Keeps the smallest keys and their places, ascending, in a list of fanout + 1, of which the last is not drawn. Where all
// edges of positive weight are, their places are listed alone.
MGG_KERNEL void draw_by_weight(DeviceHop hop) {
  const Warp warp;
  for (int64_t i = Warp::number(); i < hop.count; i += Warp::workers()) {
    const Destination to(hop, i);
    const int64_t k = hop.fanout, slot = hop.slot[i];
    const bool all = to.degree <= k;
    uint32_t *place = hop.place + slot, *kept = hop.kept + slot + i;
    double *keys = hop.key + slot + i, bound = infinity;
    for (int64_t j = warp.lane; !all && j <= k; j += 32) keys[j] = infinity;
    warp.sync();
    int64_t count = 0;
    for (int64_t first = 0; first < to.degree; first += 32) {
      const int64_t at = first + warp.lane;
      const float weight = to.load<float>(hop.near_weight, hop.weight, at, at < to.degree);
      const Philox four = to.words(hop, static_cast<uint64_t>(at) / 2);
      const double key = edge_key(at % 2 ? four.word[2] : four.word[0], at % 2 ? four.word[3] : four.word[1], weight);
      uint32_t offered = device::vote(warp.mask, key < bound);
      if (all) {
        if (key < bound) place[count + device::count(offered & ((1u << warp.lane) - 1))] = static_cast<uint32_t>(at);
        count += device::count(offered);
        continue;
      }
      for (; offered; offered &= offered - 1) {
        const int turn = device::lowest(offered);
        const double other = device::from_lane(warp.mask, key, turn);
        for (int64_t j = k / 32 * 32 + warp.lane; j >= warp.lane; j -= 32) {  // what is larger moves up
          const bool moves = j <= k && keys[j] > other;
          const double before = moves && j > 0 ? keys[j - 1] : -1;
          const uint32_t from = moves && j > 0 ? kept[j - 1] : 0;
          warp.sync();
          if (moves) keys[j] = before > other ? before : other;
          if (moves) kept[j] = before > other ? from : static_cast<uint32_t>(first + turn);
          warp.sync();
        }
      }
      bound = keys[k];
    }
    for (int64_t j = warp.lane; !all && j - warp.lane < k; j += 32)
      count += device::count(device::vote(warp.mask, j < k && keys[j] < infinity));
    for (int64_t j = warp.lane; !all && j < count; j += 32) {
      int64_t rank = 0;
      for (int64_t other = 0; other < count; ++other) rank += kept[other] < kept[j];
      place[rank] = kept[j];
    }
    if (warp.lane == 0) hop.limit[i] = bound, hop.begin[i + 1] = count;
  }
}

// Returns the slot of a row in the table, where `number` stays if it is the lowest.
MGG_DEVICE int64_t entered(const DeviceHop& hop, int64_t row, int64_t number) {
  const auto wanted = static_cast<uint64_t>(row);
  for (uint64_t at = wanted * 0x9E3779B97F4A7C15u >> hop.shift;; at = (at + 1) & (~uint64_t(0) >> hop.shift)) {
    uint64_t held = hop.row[at];
    if (held == no_row) held = device::swap_if(&hop.row[at], no_row, wanted);
    if (held != no_row && held != wanted) continue;
    device::lower(&hop.first[at], static_cast<uint64_t>(number));
    return static_cast<int64_t>(at);
  }
}

MGG_KERNEL void enter_rows(DeviceHop hop) {
  const Warp warp;
  const bool weighted = hop.weight || hop.near_weight;
  for (int64_t i = Warp::number(); i < hop.count; i += Warp::workers()) {
    const Destination to(hop, i);
    if (warp.lane == 0) entered(hop, to.row, i);
    const int64_t begin = hop.begin[i], count = hop.begin[i + 1] - begin, left_out = to.degree - hop.fanout;
    const uint32_t* place = hop.place + hop.slot[i];
    if (!weighted && warp.lane == 0)
      hop.factor[i] = left_out > 0 ? static_cast<double>(to.degree) / static_cast<double>(hop.fanout) : 1.0;
    for (int64_t e = warp.lane; e - warp.lane < count; e += 32) {
      const bool mine = e < count;
      int64_t at = e;
      if (mine && (weighted || left_out > 0)) at = place[e] & again ? left_out + e : place[e];
      const int64_t source = hop.wide ? to.load<int64_t>(hop.near_source, hop.source, at, mine)
                                      : to.load<int32_t>(hop.near_source, hop.source, at, mine);
      if (weighted) {
        const float weight = to.load<float>(hop.near_weight, hop.weight, at, mine);
        if (mine) hop.factor[begin + e] = one_over_drawn(weight, hop.limit[i]);
      }
      if (!mine) continue;
      hop.entry[begin + e] = entered(hop, source, hop.count + begin + e);
      if (hop.edge) hop.edge[begin + e] = hop.indptr[to.row] + at;
    }
  }
}

MGG_KERNEL void mark_first(DeviceHop hop) {
  for (int64_t e = Thread::number(); e < hop.edges; e += Thread::workers())
    hop.rank[e + 1] = hop.first[hop.entry[e]] == static_cast<uint64_t>(hop.count + e);
}

MGG_KERNEL void number_rows(DeviceHop hop) {
  for (int64_t e = Thread::number(); e < hop.edges; e += Thread::workers()) {
    const int64_t entry = hop.entry[e], met = static_cast<int64_t>(hop.first[entry]) - hop.count;
    const int64_t number = hop.count + (met < 0 ? met : hop.rank[met]);
    hop.indices[e] = static_cast<int32_t>(number);
    if (met == e) hop.found[number] = static_cast<int64_t>(hop.row[entry]);
  }
}

}  // namespace mgg
