// Attention over the edges of a graph, forward and backward, each in one pass over rows (defined in
// cpu/edges.h). The forward keeps a running maximum of the scores and rescales its sums when a larger one comes; the
// backward computes weights again, so that nothing is kept for an edge. Compiled once for each instruction
// set (MGG_ISA).
#include <cmath>
#include <limits>

#include "cpu/edge_batches.h"
#include "cpu/functions.h"
#include "cpu/philox.h"

namespace mgg {
namespace MGG_ISA {
namespace {

// exp of each value, in place. Whole vectors are taken: room for 32 H values holds them for any count.
inline void exp_all(float* x, int count) {
  for (int i = 0; i < count; i += lanes_of<float>) store<vector_bytes>(x + i, exp_of(load<vector_bytes>(x + i)));
}
inline void exp_all(double* x, int count) {
  for (int i = 0; i < count; ++i) x[i] = std::exp(x[i]);
}

// 0 or 1 / (1 - p) for each edge of a batch and head, into keep[i H + h]. here: the destination's id; at_source:
// whether destinations are the sources of these edges. `columns`: of a row before its id.
template <class A>
inline void draw_kept(const EdgeDrop& drop, const Batch<A>& batch, int64_t columns, int64_t v, bool at_source,
                      int heads, A* keep) {
  const uint32_t threshold = dropout_threshold(drop.p);
  const A scale = static_cast<A>(1.0 / (1.0 - drop.p));
  const uint64_t here = static_cast<uint64_t>(drop.ids[v]);
  uint64_t there[most_edges];
  for (int i = 0; i < batch.count; ++i) there[i] = batch.id(i, columns);
  const uint32_t epoch = drop.stream.epoch, stream = drop.stream.stream;
  Counters<most_edges> counters;
  for (int quad = 0; 4 * quad < heads; ++quad) {
#pragma omp simd
    for (int i = 0; i < batch.count; ++i) {
      const uint64_t source = at_source ? here : there[i], target = at_source ? there[i] : here;
      counters.set(i, edge_counter(epoch, stream, source, target, static_cast<uint32_t>(quad)));
    }
    counters.draw(batch.count, drop.stream.seed);
    const int width = std::min(heads - 4 * quad, 4);
    for (int i = 0; i < batch.count; ++i)
      for (int k = 0; k < width; ++k)
        keep[i * heads + 4 * quad + k] = counters.word[4 * i + k] >= threshold ? scale : A(0);
  }
}

// ---- forward

// HEADS: how many, or 0 where that is not known at compile time.
template <class S, int HEADS>
struct AttendOp {
  using A = Accumulator<S>;
  const Attend<S>& of;
  const int given_heads = of.heads;
  const int64_t columns = of.heads * of.channels;

  int heads() const { return HEADS ? HEADS : given_heads; }

  // sum H x C | maximum H | total H (| sum above H x C | total above H)
  int64_t state() const { return columns + 2 * heads() + (of.above ? columns + heads() : 0); }
  int64_t room() const { return 3 * most_edges * heads() + (of.h ? columns : 0); }
  A* maximum(A* state) const { return state + columns; }
  A* total(A* state) const { return state + columns + heads(); }
  A* above(A* state) const { return state + columns + 2 * heads(); }
  A* above_total(A* state) const { return above(state) + columns; }

  void begin(A* state) const {
    std::fill(state, state + this->state(), A(0));
    std::fill(maximum(state), maximum(state) + heads(), -std::numeric_limits<A>::infinity());
  }

  void take(const Batch<A>& batch, int64_t v, A* state, A* room) const {
    const int count = batch.count * heads();
    A *score = room, *weight = score + most_edges * heads(), *weight_above = weight + most_edges * heads();
    scores(batch, v, score, weight_above + most_edges * heads());
    raise(batch.count, score, state);
    each_head([&](int h) {
      const auto most = at(maximum(state) + h);
      for (int i = 0; i < batch.count; ++i) put(weight + i * heads() + h, at(score + i * heads() + h) - most);
    });
    exp_all(weight, count);
    add_totals(batch.count, weight, score, state);
    if (of.drop.p > 0) {
      A* keep = weight_above;
      draw_kept(of.drop, batch, of.call.values + of.call.tail, v, false, heads(), keep);
      for (int i = 0; i < count; ++i) weight[i] *= keep[i];
    }
    if (!of.above) return add_weighted(batch, heads(), of.channels, 0, weight, state);
    each_head([&](int h) {
      for (int i = h; i < count; i += heads()) {
        const auto value = at(weight + i);
        put(weight_above + i, at(score + i) > 0 ? value : decltype(value){});
      }
    });
    add_weighted_twice(batch, heads(), of.channels, weight, state, weight_above, above(state));
  }

  void merge(A* into, const A* from) const {
    A* other = const_cast<A*>(from);  // read only
    for (int h = 0; h < heads(); ++h) {
      const A most = std::max(maximum(into)[h], maximum(other)[h]);
      const A mine = shrinking(maximum(into)[h], most), its = shrinking(maximum(other)[h], most);
      rescale(into, h, mine);
      for (int64_t c = h * of.channels; c < (h + 1) * of.channels; ++c) {
        into[c] += from[c] * its;
        if (of.above) above(into)[c] += above(other)[c] * its;
      }
      total(into)[h] += total(other)[h] * its;
      if (of.above) above_total(into)[h] += above_total(other)[h] * its;
      maximum(into)[h] = most;
    }
  }

  void finish(A* state, int64_t v) const {
    for (int h = 0; h < heads(); ++h) {
      const A all = total(state)[h], part = all == 0 ? A(0) : 1 / all;  // without edges: 0
      for (int64_t c = h * of.channels; c < (h + 1) * of.channels; ++c) {
        const A value = state[c] * part;
        narrow(of.bias ? value + of.bias[c] : value, of.out[v][c]);
        if (of.above) of.above[v][c] = above(state)[c] * part;
      }
      if (of.log_sum) of.log_sum[v][h] = all == 0 ? A(0) : maximum(state)[h] + std::log(all);
      if (of.above) of.above_weight[v][h] = above_total(state)[h] * part;
    }
  }

 private:
  // Heads are taken L at a time.
  static constexpr int L = lanes_of_heads<A, HEADS>;
  static auto at(const A* from) { return lanes_at<A, L>(from); }
  template <class V>
  static void put(A* to, V value) {
    put_lanes<A, L>(to, value);
  }
  template <class Body>
  void each_head(Body&& body) const {
    for (int h = 0; h < heads(); h += L) body(h);
  }

  void scores(const Batch<A>& batch, int64_t v, A* score, A* room) const {
    if (of.h) {
      dot_products(batch, heads(), of.channels, 0, as_accumulators<S, A>(of.h[v], columns, room), score);
      for (int i = 0; i < batch.count * heads(); ++i) score[i] *= of.scale;
      return;
    }
    const A slope = of.slope;
    const A* const of_edges = of.edge_score;
    each_head([&](int h) {
      const auto mine = at(of.score[v] + h);
      for (int i = 0; i < batch.count; ++i) {
        auto sum = at(batch.row[i] + columns + h) + mine;
        if (of_edges) sum += at(of_edges + batch.edge[i] * heads() + h);
        put(score + i * heads() + h, leaky_relu(sum, slope));
      }
    });
  }

  // Rescales the sums of a head that has a new maximum.
  void raise(int count, const A* score, A* state) const {
    each_head([&](int first) {
      auto most = at(maximum(state) + first);
      for (int i = 0; i < count; ++i) {
        const auto value = at(score + i * heads() + first);
        most = value > most ? value : most;
      }
      A raised[L];
      put(raised, most);
      for (int h = first; h < first + L; ++h) {
        A& old = maximum(state)[h];
        if (!(raised[h - first] > old)) continue;
        if (total(state)[h] > 0) rescale(state, h, shrinking(old, raised[h - first]));
        old = raised[h - first];
      }
    });
  }
  static A shrinking(A from, A to) { return from == to ? A(1) : std::exp(from - to); }
  void rescale(A* state, int h, A factor) const {
    for (int64_t c = h * of.channels; c < (h + 1) * of.channels; ++c) {
      state[c] *= factor;
      if (of.above) above(state)[c] *= factor;
    }
    total(state)[h] *= factor;
    if (of.above) above_total(state)[h] *= factor;
  }

  void add_totals(int count, const A* weight, const A* score, A* state) const {
    each_head([&](int h) {
      auto all = at(weight + h), positive = at(score + h) > 0 ? all : decltype(all){};
      for (int i = 1; i < count; ++i) {
        const auto value = at(weight + i * heads() + h);
        all += value;
        positive += at(score + i * heads() + h) > 0 ? value : decltype(all){};
      }
      put(total(state) + h, at(total(state) + h) + all);
      if (of.above) put(above_total(state) + h, at(above_total(state) + h) + positive);
    });
  }
};

// ---- backward

template <class S, int HEADS>
struct AttendBackOp {
  using A = Accumulator<S>;
  const AttendBack<S>& of;
  const int given_heads = of.heads;
  const int64_t columns = of.heads * of.channels;
  const bool additive = static_cast<bool>(of.score);

  int heads() const { return HEADS ? HEADS : given_heads; }

  // sum H x C | sum of score gradients H
  int64_t state() const { return columns + heads(); }
  int64_t room() const { return 4 * most_edges * heads() + 2 * columns; }

  void begin(A* state) const { std::fill(state, state + this->state(), A(0)); }
  void merge(A* into, const A* from) const { add_all(into, from, state()); }

  void take(const Batch<A>& batch, int64_t v, A* state, A* room) const {
    A *product = room, *weight = product + most_edges * heads(), *keep = weight + most_edges * heads();
    A *slope = keep + most_edges * heads(), *wide = slope + most_edges * heads();
    const A* h = as_accumulators<S, A>(of.h[v], columns, wide);
    const A* g = of.at_source ? h : as_accumulators<S, A>(of.gradient[v], columns, wide + columns);
    dot_products(batch, heads(), of.channels, 0, g, product);
    weights(batch, v, h, weight, slope);
    const bool drops = of.drop.p > 0;
    if (drops) {
      draw_kept(of.drop, batch, of.call.values + of.call.tail, v, of.at_source, heads(), keep);
      for (int i = 0; i < batch.count * heads(); ++i) product[i] *= keep[i];
    }
    score_gradients(batch, v, product, weight, slope, state + columns);
    if (drops)
      for (int i = 0; i < batch.count * heads(); ++i) weight[i] *= keep[i];
    if (of.at_source) add_weighted(batch, heads(), of.channels, 0, weight, state);
    if (!additive) add_weighted(batch, heads(), of.channels, of.at_source ? columns : 0, product, state);
  }

  void finish(A* state, int64_t v) const {
    for (int64_t c = 0; c < columns; ++c) narrow(state[c], of.out[v][c]);
    if (of.score_gradient) std::copy(state + columns, state + columns + heads(), of.score_gradient[v]);
  }

 private:
  static constexpr int L = lanes_of_heads<A, HEADS>;
  static auto at(const A* from) { return lanes_at<A, L>(from); }
  template <class V>
  static void put(A* to, V value) {
    put_lanes<A, L>(to, value);
  }
  const A* tail(const Batch<A>& batch, int i) const { return batch.row[i] + of.call.values; }

  // Weights of the batch's edges, and, where scores are additive, the derivatives of those.
  void weights(const Batch<A>& batch, int64_t v, const A* h, A* weight, A* slope) const {
    if (!additive) dot_products(batch, heads(), of.channels, of.at_source ? columns : 0, h, weight);
    const A given_slope = of.slope, scale = of.scale;
    const A* const of_edges = of.edge_score;
    for (int k = 0; k < heads(); k += L)
      for (int i = 0; i < batch.count; ++i) {
        const int here = i * heads() + k;
        if (additive) {
          auto score = at(of.score[v] + k) + at(tail(batch, i) + k);
          if (of_edges) score += at(of_edges + batch.edge[i] * heads() + k);
          put(slope + here, leaky_relu_slope(score, given_slope));
          put(weight + here, leaky_relu(score, given_slope) - at(tail(batch, i) + heads() + k));
        } else {
          const A* log_sum = of.at_source ? tail(batch, i) : of.log_sum[v];
          put(weight + here, at(weight + here) * scale - at(log_sum + k));
        }
      }
    exp_all(weight, batch.count * heads());
  }

  // Replaces `product`, <g, h> of each edge, by the gradient of its score, and adds the gradients of all edges to
  // `sum`.
  void score_gradients(const Batch<A>& batch, int64_t v, A* product, const A* weight, const A* slope, A* sum) const {
    const A scale = of.scale;
    A* const of_edges = of.edge_score_gradient;
    for (int k = 0; k < heads(); k += L) {
      decltype(at(sum)) total{};  // of the batch
      for (int i = 0; i < batch.count; ++i) {
        const int here = i * heads() + k;
        const A* dot = of.at_source ? tail(batch, i) + (additive ? 2 : 1) * heads() : of.dot[v];
        auto gradient = at(weight + here) * (at(product + here) - at(dot + k));
        gradient = additive ? gradient * at(slope + here) : gradient * scale;
        put(product + here, gradient);
        if (of_edges) put(of_edges + batch.edge[i] * heads() + k, gradient);
        total += gradient;
      }
      put(sum + k, at(sum + k) + total);
    }
  }
};

}  // namespace

#define MGG_DEFINE(S)                                                                                                  \
  void attend(const Attend<S>& call) {                                                                                 \
    with_heads<S>(call.heads, [&](auto heads) { run_edges(call.call, AttendOp<S, decltype(heads)::value>{call}); });   \
  }                                                                                                                    \
  void attend_back(const AttendBack<S>& call) {                                                                        \
    with_heads<S>(call.heads,                                                                                          \
                  [&](auto heads) { run_edges(call.call, AttendBackOp<S, decltype(heads)::value>{call}); });           \
  }
MGG_DEFINE(float)
MGG_DEFINE(double)
MGG_DEFINE(Float16)
MGG_DEFINE(BFloat16)
#undef MGG_DEFINE

}  // namespace MGG_ISA
}  // namespace mgg
