// Maxima with their ties, sums with a weight for each edge and head, and dot products for each edge (defined in
// cpu/edges.h). Compiled once for each instruction set (MGG_ISA).
#include <limits>

#include "cpu/edge_batches.h"

namespace mgg {
namespace MGG_ISA {
namespace {

template <class S>
struct MaxTiesOp {
  using A = Accumulator<S>;
  const MaxTies<S>& of;
  const int64_t columns = of.call.values;

  int64_t state() const { return 2 * columns; }  // maximum | ties
  int64_t room() const { return 0; }
  void begin(A* state) const {
    std::fill(state, state + columns, -std::numeric_limits<A>::infinity());
    std::fill(state + columns, state + 2 * columns, A(0));
  }
  void take(const Batch<A>& batch, int64_t, A* state, A*) const {
    for (int i = 0; i < batch.count; ++i) raise(state, batch.row[i], nullptr);
  }
  void merge(A* into, const A* from) const { raise(into, from, from + columns); }
  void finish(A* state, int64_t v) const {
    const bool any = of.call.schedule->degree[v] > 0;
    for (int64_t c = 0; c < columns; ++c) {
      narrow(any ? state[c] : A(0), of.out[v][c]);
      of.ties[v][c] = state[columns + c];
    }
  }

 private:
  // ties: of each column of `row`; null for one each. NaN stays NaN.
  void raise(A* state, const A* row, const A* ties) const {
    A *most = state, *reach = state + columns;
    for (int64_t c = 0; c < columns; ++c) {
      const A value = row[c], one = ties ? ties[c] : A(1);
      const bool larger = most[c] == most[c] && !(value <= most[c]);
      reach[c] = larger ? one : value == most[c] ? reach[c] + one : reach[c];
      most[c] = larger ? value : most[c];
    }
  }
};

template <class S>
struct MaxBackOp {
  using A = Accumulator<S>;
  const MaxBack<S>& of;
  const int64_t columns = of.call.values / 2;

  int64_t state() const { return columns; }
  int64_t room() const { return columns; }
  void begin(A* state) const { std::fill(state, state + columns, A(0)); }
  void take(const Batch<A>& batch, int64_t v, A* state, A* room) const {
    const A* x = as_accumulators<S, A>(of.x[v], columns, room);
    for (int i = 0; i < batch.count; ++i) {
      const A *gradient = batch.row[i], *most = gradient + columns;
      for (int64_t c = 0; c < columns; ++c) state[c] += most[c] == x[c] ? gradient[c] : A(0);
    }
  }
  void merge(A* into, const A* from) const { add_all(into, from, columns); }
  void finish(A* state, int64_t v) const {
    for (int64_t c = 0; c < columns; ++c) narrow(state[c], of.out[v][c]);
  }
};

template <class S>
struct WeightedOp {
  using A = Accumulator<S>;
  const WeightedHeads<S>& of;
  const int64_t columns = of.call.values;

  int64_t state() const { return columns; }
  int64_t room() const { return most_edges * of.heads; }
  void begin(A* state) const { std::fill(state, state + columns, A(0)); }
  void take(const Batch<A>& batch, int64_t, A* state, A* room) const {
    for (int i = 0; i < batch.count; ++i)
      std::copy(of.weight + batch.edge[i] * of.heads, of.weight + (batch.edge[i] + 1) * of.heads, room + i * of.heads);
    add_weighted(batch, of.heads, of.channels, 0, room, state);
  }
  void merge(A* into, const A* from) const { add_all(into, from, columns); }
  void finish(A* state, int64_t v) const {
    for (int64_t c = 0; c < columns; ++c) narrow(state[c], of.out[v][c]);
  }
};

template <class S>
struct SddmmOp {
  using A = Accumulator<S>;
  const Sddmm<S>& of;

  int64_t state() const { return 0; }
  int64_t room() const { return most_edges * of.heads + of.call.values; }
  void begin(A*) const {}
  void take(const Batch<A>& batch, int64_t v, A*, A* room) const {
    const A* y = as_accumulators<S, A>(of.y[v], of.call.values, room + most_edges * of.heads);
    dot_products(batch, of.heads, of.channels, 0, y, room);
    for (int i = 0; i < batch.count; ++i)
      std::copy(room + i * of.heads, room + (i + 1) * of.heads, of.out + batch.edge[i] * of.heads);
  }
  void merge(A*, const A*) const {}
  void finish(A*, int64_t) const {}
};

}  // namespace

#define MGG_DEFINE(S)                                                                        \
  void max_ties(const MaxTies<S>& call) { run_edges(call.call, MaxTiesOp<S>{call}); }        \
  void max_back(const MaxBack<S>& call) { run_edges(call.call, MaxBackOp<S>{call}); }        \
  void weighted(const WeightedHeads<S>& call) { run_edges(call.call, WeightedOp<S>{call}); } \
  void sddmm(const Sddmm<S>& call) { run_edges(call.call, SddmmOp<S>{call}); }
MGG_DEFINE(float)
MGG_DEFINE(double)
MGG_DEFINE(Float16)
MGG_DEFINE(BFloat16)
#undef MGG_DEFINE

}  // namespace MGG_ISA
}  // namespace mgg
