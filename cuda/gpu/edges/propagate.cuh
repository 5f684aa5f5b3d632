// Scatter, ApplyEdge and Gather in one pass over the edges on GPUs: a tape of operators (mgg/tape.h) is interpreted for
// each edge; cpu/tapes/propagate.cpp has the same for CPUs.
//
// A register is a Quad: four values of a lane, in shared memory. They are of one column of four edges, or, where a worker's
// lanes have more columns than one, of four columns of an edge; a narrow register has its edge's value for each of them. So
// a step costs one look at the tape for four values. Outputs are registers too, but for typed ones, whose columns are
// chosen by the edge: these are added to where they lie in memory, each column by its own lane. A sum over columns is one
// over the worker's lanes. Where rows are walked in passes, it first goes over all of them, and each pass computes the
// sums again.
#pragma once
#include <cmath>

#include "gpu/edges/edges.cuh"
#include "mgg/tape.h"

namespace mgg {

struct alignas(16) Quad {
  float of[4];
};

template <class Function>
MGG_DEVICE Quad each(const Quad& a, const Quad& b, Function&& function) {
  Quad found;
#pragma unroll
  for (int j = 0; j < 4; ++j) found.of[j] = function(a.of[j], b.of[j]);
  return found;
}

// One step but column_sum. b: a where there is one operand.
MGG_DEVICE Quad tape_step(const DeviceTapeStep& step, const Quad& a, const Quad& b) {
  const float value = step.value;
  switch (static_cast<TapeOp>(step.op)) {
    case TapeOp::exp: return each(a, b, [](float x, float) { return expf(x); });
    case TapeOp::log: return each(a, b, [](float x, float) { return logf(x); });
    case TapeOp::sqrt: return each(a, b, [](float x, float) { return sqrtf(x); });
    case TapeOp::tanh: return each(a, b, [](float x, float) { return tanhf(x); });
    case TapeOp::sigmoid: return each(a, b, [](float x, float) { return logistic(expf(-x)); });
    case TapeOp::abs: return each(a, b, [](float x, float) { return magnitude(x); });
    case TapeOp::reciprocal: return each(a, b, [](float x, float) { return 1 / x; });
    case TapeOp::leaky_relu: return each(a, b, [=](float x, float) { return leaky_relu(x, value); });
    case TapeOp::add_value: return each(a, b, [=](float x, float) { return x + value; });
    case TapeOp::mul_value: return each(a, b, [=](float x, float) { return x * value; });
    case TapeOp::add: return each(a, b, [](float x, float y) { return x + y; });
    case TapeOp::sub: return each(a, b, [](float x, float y) { return x - y; });
    case TapeOp::mul: return each(a, b, [](float x, float y) { return x * y; });
    case TapeOp::div: return each(a, b, [](float x, float y) { return x / y; });
    case TapeOp::maximum: return each(a, b, [](float x, float y) { return larger_of(x, y); });
    case TapeOp::minimum: return each(a, b, [](float x, float y) { return smaller_of(x, y); });
    case TapeOp::where_positive: return each(a, b, [=](float x, float y) { return where_positive(x, y, value); });
    case TapeOp::times_sign: return each(a, b, [](float x, float y) { return times_sign(x, y); });
    case TapeOp::above: return each(a, b, [](float x, float y) { return above(x, y, 1.0f); });
    case TapeOp::equal: return each(a, b, [](float x, float y) { return equal(x, y, 1.0f); });
    default: return a;  // pick, splat
  }
}

// COLUMNS: of a lane in a pass, 1 or 4.
template <class S, int COLUMNS>
struct PropagateOp : EdgeOp<S, false, DevicePropagate<S>> {
  using Base = EdgeOp<S, false, DevicePropagate<S>>;
  using Base::Base, Base::of, Base::worker;
  static constexpr bool in_memory = true;
  static constexpr int edges_of_quad = 4 / COLUMNS;
  struct State {
    int32_t slot;  // where typed outputs lie: a part of a hub, or -1: in the results
  };
  // The edges of a Quad; beyond `count` the last one is there again, and takes no part.
  struct Group {
    int count;
    const S* row[edges_of_quad];
    int64_t edge[edges_of_quad];
  };

  MGG_DEVICE void begin(State& state) const {
    state.slot = worker.slot;
    for (int o = 0; o < of.output_count; ++o) {
      output(o) = {};
      for (int64_t type = 0; type < types(o); ++type)
        each_column([&](int, int32_t column) { row(state.slot, o)[type * of.edges.channels + column] = 0.0f; });
    }
    if (of.max) output(0) = each({}, {}, [](float, float) { return float_of_bits(0xFF800000u); });
  }

  MGG_DEVICE void take(State& state, const typename Base::Batch& batch) const {
    for (int o = 0; o < of.output_count; ++o) added(o) = {};
    for (int first = 0; first < batch.count; first += edges_of_quad) {
      Group group;
      group.count = batch.count - first < edges_of_quad ? batch.count - first : edges_of_quad;
#pragma unroll
      for (int u = 0; u < edges_ahead; ++u)
        if (u / edges_of_quad * edges_of_quad == first)
          group.row[u % edges_of_quad] = batch.row[u], group.edge[u % edges_of_quad] = batch.edge[u];
      compute(group);
      of.max ? raise(group) : add(state, group);
    }
    if (of.max) return;
    for (int o = 0; o < of.output_count; ++o)
      output(o) = each(output(o), added(o), [](float x, float y) { return x + y; });
  }

  // Leaves what lies in registers in a part's slot, where typed outputs are.
  MGG_DEVICE void keep(int32_t slot) const {
    for (int o = 0; o < of.output_count; ++o)
      if (!types(o)) each_value(o, [&](int i, int32_t column) { row(slot, o)[column] = output(o).of[i]; });
  }
  // Merges `count` parts of a hub, `step` slots apart: into registers, and typed ones into the first slot.
  MGG_DEVICE void merge_slots(State& state, int32_t slot, int32_t count, int32_t step) const {
    state.slot = slot;
    const auto part = [&](int32_t at, int o, int64_t column) {
      return device::load_fresh(row(slot + at * step, o) + column);
    };
    if (of.max) {
      output(0) = each({}, {}, [](float, float) { return float_of_bits(0xFF800000u); });
      for (int o = 1; o < of.output_count; ++o) output(o) = {};
      for (int32_t at = 0; at < count; ++at)
        each_value(0, [&](int i, int32_t column) { raise(i, [&](int o) { return part(at, o, column); }); });
      return;
    }
    const auto total = [&](int o, int64_t column) {
      float sum = part(0, o, column);
      for (int32_t at = 1; at < count; ++at) sum += part(at, o, column);
      return sum;
    };
    for (int o = 0; o < of.output_count; ++o) {
      for (int64_t type = 0; type < types(o); ++type)
        each_column([&](int, int32_t column) {
          const int64_t place = type * of.edges.channels + column;
          row(slot, o)[place] = total(o, place);
        });
      if (!types(o)) each_value(o, [&](int i, int32_t column) { output(o).of[i] = total(o, column); });
    }
  }

  MGG_DEVICE void finish(State& state) const {
    const int32_t degree = of.edges.degree[worker.destination];
    const float divisor = of.mean ? mean_divisor<float>(degree) : 1.0f;
    for (int o = 0; o < of.output_count; ++o) {
      for (int64_t type = 0; type < types(o); ++type)
        each_column([&](int, int32_t column) {
          const int64_t place = type * of.edges.channels + column;
          row(-1, o)[place] = row(state.slot, o)[place] / divisor;
        });
      if (!types(o))
        each_value(o, [&](int i, int32_t column) {
          row(-1, o)[column] = degree > 0 ? output(o).of[i] / divisor : 0.0f;
        });
    }
  }

 private:
  // This lane's Quads: registers, outputs, what a batch adds to each, and sums over columns.
  MGG_DEVICE Quad& at(int number) const {
    return reinterpret_cast<Quad*>(device::shared())[number * device::threads() + device::thread()];
  }
  MGG_DEVICE Quad& output(int o) const { return at(of.registers + o); }
  MGG_DEVICE Quad& added(int o) const { return at(of.registers + of.output_count + o); }
  MGG_DEVICE Quad& column_sum(int k) const { return at(of.registers + 2 * of.output_count + k); }

  // An output's columns: of the destination, or of a part of a hub.
  MGG_DEVICE float* row(int32_t slot, int o) const {
    if (slot < 0) return of.out[o].rows + worker.destination * of.out[o].stride;
    return of.edges.partials + int64_t(slot) * of.state + of.outputs[o].place;
  }
  // 0 for an output without types.
  MGG_DEVICE int32_t types(int o) const {
    return of.outputs[o].type < 0 ? 0 : of.outputs[o].width / of.edges.channels;
  }
  // Calls body(place in a Quad, column) for this lane's columns, in this pass.
  template <class Body>
  MGG_DEVICE void each_column(Body&& body) const {
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
      if (worker.has(i, worker.pass)) body(i, worker.column(i, worker.pass));
  }
  // The same for an output, of which narrow ones have one column, the first lane's.
  template <class Body>
  MGG_DEVICE void each_value(int o, Body&& body) const {
    if (of.outputs[o].width > 1) return each_column(body);
    if (worker.lane == 0 && worker.pass == 0) body(0, 0);
  }

  // Runs the tape for the edges of a group.
  MGG_DEVICE void compute(const Group& group) const {
    if (of.edges.passes > 1)
      for (int s = 0, sums = 0; s < of.step_count; ++s) {
        if (!sums_columns(of.steps[s])) continue;
        Quad total{};
        for (int32_t pass = 0; pass < of.edges.passes; ++pass) {
          run(group, s, pass);
          total = each(total, over_columns(read(of.steps[s].a, group, pass), pass), [](float x, float y) { return x + y; });
        }
        column_sum(sums++) = over_lanes(total);
      }
    run(group, of.step_count, worker.pass);
  }
  // The first `count` steps, in a pass over the columns.
  MGG_DEVICE void run(const Group& group, int count, int32_t pass) const {
    for (int s = 0, sums = 0; s < count; ++s) {
      const DeviceTapeStep& step = of.steps[s];
      Quad& out = at(of.values[step.out].index);
      if (sums_columns(step) && of.edges.passes > 1) {
        out = column_sum(sums++);
        continue;
      }
      const Quad a = read(step.a, group, pass);
      if (sums_columns(step))
        out = over_lanes(over_columns(a, pass));
      else
        out = tape_step(step, a, step.b == step.a ? a : read(step.b, group, pass));
    }
  }
  MGG_DEVICE static bool sums_columns(const DeviceTapeStep& step) {
    return static_cast<TapeOp>(step.op) == TapeOp::column_sum;
  }

  // The sum of a lane's columns, for each edge.
  MGG_DEVICE Quad over_columns(const Quad& a, int32_t pass) const {
    Quad sum{};
    if constexpr (COLUMNS == 1)
      return worker.has(0, pass) ? a : sum;
    else {
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i)
        if (worker.has(i, pass)) sum.of[0] += a.of[i];
      return sum;
    }
  }
  MGG_DEVICE Quad over_lanes(const Quad& a) const {
    Quad sum;
#pragma unroll
    for (int e = 0; e < edges_of_quad; ++e) sum.of[e] = worker.over_lanes(a.of[e]);
#pragma unroll
    for (int j = edges_of_quad; j < 4; ++j) sum.of[j] = sum.of[0];
    return sum;
  }

  // A value for the edges of a group, and this lane's columns in a pass: 0 beyond the last column.
  MGG_DEVICE Quad read(int value, const Group& group, int32_t pass) const {
    const DeviceTapeValue& place = of.values[value];
    const auto kind = static_cast<TapeKind>(place.kind);
    if (kind == TapeKind::wide) return at(place.index);
    Quad found;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int e = COLUMNS == 1 ? j : 0, i = COLUMNS == 1 ? 0 : j;
      const int32_t column = place.narrow ? 0 : worker.column(i, pass);
      found.of[j] = column < of.edges.channels ? operand(place, kind, group.row[e], group.edge[e], column) : 0.0f;
    }
    return found;
  }
  MGG_DEVICE float operand(const DeviceTapeValue& place, TapeKind kind, const S* source, int64_t edge,
                           int32_t column) const {
    switch (kind) {
      case TapeKind::far: return widen(source[place.index + typed(place.type, edge) + column]);
      case TapeKind::near: {
        const DeviceNear<const float>& near = of.near[place.index];
        return near.rows[worker.destination * near.stride + typed(place.type, edge) + column];
      }
      case TapeKind::shared: return of.shared[place.index + column];
      default: return of.edge[edge * of.edge_columns + place.index];
    }
  }
  // The first of the columns that an edge's type chooses.
  MGG_DEVICE int64_t typed(int type, int64_t edge) const {
    return type < 0 ? 0 : int64_t(of.edges.channels) * static_cast<int32_t>(of.edge[edge * of.edge_columns + type]);
  }

  // Adds the outputs of a group: typed ones where they lie.
  MGG_DEVICE void add(const State& state, const Group& group) const {
    for (int o = 0; o < of.output_count; ++o) {
      const Quad value = read(of.outputs[o].value, group, worker.pass);
      Quad& sum = added(o);
#pragma unroll
      for (int e = 0; e < edges_of_quad; ++e) {
        if (e >= group.count) break;
        if (types(o)) {
          float* to = row(state.slot, o) + typed(of.outputs[o].type, group.edge[e]);
          each_column([&](int i, int32_t column) { to[column] += value.of[e + i]; });
        } else {
#pragma unroll
          for (int i = 0; i < COLUMNS; ++i) sum.of[i] += value.of[e + i];
        }
      }
    }
  }
  // Takes larger first outputs of a group's edges, in their order.
  MGG_DEVICE void raise(const Group& group) const {
    for (int o = 0; o < of.output_count; ++o) added(o) = read(of.outputs[o].value, group, worker.pass);
    for (int e = 0; e < group.count; ++e)
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) raise(i, [&](int o) { return added(o).of[e + i]; });
  }
  // Takes a larger first output with what belongs to it, and adds what belongs to an equal one. NaN stays NaN.
  template <class Value>
  MGG_DEVICE void raise(int i, Value&& value) const {
    const float most = output(0).of[i], first = value(0);
    const bool larger = most == most && !(first <= most), same = first == most;
    for (int o = of.output_count; o-- > 1;) {
      float& to = output(o).of[i];
      to = larger ? value(o) : same ? to + value(o) : to;
    }
    if (larger) output(0).of[i] = first;
  }
};

}  // namespace mgg
