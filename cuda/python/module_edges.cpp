// Python methods of schedules for kernels over edges (cpu/edges.h): attention, maxima, dot products, tapes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/module_host.h"
#include "python/tapes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace mgg;

template <class T>
using Rows = std::optional<Matrix<T>>;

// An array [rows, columns] of T as kernels take it, with the type S of the same size; null for None.
template <class S, class T>
Near<S> near(const Rows<T>& array, int64_t rows, int64_t columns, const char* what) {
  static_assert(sizeof(S) == sizeof(T));
  if (!array) return {};
  const bool fits = static_cast<int64_t>(array->shape(0)) == rows && static_cast<int64_t>(array->shape(1)) == columns;
  if (!fits || (array->size() > 0 && array->stride(1) != 1))
    throw std::invalid_argument(std::string(what) + ": not " + std::to_string(rows) + " rows of " +
                                std::to_string(columns) + " contiguous values");
  return {reinterpret_cast<S*>(array->data()), array->stride(0)};
}

// An array [edges, heads] of T in the order of the plan's edges, contiguous; null for None.
template <class T>
T* by_edge(const Rows<T>& array, int64_t edges, int heads, const char* what) {
  const auto values = near<T>(array, edges, heads, what);
  if (edges > 1 && values && values.stride != heads) throw std::invalid_argument(std::string(what) + ": not contiguous");
  return values.rows;
}

// The edges that attention drops; ids: the original ids of this rank's nodes.
EdgeDrop drop_of(double p, uint64_t seed, uint32_t epoch, uint32_t stream,
                 const std::optional<Flat<const int64_t>>& ids, int64_t rows) {
  if (p == 0) return {};
  require(ids && static_cast<int64_t>(ids->size()) == rows, "attention: dropout needs an id for each row");
  return {p, {seed, epoch, stream}, ids->data()};
}

template <class S, class T>
void attend(HostSchedule& self, const Reach& reach, int heads, int64_t channels, double slope, double scale,
            Rows<const Accumulator<S>> score, Rows<const T> h, std::optional<Flat<const Accumulator<S>>> bias,
            Rows<T> out, Rows<Accumulator<S>> log_sum, Rows<Accumulator<S>> above, Rows<Accumulator<S>> above_weight,
            Rows<const Accumulator<S>> edge_score, double p, uint64_t seed, uint32_t epoch, uint32_t stream,
            std::optional<Flat<const int64_t>> ids) {
  using A = Accumulator<S>;
  require(heads > 0 && channels > 0, "attention: heads and channels are at least 1");
  require(score.has_value() != h.has_value(), "attention: scores of targets, or their rows for dot products");
  require(above.has_value() == above_weight.has_value(), "attention: parts above 0 need their weights too");
  require(score || !edge_score, "attention: scores of edges are of additive attention");
  const int64_t rows = self.destinations(), columns = heads * channels;
  require(!bias || static_cast<int64_t>(bias->size()) == columns, "bias: one for each column");
  Attend<S> call{};
  call.heads = heads, call.channels = channels, call.slope = A(slope), call.scale = A(scale);
  call.score = near<const A>(score, rows, heads, "score");
  call.edge_score = by_edge<const A>(edge_score, self.edges(), heads, "edge_score");
  call.h = near<const S>(h, rows, columns, "h");
  call.bias = bias ? bias->data() : nullptr;
  call.out = near<S>(out, rows, columns, "out");
  call.log_sum = near<A>(log_sum, rows, heads, "log_sum");
  call.above = near<A>(above, rows, columns, "above");
  call.above_weight = near<A>(above_weight, rows, heads, "above_weight");
  call.drop = drop_of(p, seed, epoch, stream, ids, rows);
  const int64_t state = columns + 2 * heads + (call.above ? columns + heads : 0);
  self.over_edges<S>(reach, columns, call.score ? heads : 0, p > 0, state, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(attend, call);
  });
}

template <class S, class T>
void attend_back(HostSchedule& self, const Reach& reach, int heads, int64_t channels, double slope, double scale,
                 bool at_source, Rows<const Accumulator<S>> score, Rows<const T> h, Rows<const T> gradient,
                 Rows<const Accumulator<S>> log_sum, Rows<const Accumulator<S>> dot, Rows<T> out,
                 Rows<Accumulator<S>> score_gradient, Rows<const Accumulator<S>> edge_score,
                 Rows<Accumulator<S>> edge_score_gradient, double p, uint64_t seed, uint32_t epoch, uint32_t stream,
                 std::optional<Flat<const int64_t>> ids) {
  using A = Accumulator<S>;
  require(heads > 0 && channels > 0, "attention: heads and channels are at least 1");
  require(h.has_value() && score.has_value() == score_gradient.has_value(), "attention: h, and scores with gradients");
  require(at_source || (gradient && log_sum && dot && !score), "attention: what targets have, for dot products");
  require(score || (!edge_score && !edge_score_gradient), "attention: scores of edges are of additive attention");
  const int64_t rows = self.destinations(), columns = heads * channels;
  AttendBack<S> call{};
  call.heads = heads, call.channels = channels, call.slope = A(slope), call.scale = A(scale);
  call.at_source = at_source;
  call.score = near<const A>(score, rows, heads, "score");
  call.edge_score = by_edge<const A>(edge_score, self.edges(), heads, "edge_score");
  call.h = near<const S>(h, rows, columns, "h");
  call.gradient = near<const S>(gradient, rows, columns, "gradient");
  call.log_sum = near<const A>(log_sum, rows, heads, "log_sum");
  call.dot = near<const A>(dot, rows, heads, "dot");
  call.out = near<S>(out, rows, columns, "out");
  call.score_gradient = near<A>(score_gradient, rows, heads, "score_gradient");
  call.edge_score_gradient = by_edge<A>(edge_score_gradient, self.edges(), heads, "edge_score_gradient");
  call.drop = drop_of(p, seed, epoch, stream, ids, rows);
  const int64_t values = at_source && !score ? 2 * columns : columns;
  const int64_t tail = !at_source ? 0 : score ? 3 * heads : 2 * heads;
  self.over_edges<S>(reach, values, tail, p > 0, columns + heads, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(attend_back, call);
  });
}

template <class S, class T>
void max_ties(HostSchedule& self, const Reach& reach, Matrix<T> out, Matrix<Accumulator<S>> ties) {
  const int64_t rows = self.destinations(), columns = static_cast<int64_t>(out.shape(1));
  MaxTies<S> call{{}, near<S>(Rows<T>(out), rows, columns, "out"),
                  near<Accumulator<S>>(Rows<Accumulator<S>>(ties), rows, columns, "ties")};
  self.over_edges<S>(reach, columns, 0, false, 2 * columns, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(max_ties, call);
  });
}

template <class S, class T>
void max_back(HostSchedule& self, const Reach& reach, Matrix<const T> x, Matrix<T> out) {
  const int64_t rows = self.destinations(), columns = static_cast<int64_t>(out.shape(1));
  MaxBack<S> call{{}, near<const S>(Rows<const T>(x), rows, columns, "x"), near<S>(Rows<T>(out), rows, columns, "out")};
  self.over_edges<S>(reach, 2 * columns, 0, false, columns, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(max_back, call);
  });
}

template <class S, class T>
void weighted(HostSchedule& self, const Reach& reach, Matrix<const Accumulator<S>> weight, Matrix<T> out) {
  const int heads = static_cast<int>(weight.shape(1));
  const int64_t rows = self.destinations(), columns = static_cast<int64_t>(out.shape(1));
  require(heads > 0 && columns % heads == 0, "weight: its heads do not divide the columns");
  const auto* weights = by_edge<const Accumulator<S>>(weight, self.edges(), heads, "weight");
  WeightedHeads<S> call{{}, heads, columns / heads, weights, near<S>(Rows<T>(out), rows, columns, "out")};
  self.over_edges<S>(reach, columns, 0, false, columns, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(weighted, call);
  });
}

template <class S, class T>
void sddmm(HostSchedule& self, const Reach& reach, Matrix<const T> y, Matrix<Accumulator<S>> out) {
  const int heads = static_cast<int>(out.shape(1));
  const int64_t rows = self.destinations(), columns = static_cast<int64_t>(y.shape(1));
  require(heads > 0 && columns % heads == 0, "out: its heads do not divide the columns");
  auto* values = by_edge<Accumulator<S>>(out, self.edges(), heads, "out");
  Sddmm<S> call{{}, heads, columns / heads, near<const S>(Rows<const T>(y), rows, columns, "y"), values};
  self.over_edges<S>(reach, columns, 0, false, 0, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(sddmm, call);
  });
}

template <class S>
void propagate(HostSchedule& self, const Reach& reach, int64_t columns, int64_t far_columns,
               Flat<const uint8_t> values, Flat<const uint8_t> steps, Flat<const uint8_t> outputs, int registers,
               const std::string& reduce, std::vector<Matrix<const Accumulator<S>>> near_arrays,
               Flat<const Accumulator<S>> shared, Rows<const Accumulator<S>> edge,
               std::vector<Matrix<Accumulator<S>>> out) {
  using A = Accumulator<S>;
  Propagate<S> call{};
  Tape tape(values, steps, outputs);
  call.columns = columns, call.registers = registers;
  call.reduce = reduction_of(reduce);
  require(columns > 0 && out.size() == tape.outputs.size(), "propagate: an array for each output, at least one column");
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t width = tape.outputs[i].width;
    call.out.push_back(near<A>(Rows<A>(out[i]), self.destinations(), width, "out"));
    call.state += width;
  }
  for (const auto& array : near_arrays)
    call.near.push_back(near<const A>(Rows<const A>(array), self.destinations(), array.shape(1), "near"));
  call.shared = shared.data();
  call.edge_columns = edge ? static_cast<int64_t>(edge->shape(1)) : 0;
  call.edge = by_edge<const A>(edge, self.edges(), static_cast<int>(call.edge_columns), "edge");
  check_tape(tape,
             {columns, far_columns, call.edge_columns, registers, static_cast<int64_t>(near_arrays.size()),
              static_cast<int64_t>(shared.size())},
             call.reduce == Reduce::max, most_values);
  call.values = std::move(tape.values), call.steps = std::move(tape.steps), call.outputs = std::move(tape.outputs);
  self.over_edges<S>(reach, far_columns, 0, false, call.state, [&](const EdgeCall<S>& edges) {
    call.call = edges;
    MGG_DISPATCH(propagate, call);
  });
}

#define MGG_OPTIONAL(name) name##_a.noconvert().none() = nb::none()
#define MGG_DRAW "p"_a = 0.0, "seed"_a = 0, "epoch"_a = 0, "stream"_a = 0, MGG_OPTIONAL("ids")

// Nothing is converted: a converted output would be written and thrown away.
template <class S, class T>
void bind(nb::class_<HostSchedule>& schedule, const std::string& type) {
  const auto def = [&](const char* name, auto&& method, auto&&... names) {
    schedule.def((std::string(name) + "_" + type).c_str(), method, "reach"_a, nb::kw_only(), names...);
  };
  def("attend", &attend<S, T>, "heads"_a, "channels"_a, "slope"_a, "scale"_a, MGG_OPTIONAL("score"), MGG_OPTIONAL("h"),
      MGG_OPTIONAL("bias"), "out"_a.noconvert(), MGG_OPTIONAL("log_sum"), MGG_OPTIONAL("above"),
      MGG_OPTIONAL("above_weight"), MGG_OPTIONAL("edge_score"), MGG_DRAW);
  def("attend_back", &attend_back<S, T>, "heads"_a, "channels"_a, "slope"_a, "scale"_a, "at_source"_a,
      MGG_OPTIONAL("score"), MGG_OPTIONAL("h"), MGG_OPTIONAL("gradient"), MGG_OPTIONAL("log_sum"), MGG_OPTIONAL("dot"),
      "out"_a.noconvert(), MGG_OPTIONAL("score_gradient"), MGG_OPTIONAL("edge_score"),
      MGG_OPTIONAL("edge_score_gradient"), MGG_DRAW);
  def("max_ties", &max_ties<S, T>, "out"_a.noconvert(), "ties"_a.noconvert());
  def("max_back", &max_back<S, T>, "x"_a.noconvert(), "out"_a.noconvert());
  def("weighted", &weighted<S, T>, "weight"_a.noconvert(), "out"_a.noconvert());
  def("sddmm", &sddmm<S, T>, "y"_a.noconvert(), "out"_a.noconvert());
  def("propagate", &propagate<S>, "columns"_a, "far_columns"_a, "values"_a.noconvert(), "steps"_a.noconvert(),
      "outputs"_a.noconvert(), "registers"_a, "reduce"_a, "near"_a.noconvert(), "shared"_a.noconvert(),
      MGG_OPTIONAL("edge"), "out"_a.noconvert());
}

}  // namespace

void bind_edges(nb::class_<HostSchedule>& schedule) {
  bind<float, float>(schedule, "float32");
  bind<double, double>(schedule, "float64");
  bind<Float16, uint16_t>(schedule, "float16");
  bind<BFloat16, uint16_t>(schedule, "bfloat16");
}
