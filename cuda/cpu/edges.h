// Computations edge by edge on a host beyond sums of rows: attention, and the adjoint of a maximum. One call on one
// rank.
//
// A source's row holds `values` columns of S, and then, from a multiple of sizeof(A) on, a tail of values of the
// accumulator A (float32 or float64): scores, and, if attention drops edges, the node's original id in 8 bytes. `near`
// are rows and values of this rank's destinations.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "cpu/aggregate.h"
#include "cpu/random.h"
#include "mgg/tape.h"

namespace mgg {

// Rows [n, any] of this rank's destinations; null where a call has none.
template <class T>
struct Near {
  T* rows = nullptr;
  int64_t stride = 0;  // values between rows
  T* operator[](int64_t row) const { return rows + row * stride; }
  explicit operator bool() const { return rows != nullptr; }
};

// The part that all computations over a schedule share; the rest is in the calls below.
template <class S>
struct EdgeCall {
  using A = Accumulator<S>;
  Schedule* schedule;
  const S* const* sources;  // row 0 of each chunk; of remote chunks on their owner if they are fetched by gets
  const int32_t* indices;   // row within the chunk, or where a get puts it; an edge each
  int64_t edges;
  int64_t stride;   // of the source rows, in S
  int64_t values;   // columns of S in a row
  int64_t tail;     // values of A after them, without the id
  A* partials;      // slots x state values
  A* states;        // destinations x state values, between stages; null for a single stage
  int prefetch;     // edges ahead
  int threads;
  Exchange* exchange;
  Transport* transport;
  std::mutex* calling;
  bool streams = false;
};

// Which edges attention drops, by the original ids of both ends.
struct EdgeDrop {
  double p = 0;  // 0: none
  Stream stream{};
  const int64_t* ids = nullptr;  // of this rank's destinations
};

// Attention of H heads of C columns (GAT: Velickovic et al., ICLR 2018, equations 1 to 4; dot products as in
// Vaswani et al., NeurIPS 2017, scaled by C^-1/2).
//
// weight(u, v) = softmax over v's sources u of score(u, v); out[v] = sum over u of weight(u, v) h[u] + bias.
// additive: score = LeakyReLU(source score[u] + target score[v] + edge score[e]); dot: score = scale <h[u], h[v]>.
template <class S>
struct Attend {
  using A = Accumulator<S>;
  EdgeCall<S> call;     // rows: h, H x C; tail with additive scores: source scores, H
  int heads;
  int64_t channels;     // C
  A slope;              // of LeakyReLU
  A scale;              // of dot products
  Near<const A> score;  // target scores [n, H]; null for dot products
  const A* edge_score;  // [E, H], in the order of the plan's edges; null where edges have none
  Near<const S> h;      // [n, H x C], for dot products
  const A* bias;        // [H x C] or null
  Near<S> out;          // [n, H x C]
  Near<A> log_sum;      // [n, H]: log of the sum of exp(score), to compute weights again; may be null
  // With log_sum and additive scores: the parts of the sum, and of the weights, whose score is above 0, where
  // LeakyReLU's derivative is 1. The gradient of the target scores follows from them without another pass.
  Near<A> above;        // [n, H x C]
  Near<A> above_weight; // [n, H]
  EdgeDrop drop;
};

// The gradients of attention for the rows and scores at one end of edges, from the rows of the other end.
//
// With g the gradient of out[v], weight = exp(score - log_sum[v]), D[v] = <g, out[v]> per head and keep = 0 or
// 1 / (1 - p) where attention drops edges: the score's gradient is ds = weight (keep <g, h[u]> - D[v]), times
// LeakyReLU's derivative, or `scale` for dot products.
//
// source end, over out-edges: rows of v: g, for dot products also h[v]; tail: target score (additive), log_sum, D.
//   out[u] = sum of weight keep g (+ ds h[v]); score_gradient[u] = sum of ds, edge_score_gradient[e] = ds (additive).
// target end, over in-edges, dot products alone: rows of u: h[u]. out[v] = sum of ds h[u].
template <class S>
struct AttendBack {
  using A = Accumulator<S>;
  EdgeCall<S> call;
  int heads;
  int64_t channels;
  A slope, scale;
  bool at_source;
  Near<const A> score;     // source scores [n, H], additive
  const A* edge_score;     // [E, H], in the order of the plan's (out-)edges; null where edges have none
  Near<const S> h;         // [n, H x C]
  Near<const S> gradient;  // g [n, H x C], at the target end
  Near<const A> log_sum, dot;  // [n, H], at the target end
  Near<S> out;             // [n, H x C]
  Near<A> score_gradient;  // [n, H], additive
  A* edge_score_gradient;  // [E, H], or null
  EdgeDrop drop;
};

// The maximum of each column over the source rows, 0 without edges, and how many edges reach it.
template <class S>
struct MaxTies {
  EdgeCall<S> call;  // rows: F
  Near<S> out;                // [n, F]
  Near<Accumulator<S>> ties;  // [n, F]
};

// Its adjoint at the sources, over out-edges. rows of v: gradient / ties, maximum.
// out[u] = the sum of gradient / ties over those v whose maximum is x[u].
template <class S>
struct MaxBack {
  EdgeCall<S> call;  // rows: 2 F
  Near<const S> x;   // [n, F]
  Near<S> out;       // [n, F]
};

// Sums with a weight for each edge and head: out[v] = sum over u of weight[e, head] x[u].
template <class S>
struct WeightedHeads {
  using A = Accumulator<S>;
  EdgeCall<S> call;  // rows: H x C
  int heads;
  int64_t channels;
  const A* weight;   // [E, H], in the order of the plan's edges
  Near<S> out;       // [n, H x C]
};

// A dot product for each edge and head: out[e, head] = <y[v], x[u]>.
template <class S>
struct Sddmm {
  using A = Accumulator<S>;
  EdgeCall<S> call;  // rows: H x C
  int heads;
  int64_t channels;
  Near<const S> y;   // [n, H x C]
  A* out;            // [E, H], in the order of the plan's edges
};

// A tape (mgg/tape.h) for each edge, whose outputs are reduced over the edges of each destination: out[i][v].
// reduce: max takes the maximum of the first output, of `columns` columns, and sums the other outputs, of as many
// columns, over the edges that reach it.
template <class S>
struct Propagate {
  using A = Accumulator<S>;
  EdgeCall<S> call;
  int64_t columns;               // of wide values
  std::vector<TapeValue> values;
  std::vector<TapeStep> steps;
  std::vector<TapeOutput> outputs;
  int registers;                 // wide ones
  int64_t state;                 // the sum of the outputs' widths
  Reduce reduce;
  std::vector<Near<const A>> near;
  const A* shared;
  const A* edge;                 // [E, edge_columns], in the order of the plan's edges
  int64_t edge_columns;
  std::vector<Near<A>> out;
};
constexpr int most_values = 64;  // of a tape

#define MGG_DECLARE_EDGES(S)           \
  void attend(const Attend<S>&);          \
  void attend_back(const AttendBack<S>&); \
  void max_ties(const MaxTies<S>&);       \
  void max_back(const MaxBack<S>&);       \
  void weighted(const WeightedHeads<S>&); \
  void sddmm(const Sddmm<S>&);            \
  void propagate(const Propagate<S>&);
#define MGG_DECLARE(isa)       \
  namespace isa {              \
  MGG_DECLARE_EDGES(float)     \
  MGG_DECLARE_EDGES(double)    \
  MGG_DECLARE_EDGES(Float16)   \
  MGG_DECLARE_EDGES(BFloat16)  \
  }
MGG_DECLARE(baseline)
MGG_DECLARE(avx2)
MGG_DECLARE(avx512)
#undef MGG_DECLARE
#undef MGG_DECLARE_EDGES

}  // namespace mgg
