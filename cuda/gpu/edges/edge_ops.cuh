// Maxima with their ties, sums with a weight for each edge and head, and dot products for each edge, on GPUs;
// cpu/edges.h has the formulas.
#pragma once
#include "gpu/edges/edges.cuh"

namespace mgg {

// The maximum of each column, 0 without edges, and how many edges reach it. NaN stays NaN.
template <class S, bool PACKED>
struct MaxTies : EdgeOp<S, PACKED, DeviceMaxTies<S>> {
  using Base = EdgeOp<S, PACKED, DeviceMaxTies<S>>;
  using Base::Base, Base::of, Base::worker, Base::values;
  struct State {
    float most[Base::values], ties[Base::values];
  };

  MGG_DEVICE void begin(State& state) const {
#pragma unroll
    for (int i = 0; i < values; ++i) state.most[i] = float_of_bits(0xFF800000u), state.ties[i] = 0.0f;
  }
  MGG_DEVICE static void raise(State& state, int i, float value, float ties) {
    const float most = state.most[i];
    const bool larger = most == most && !(value <= most);
    state.ties[i] = larger ? ties : value == most ? state.ties[i] + ties : state.ties[i];
    state.most[i] = larger ? value : most;
  }
  MGG_DEVICE void take(State& state, const typename Base::Batch& batch) const {
    device::Pack rows[edges_ahead];
    float row[Base::values];
    batch.load(worker, 0, rows);
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      if (u >= batch.count) break;
      widen<S>(rows[u], row);
#pragma unroll
      for (int i = 0; i < values; ++i) raise(state, i, row[i], 1.0f);
    }
  }
  MGG_DEVICE void merge(State& into, const State& from) const {
#pragma unroll
    for (int i = 0; i < values; ++i) raise(into, i, from.most[i], from.ties[i]);
  }
  MGG_DEVICE void finish(State& state) const {
    if (of.edges.degree[worker.destination] == 0)
#pragma unroll
      for (int i = 0; i < values; ++i) state.most[i] = 0.0f;
    worker.store_near(of.out, state.most);
    worker.store_near(of.ties, state.ties);
  }
};

// Sums of columns, of which Ops add what they like.
template <int VALUES>
struct SumState {
  float sum[VALUES];
};
template <class S, bool PACKED, class CALL>
struct SumOp : EdgeOp<S, PACKED, CALL> {
  using Base = EdgeOp<S, PACKED, CALL>;
  using Base::Base, Base::of, Base::worker, Base::values;
  using State = SumState<Base::values>;

  MGG_DEVICE void begin(State& state) const {
#pragma unroll
    for (int i = 0; i < values; ++i) state.sum[i] = 0.0f;
  }
  MGG_DEVICE void merge(State& into, const State& from) const { add_each(into.sum, from.sum); }
  MGG_DEVICE void finish(State& state) const { worker.store_near(of.out, state.sum); }
};

// The adjoint of a maximum: a target's gradient over its ties goes to those sources that equal its maximum.
template <class S, bool PACKED>
struct MaxBack : SumOp<S, PACKED, DeviceMaxBack<S>> {
  using Base = SumOp<S, PACKED, DeviceMaxBack<S>>;
  using Base::of, Base::worker, Base::values;
  float x[Base::values];

  MGG_DEVICE MaxBack(const DeviceMaxBack<S>& of, const typename Base::Worker& worker) : Base(of, worker) {
    worker.load_near(of.x, x);
  }
  MGG_DEVICE void take(typename Base::State& state, const typename Base::Batch& batch) const {
    device::Pack gradients[edges_ahead], maxima[edges_ahead];
    float added[Base::values] = {}, gradient[Base::values], most[Base::values];
    batch.load(worker, 0, gradients);
    batch.load(worker, of.edges.channels, maxima);
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      if (u >= batch.count) break;
      widen<S>(gradients[u], gradient), widen<S>(maxima[u], most);
#pragma unroll
      for (int i = 0; i < values; ++i) added[i] += most[i] == x[i] ? gradient[i] : 0.0f;
    }
    add_each(state.sum, added);
  }
};

template <class S, bool PACKED>
struct Weighted : SumOp<S, PACKED, DeviceWeighted<S>> {
  using Base = SumOp<S, PACKED, DeviceWeighted<S>>;
  using Base::Base, Base::of, Base::worker;

  MGG_DEVICE void take(typename Base::State& state, const typename Base::Batch& batch) const {
    device::Pack rows[edges_ahead];
    float weight[edges_ahead];
    batch.load(worker, 0, rows);
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u)
      weight[u] = u < batch.count ? batch.of_head(worker, of.weight, u) : 0.0f;
    add_weighted<S>(batch.count, rows, weight, state.sum);
  }
};

// A dot product for each edge and head (SDDMM), stored as it is found. A worker goes over all passes.
template <class S, bool PACKED>
struct Sddmm : EdgeOp<S, PACKED, DeviceSddmm<S>> {
  using Base = EdgeOp<S, PACKED, DeviceSddmm<S>>;
  using Base::of, Base::worker;
  struct State {
    float nothing;
  };
  static constexpr bool merges = false;
  float y[Base::values];

  MGG_DEVICE Sddmm(const DeviceSddmm<S>& of, const typename Base::Worker& worker) : Base(of, worker) {
    worker.load_near(of.y, y);
  }
  MGG_DEVICE void begin(State& state) const { state.nothing = 0.0f; }
  MGG_DEVICE void take(State&, const typename Base::Batch& batch) const {
    device::Pack rows[edges_ahead];
    float found[edges_ahead];
    batch.load(worker, 0, rows);
    batch.dots(worker, 0, rows, of.y, y, found);
    if (worker.lane == 0)
#pragma unroll
      for (int u = 0; u < edges_ahead; ++u)
        if (u < batch.count) of.out[batch.edge[u] * of.edges.heads + worker.head] = found[u];
  }
  MGG_DEVICE void merge(State&, const State&) const {}
  MGG_DEVICE void finish(State&) const {}
};

}  // namespace mgg
