// Attention over the edges of a graph on GPUs, forward and backward; cpu/edges.h has the formulas. The forward keeps a
// running maximum of the scores and rescales what it has summed where a larger one comes; the backward computes weights
// again. Nothing is kept for an edge.
#pragma once
#include <cmath>

#include "gpu/rows/rng_key.cuh"
#include "gpu/edges/edges.cuh"

namespace mgg {

// 0 or 1 / (1 - p) for each edge of a batch: drawn by the original ids of both ends and the head.
// at_source: whether the plan's destinations are the sources of these edges.
template <class Op, class Batch>
MGG_DEVICE void draw_kept(const Op& op, const Batch& batch, bool at_source, float (&keep)[edges_ahead]) {
  const RngKey& key = op.of.key;
  const uint64_t here = static_cast<uint64_t>(op.of.ids[op.worker.destination]);
  const uint32_t epoch = epoch_of(key), head = static_cast<uint32_t>(op.worker.head);
#pragma unroll
  for (int u = 0; u < edges_ahead; ++u) {
    const uint64_t there = batch.id(op.of.edges, u), source = at_source ? here : there;
    const Philox four = draw_edge(key.seed, epoch, key.stream, source, at_source ? there : here, head / 4);
    const uint32_t low = head & 1 ? four.word[1] : four.word[0], high = head & 1 ? four.word[3] : four.word[2];
    keep[u] = (head & 2 ? high : low) >= key.threshold ? key.scale : 0.0f;
  }
}

// With additive scores, else dot products; with additive ones it also finds the parts of the sum, and of the weights,
// whose score is above 0. SCORED: whether edges have scores of their own, which are added.
template <class S, bool PACKED, bool ADDITIVE, bool SCORED = false>
struct Attend : EdgeOp<S, PACKED, DeviceAttend<S>> {
  using Base = EdgeOp<S, PACKED, DeviceAttend<S>>;
  using Base::of, Base::worker, Base::values;
  static_assert(ADDITIVE || !SCORED, "scores of edges are of additive attention");
  static constexpr bool additive = ADDITIVE;
  static constexpr int above_values = additive ? Base::values : 1;
  struct State {
    float sum[Base::values], above[above_values], maximum, total, above_total;
  };
  float target = 0.0f;      // the destination's score, additive
  float mine[Base::values];  // and its row, of dot products

  MGG_DEVICE Attend(const DeviceAttend<S>& of, const typename Base::Worker& worker) : Base(of, worker) {
    if constexpr (additive)
      target = worker.of_head(of.score);
    else
      worker.load_near(of.h, mine);
  }

  MGG_DEVICE void begin(State& state) const {
#pragma unroll
    for (int i = 0; i < values; ++i) state.sum[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < above_values; ++i) state.above[i] = 0.0f;
    state.maximum = float_of_bits(0xFF800000u), state.total = state.above_total = 0.0f;
  }

  // Scales the sums that were taken under one maximum to a larger one.
  MGG_DEVICE static void raise(State& state, float most) {
    if (!(most > state.maximum)) return;
    const float factor = expf(state.maximum - most);
#pragma unroll
    for (int i = 0; i < values; ++i) state.sum[i] *= factor;
#pragma unroll
    for (int i = 0; i < above_values; ++i) state.above[i] *= factor;
    state.total *= factor, state.above_total *= factor, state.maximum = most;
  }

  MGG_DEVICE void take(State& state, const typename Base::Batch& batch) const {
    device::Pack rows[edges_ahead];
    float score[edges_ahead], weight[edges_ahead];
    batch.load(worker, 0, rows);
    scores(batch, rows, score);
    float most = state.maximum;
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) most = u < batch.count && score[u] > most ? score[u] : most;
    raise(state, most);
    float total = 0.0f, above_total = 0.0f;
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      weight[u] = u < batch.count ? expf(score[u] - state.maximum) : 0.0f;
      total += weight[u], above_total += score[u] > 0 ? weight[u] : 0.0f;
    }
    state.total += total, state.above_total += above_total;
    if (of.ids) {
      float keep[edges_ahead];
      draw_kept(*this, batch, false, keep);
#pragma unroll
      for (int u = 0; u < edges_ahead; ++u) weight[u] *= keep[u];
    }
    add_weighted<S>(batch.count, rows, weight, state.sum);
    if constexpr (additive) {
      if (!of.above.rows) return;
#pragma unroll
      for (int u = 0; u < edges_ahead; ++u) weight[u] = score[u] > 0 ? weight[u] : 0.0f;
      add_weighted<S>(batch.count, rows, weight, state.above);
    }
  }

  MGG_DEVICE void merge(State& into, const State& from) const {
    raise(into, from.maximum);
    const float factor = from.maximum == into.maximum ? 1.0f : expf(from.maximum - into.maximum);
#pragma unroll
    for (int i = 0; i < values; ++i) into.sum[i] += from.sum[i] * factor;
#pragma unroll
    for (int i = 0; i < above_values; ++i) into.above[i] += from.above[i] * factor;
    into.total += from.total * factor, into.above_total += from.above_total * factor;
  }

  MGG_DEVICE void finish(State& state) const {
    const float part = state.total == 0.0f ? 0.0f : 1.0f / state.total;  // without edges: 0
#pragma unroll
    for (int i = 0; i < values; ++i) {
      state.sum[i] *= part;
      if (of.bias && worker.has(i, worker.pass)) state.sum[i] += of.bias[worker.offset() + worker.column(i, worker.pass)];
    }
    worker.store_near(of.out, state.sum);
    if (of.log_sum.rows)
      worker.store_of_head(of.log_sum, state.total == 0.0f ? 0.0f : state.maximum + logf(state.total));
    if constexpr (additive) {
      if (!of.above.rows) return;
#pragma unroll
      for (int i = 0; i < values; ++i) state.above[i] *= part;
      worker.store_near(of.above, state.above);
      worker.store_of_head(of.above_weight, state.above_total * part);
    }
  }

 private:
  MGG_DEVICE void scores(const typename Base::Batch& batch, const device::Pack (&rows)[edges_ahead],
                         float (&score)[edges_ahead]) const {
    if constexpr (!additive) batch.dots(worker, 0, rows, of.h, mine, score);
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      if constexpr (additive) {
        float sum = batch.tail(of.edges, u)[worker.head] + target;
        if constexpr (SCORED) sum += batch.of_head(worker, of.edge_score, u);
        score[u] = leaky_relu(sum, of.slope);
      } else {
        score[u] *= of.scale;
      }
    }
  }
};

// Gradients of sources, whose targets' rows are read; or, with dot products, of targets.
template <class S, bool PACKED, bool ADDITIVE, bool AT_SOURCE, bool SCORED = false>
struct AttendBack : EdgeOp<S, PACKED, DeviceAttendBack<S>> {
  using Base = EdgeOp<S, PACKED, DeviceAttendBack<S>>;
  using Base::of, Base::worker, Base::values;
  static_assert(ADDITIVE || !SCORED, "scores of edges are of additive attention");
  static_assert(AT_SOURCE || !ADDITIVE, "gradients of additive scores of targets come with the forward");
  static constexpr bool additive = ADDITIVE, at_source = AT_SOURCE;
  struct State {
    float sum[Base::values], score_sum;
  };
  float h[Base::values];         // this PE's row
  float g[Base::values];         // and its gradient, at the target end
  float score = 0.0f, log_sum = 0.0f, dot = 0.0f;

  MGG_DEVICE AttendBack(const DeviceAttendBack<S>& of, const typename Base::Worker& worker) : Base(of, worker) {
    worker.load_near(of.h, h);
    if constexpr (additive) score = worker.of_head(of.score);
    if constexpr (!at_source) {
      worker.load_near(of.gradient, g);
      log_sum = worker.of_head(of.log_sum), dot = worker.of_head(of.dot);
    }
  }

  MGG_DEVICE void begin(State& state) const {
#pragma unroll
    for (int i = 0; i < values; ++i) state.sum[i] = 0.0f;
    state.score_sum = 0.0f;
  }

  MGG_DEVICE void take(State& state, const typename Base::Batch& batch) const {
    constexpr bool two_rows = at_source && !additive;  // g, and behind it h
    const int64_t columns = int64_t(of.edges.heads) * of.edges.channels;
    device::Pack rows[edges_ahead], others[edges_ahead];
    float product[edges_ahead], weight[edges_ahead], keep[edges_ahead] = {1.0f, 1.0f, 1.0f, 1.0f};
    batch.load(worker, 0, rows);
    if constexpr (two_rows) batch.load(worker, columns, others);
    if constexpr (at_source)
      batch.dots(worker, 0, rows, of.h, h, product);
    else
      batch.dots(worker, 0, rows, of.gradient, g, product);
    if constexpr (two_rows)
      batch.dots(worker, columns, others, of.h, h, weight);
    else if constexpr (!additive)
      batch.dots(worker, 0, rows, of.h, h, weight);
    if (of.ids) draw_kept(*this, batch, at_source, keep);
    // From here on `product` holds the scores' gradients, and `weight` what g is summed with.
    float score_sum = 0.0f;
#pragma unroll
    for (int u = 0; u < edges_ahead; ++u) {
      of_edge(batch, u, keep[u], product[u], weight[u]);
      if (u < batch.count) score_sum += product[u];
      if constexpr (SCORED)
        if (u < batch.count && worker.lane == 0 && worker.pass == 0)
          of.edge_score_gradient[batch.edge[u] * of.edges.heads + worker.head] = product[u];
    }
    state.score_sum += score_sum;
    if constexpr (at_source) add_weighted<S>(batch.count, rows, weight, state.sum);
    if constexpr (two_rows) add_weighted<S>(batch.count, others, product, state.sum);
    if constexpr (!at_source) add_weighted<S>(batch.count, rows, product, state.sum);
  }

  MGG_DEVICE void merge(State& into, const State& from) const {
    add_each(into.sum, from.sum);
    into.score_sum += from.score_sum;
  }
  MGG_DEVICE void finish(State& state) const {
    worker.store_near(of.out, state.sum);
    if constexpr (additive) worker.store_of_head(of.score_gradient, state.score_sum);
  }

 private:
  MGG_DEVICE void of_edge(const typename Base::Batch& batch, int u, float keep, float& product, float& weight) const {
    const int32_t heads = of.edges.heads;
    const float* tail = batch.tail(of.edges, u) + worker.head;
    float slope = of.scale, its_dot = dot;
    if constexpr (additive) {
      float sum = score + tail[0];
      if constexpr (SCORED) sum += batch.of_head(worker, of.edge_score, u);
      slope = leaky_relu_slope(sum, of.slope);
      weight = expf(leaky_relu(sum, of.slope) - tail[heads]), its_dot = tail[2 * heads];
    } else if constexpr (at_source) {
      weight = expf(weight * of.scale - tail[0]), its_dot = tail[heads];
    } else {
      weight = expf(weight * of.scale - log_sum);
    }
    product = weight * (keep * product - its_dot) * slope;
    weight *= keep;
  }
};

}  // namespace mgg
