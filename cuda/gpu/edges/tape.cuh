// Scatter, ApplyEdge and Gather in one pass over the edges on GPUs: a tape of operators (mgg/tape.h) as an Op of the loop
// in edges.cuh. Python writes the tape itself as a struct of straight-line code (mgg_hpc/runtime/backends/cuda/
// tape_source.py), and NVRTC compiles it together with these headers.
//
// Outputs are sums in a lane's registers, but for typed ones, whose columns are chosen by the edge: these are added to
// where they lie in memory, each column by its own lane. Where rows are walked in passes, a sum over columns first goes
// over all of them, and each pass computes the sums again.
#pragma once
#include "gpu/edges/edges.cuh"

#define MGG_EACH_COLUMN _Pragma("unroll") for (int i = 0; i < mine; ++i)  // of a lane, in a tape's own code
#if defined(MGG_SHIM)
#define MGG_TAPE_KERNEL(TAPE)                                                            \
  extern "C" __attribute__((visibility("default"))) void mgg_tape(const void* call) {    \
    mgg::run_tape<TAPE>(*static_cast<const TAPE::Call*>(call));                          \
  }
#else
#define MGG_TAPE_KERNEL(TAPE)                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 1) mgg_tape(const __grid_constant__ TAPE::Call call) { \
    mgg::run_tape<TAPE>(call);                                                                             \
  }
#endif

namespace mgg {

// Arguments of a tape's kernel; what follows `edges` has 8 bytes each, which Python appends.
template <class S, int OUTPUTS, int NEAR>
struct DeviceTape {
  DeviceEdges<S> edges;
  const float* shared;
  const float* edge;  // [E, edge_columns]
  int64_t edge_columns;
  DeviceNear<float> out[OUTPUTS];
  DeviceNear<const float> near[NEAR];
};

// How COLUMNS columns are divided among a worker's lanes: in each pass a lane has MINE of them, LANES apart.
template <class S, int COLUMNS, int LANES, int MINE, int PASSES>
struct TapeColumns {
  using Row = S;
  using Worker = HeadWorker<S, false>;
  static constexpr int columns = COLUMNS, lanes = LANES, mine = MINE, passes = PASSES;
  // Edges whose rows are loaded before the first is computed: up to eight values of each operand.
  static constexpr int ahead = MINE > 2 ? 8 / MINE : edges_ahead;

  MGG_DEVICE static int32_t column(const Worker& at, int32_t pass, int i) { return (pass * MINE + i) * LANES + at.lane; }
  MGG_DEVICE static bool has(const Worker& at, int32_t pass, int i) { return column(at, pass, i) < COLUMNS; }
  // The first of the columns that an edge's type chooses, the value `type` of its data.
  template <class Call>
  MGG_DEVICE static int64_t typed(const Call& call, int32_t type, int64_t edge) {
    return int64_t(COLUMNS) * static_cast<int32_t>(call.edge[edge * call.edge_columns + type]);
  }
};

// Tape: TapeColumns, and
//   Call                             DeviceTape
//   outputs, state                   number of outputs, and floats of all of them
//   max, mean                        the reduction; else sums
//   width(o), place(o), types(o), type(o)  of an output: its columns and where they begin among all outputs' columns, its
//                                    number of types or 0, and the column of edge data that has the edge's
//   Near, load_near(...)             operands that all edges of a destination share
//   Far, load_far(...)               operands of an edge
//   compute(..., out)                an edge's values of all outputs
template <class Tape>
struct TapeOp : EdgeOp<typename Tape::Row, false, typename Tape::Call> {
  using Base = EdgeOp<typename Tape::Row, false, typename Tape::Call>;
  using Base::of, Base::worker;
  static constexpr bool in_memory = true;
  struct State {
    float sum[Tape::outputs][Tape::mine];
    int32_t slot;  // where typed outputs lie: a part of a hub, or -1: in the results
  };
  typename Tape::Near near;

  MGG_DEVICE TapeOp(const typename Tape::Call& of, const typename Base::Worker& worker)
      : Base(of, worker), near(Tape::load_near(of, worker, worker.pass)) {}

  MGG_DEVICE void begin(State& state) const {
    clear(state);
    state.slot = worker.slot;
    each_typed([&](int o, int64_t c) { row(state.slot, o)[c] = 0.0f; });
  }

  MGG_DEVICE void take(State& state, const typename Base::Batch& batch) const {
    State added;
    clear(added);
#pragma unroll
    for (int first = 0; first < edges_ahead; first += Tape::ahead) {
      if (first >= batch.count) break;
      typename Tape::Far far[Tape::ahead];
#pragma unroll
      for (int u = 0; u < Tape::ahead; ++u)
        far[u] = Tape::load_far(of, worker, worker.pass, batch.row[first + u], batch.edge[first + u]);
#pragma unroll
      for (int u = 0; u < Tape::ahead; ++u) {
        const int e = first + u;
        if (e >= batch.count) break;
        float out[Tape::outputs][Tape::mine];
        Tape::compute(of, worker, batch.row[e], batch.edge[e], near, far[u], out);
        if (Tape::max) {
#pragma unroll
          for (int i = 0; i < Tape::mine; ++i) raise(state, i, [&](int o) { return out[o][i]; });
        } else {
          add(state, added, batch.edge[e], out);
        }
      }
    }
    if (Tape::max) return;
#pragma unroll
    for (int o = 0; o < Tape::outputs; ++o) add_each(state.sum[o], added.sum[o]);
  }

  // Leaves what lies in registers in a part's slot, where typed outputs are.
  MGG_DEVICE void keep(const State& state, int32_t slot) const {
    each_untyped([&](int o, int i, int32_t c) { row(slot, o)[c] = state.sum[o][i]; });
  }
  // Merges `count` parts of a hub, `step` slots apart: into registers, and typed outputs into the first slot.
  MGG_DEVICE void merge_slots(State& state, int32_t slot, int32_t count, int32_t step) const {
    const auto part = [&](int32_t k, int o, int64_t c) { return device::load_fresh(row(slot + k * step, o) + c); };
    const auto total = [&](int o, int64_t c) {
      float sum = part(0, o, c);
      for (int32_t k = 1; k < count; ++k) sum += part(k, o, c);
      return sum;
    };
    clear(state);
    state.slot = slot;
    if (Tape::max) {
      for (int32_t k = 0; k < count; ++k)
#pragma unroll
        for (int i = 0; i < Tape::mine; ++i)
          if (has(i)) raise(state, i, [&](int o) { return part(k, o, column(i)); });
      return;
    }
    each_typed([&](int o, int64_t c) { row(slot, o)[c] = total(o, c); });
    each_untyped([&](int o, int i, int32_t c) { state.sum[o][i] = total(o, c); });
  }

  MGG_DEVICE void finish(const State& state) const {
    const int32_t degree = of.edges.degree[worker.destination];
    const float divisor = Tape::mean ? mean_divisor<float>(degree) : 1.0f;
    each_typed([&](int o, int64_t c) { row(-1, o)[c] = row(state.slot, o)[c] / divisor; });
    each_untyped([&](int o, int i, int32_t c) { row(-1, o)[c] = degree > 0 ? state.sum[o][i] / divisor : 0.0f; });
  }

 private:
  MGG_DEVICE int32_t column(int i) const { return Tape::column(worker, worker.pass, i); }
  MGG_DEVICE bool has(int i) const { return Tape::has(worker, worker.pass, i); }
  // An output's columns: of the destination, or of a part of a hub.
  MGG_DEVICE float* row(int32_t slot, int o) const {
    if (slot >= 0) return of.edges.partials + int64_t(slot) * Tape::state + Tape::place(o);
    return of.out[o].rows + worker.destination * of.out[o].stride;
  }
  // Calls body(o, i, column) for what this lane keeps of each output without types: a narrow one is the first lane's.
  template <class Body>
  MGG_DEVICE void each_untyped(Body&& body) const {
#pragma unroll
    for (int o = 0; o < Tape::outputs; ++o) {
      if (Tape::types(o)) continue;
      if (Tape::width(o) == 1) {
        if (worker.lane == 0 && worker.pass == 0) body(o, 0, 0);
        continue;
      }
#pragma unroll
      for (int i = 0; i < Tape::mine; ++i)
        if (has(i)) body(o, i, column(i));
    }
  }
  // Calls body(o, column) for this lane's columns of each output with types.
  template <class Body>
  MGG_DEVICE void each_typed(Body&& body) const {
#pragma unroll
    for (int o = 0; o < Tape::outputs; ++o)
      for (int64_t type = 0; type < Tape::types(o); ++type)
#pragma unroll
        for (int i = 0; i < Tape::mine; ++i)
          if (has(i)) body(o, type * Tape::columns + column(i));
  }

  MGG_DEVICE static void clear(State& state) {
#pragma unroll
    for (int o = 0; o < Tape::outputs; ++o)
#pragma unroll
      for (int i = 0; i < Tape::mine; ++i) state.sum[o][i] = Tape::max && o == 0 ? float_of_bits(0xFF800000u) : 0.0f;
  }
  // Adds an edge's outputs to `added`: typed ones where they lie.
  MGG_DEVICE void add(const State& state, State& added, int64_t edge,
                      const float (&out)[Tape::outputs][Tape::mine]) const {
#pragma unroll
    for (int o = 0; o < Tape::outputs; ++o) {
      if (!Tape::types(o)) {
        add_each(added.sum[o], out[o]);
        continue;
      }
      float* to = row(state.slot, o) + Tape::typed(of, Tape::type(o), edge);
#pragma unroll
      for (int i = 0; i < Tape::mine; ++i)
        if (has(i)) to[column(i)] += out[o][i];
    }
  }
  // Takes a larger first output with what belongs to it, and adds what belongs to an equal one. NaN stays NaN.
  template <class Value>
  MGG_DEVICE static void raise(State& state, int i, Value&& value) {
    const float most = state.sum[0][i], first = value(0);
    const bool larger = most == most && !(first <= most), same = first == most;
#pragma unroll
    for (int o = 1; o < Tape::outputs; ++o) {
      float& to = state.sum[o][i];
      to = larger ? value(o) : same ? to + value(o) : to;
    }
    if (larger) state.sum[0][i] = first;
  }
};

template <class Tape>
MGG_DEVICE void run_tape(const typename Tape::Call& call) {
  auto edges = call.edges;  // with sizes that the compiler knows
  edges.lanes = Tape::lanes, edges.heads = 1, edges.passes = edges.parts = Tape::passes;
  HeadWorker<typename Tape::Row, false> worker(edges);
  EdgeLoop<TapeOp<Tape>>{edges, worker}.run(call);
}

}  // namespace mgg
