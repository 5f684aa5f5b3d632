// Scatter, ApplyEdge and Gather in one pass over the edges (NGra, section 3.2): a tape of operators (mgg/tape.h) is run
// edge by edge over columns in vector registers, and no value of an edge ever reaches memory. What a tape keeps of an
// edge, between steps or for single values of all columns, stays in a core's first cache. Compiled once for each
// instruction set (MGG_ISA).
#include <limits>

#include "cpu/edge_batches.h"
#include "cpu/tapes/program.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int64_t tile_bytes = 16 << 10;  // of values that are kept for each edge of a tile: a third of a first cache

// Where a value lies for each edge of a tile.
template <class A>
struct Place {
  A* base = nullptr;               // values of the first edge
  int64_t step = 0;                // to the values of the next edge
  const A* const* rows = nullptr;  // or a row for each edge,
  int64_t offset = 0;              // from this value on
  const A* at(int edge) const { return rows ? rows[edge] + offset : base + edge * step; }
};

// Where all values lie for the edges of a tile. typed: rows by the edges' types, of the values that have any.
template <class A>
struct Places {
  Place<A> of[most_values];
  const A* typed[most_values][most_edges];
};

template <class S>
struct PropagateOp {
  using A = Accumulator<S>;
  static constexpr int lanes = lanes_of<A>;
  const Propagate<S>& of;
  const TapeProgram<A> program =
      TapeCompiler<A>(of.values, of.steps, of.outputs, of.reduce != Reduce::max).compiled();
  const int64_t columns = of.columns;
  const int64_t length = (columns + lanes - 1) / lanes * lanes;  // of a register's row
  const bool whole = length == columns;  // rows are whole vectors: operands are read where they lie
  const int64_t kept = kept_registers();
  const int edges_at_once = static_cast<int>(std::clamp<int64_t>(
      tile_bytes / static_cast<int64_t>(sizeof(A)) / std::max<int64_t>(1, length * kept), 1, most_edges));

  int64_t state() const { return of.state; }
  // Totals, registers of columns, then of single values, then copies of operands whose rows are no whole vectors.
  int64_t room() const {
    const auto values = static_cast<int64_t>(of.values.size()), totals = static_cast<int64_t>(program.totals.size());
    const int64_t copies = whole ? 0 : values * edges_at_once * length;
    return (totals + values + kept * edges_at_once) * length + values * most_edges + copies + 2 * lanes;
  }

  void begin(A* state) const {
    std::fill(state, state + of.state, A(0));
    if (of.reduce == Reduce::max) std::fill(state, state + columns, -std::numeric_limits<A>::infinity());
  }

  void take(const Batch<A>& batch, int64_t v, A* state, A* room) const {
    const auto totals = static_cast<int64_t>(program.totals.size());
    std::fill(room, room + totals * length, A(0));
    for (int first = 0; first < batch.count; first += edges_at_once)
      tile(batch, first, std::min(edges_at_once, batch.count - first), v, state, room);
    for (int64_t total = 0; total < totals; ++total)
      add_all(state + first_column(program.totals[total]), room + total * length, columns);
  }

  void merge(A* into, const A* from) const {
    if (of.reduce != Reduce::max) return add_all(into, from, of.state);
    raise(into, from, [&](size_t output) { return from + output * columns; });
  }

  void finish(A* state, int64_t v) const {
    const int64_t degree = of.call.schedule->degree[v];
    const A divisor = of.reduce == Reduce::mean ? mean_divisor<A>(degree) : A(1);
    for (size_t i = 0; i < of.outputs.size(); ++i) {
      const int64_t width = of.outputs[i].width;
      A* to = of.out[i][v];
      for (int64_t c = 0; c < width; ++c) to[c] = degree > 0 ? state[c] / divisor : A(0);
      state += width;
    }
  }

 private:
  bool is(size_t value, TapeKind kind) const { return of.values[value].kind == static_cast<int32_t>(kind); }

  // Number of registers of columns that have a row for each edge of a tile.
  int64_t kept_registers() const {
    int64_t count = 0;
    for (size_t i = 0; i < of.values.size(); ++i) count += is(i, TapeKind::wide) && !program.within[i];
    return count;
  }

  // The column of the state at which an output begins.
  int64_t first_column(int output) const {
    int64_t column = 0;
    for (int i = 0; i < output; ++i) column += of.outputs[i].width;
    return column;
  }

  void tile(const Batch<A>& batch, int first, int edges, int64_t v, A* state, A* room) const {
    Places<A> places;
    Operands<A> operands;
    A* registers = room;
    for (size_t total = 0; total < program.totals.size(); ++total, registers += length)
      operands.at[most_values + total] = registers;
    place(batch, first, edges, v, registers, places);
    for (size_t value = 0; value < of.values.size(); ++value) operands.at[value] = places.of[value].at(0);
    for (const Phase<A>& phase : program.phases) run(phase, places, operands, edges);
    if (of.reduce == Reduce::max) {
      const auto value = [&](size_t i, int e) { return places.of[of.outputs[i].value].at(e); };
      for (int e = 0; e < edges; ++e) raise(state, value(0, e), [&](size_t i) { return value(i, e); });
      return;
    }
    for (size_t i = 0, total = 0; i < of.outputs.size(); state += of.outputs[i++].width) {
      if (total < program.totals.size() && program.totals[total] == static_cast<int>(i))
        ++total;
      else
        add(of.outputs[i], places.of[of.outputs[i].value], batch, first, edges, state);
    }
  }

  void run(const Phase<A>& phase, const Places<A>& places, Operands<A>& operands, int edges) const {
    const Place<A>&a = places.of[phase.a], &out = places.of[phase.out];
    const Instruction<A>* instructions = phase.instructions.data();
    switch (phase.kind) {
      case Phase<A>::pick:
        for (int e = 0; e < edges; ++e) out.base[e] = a.at(e)[0];
        break;
      case Phase<A>::column_sum:
        for (int e = 0; e < edges; ++e) out.base[e] = total(a.at(e));
        break;
      case Phase<A>::by_edge: return run_all(instructions, operands, (edges + lanes - 1) / lanes * lanes);
      case Phase<A>::by_column:
        for (int e = 0; e < edges; ++e) {
          for (const int value : program.moving) operands.at[value] = places.of[value].at(e);
          run_all(instructions, operands, length);
        }
        for (const int value : program.moving) operands.at[value] = places.of[value].at(0);
    }
  }

  bool is_narrow(int value) const { return is(value, TapeKind::narrow); }

  A total(const A* values) const {
    Wide<A> sums{};
    int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) sums += load<vector_bytes>(values + c);
    A sum = sum_of_lanes<A, lanes>(sums);
    for (; c < columns; ++c) sum += values[c];
    return sum;
  }

  // Sets the place of each value for the edges of this tile.
  void place(const Batch<A>& batch, int first, int edges, int64_t v, A* wide, Places<A>& places) const {
    const auto values = static_cast<int64_t>(of.values.size());
    A* narrow = wide + (values + kept * edges_at_once) * length;
    A* copy = narrow + values * most_edges;
    for (size_t i = 0; i < of.values.size(); ++i) {
      const TapeValue& value = of.values[i];
      Place<A>& to = places.of[i];
      switch (static_cast<TapeKind>(value.kind)) {
        case TapeKind::wide:
          to.base = wide, to.step = program.within[i] ? 0 : length;
          wide += program.within[i] ? length : edges_at_once * length;
          continue;
        case TapeKind::narrow: to.base = narrow + value.index * most_edges, to.step = 1; continue;
        case TapeKind::far:
          to.rows = batch.row + first, to.offset = value.index;
          if (value.type >= 0) by_type(to, value.type, batch, first, edges, places.typed[i]);
          break;
        case TapeKind::near:
          to.base = const_cast<A*>(of.near[value.index][v]);
          if (value.type >= 0) by_type(to, value.type, batch, first, edges, places.typed[i]);
          break;
        case TapeKind::shared: to.base = const_cast<A*>(of.shared + value.index); break;
        case TapeKind::edge:
          for (int e = 0; e < edges; ++e) places.typed[i][e] = of.edge + batch.edge[first + e] * of.edge_columns;
          to.rows = places.typed[i], to.offset = value.index;
          break;
      }
      if (!whole && !value.narrow) copy = copied(to, edges, copy);
    }
  }

  // Moves a place to the columns of each edge's type.
  void by_type(Place<A>& place, int32_t type, const Batch<A>& batch, int first, int edges, const A** rows) const {
    for (int e = 0; e < edges; ++e) rows[e] = place.at(e) + typed(type, batch, first + e);
    place.rows = rows, place.offset = 0;
  }

  // Copies an operand's columns to rows of whole vectors.
  A* copied(Place<A>& place, int edges, A* to) const {
    const bool one = !place.rows;
    for (int e = 0; e < (one ? 1 : edges); ++e) {
      const A* from = place.at(e);
      std::copy(from, from + columns, to + e * length);
      std::fill(to + e * length + columns, to + (e + 1) * length, A(0));
    }
    place.base = to, place.step = one ? 0 : length, place.rows = nullptr;
    return to + edges_at_once * length;
  }

  // The first column of an edge's type among the columns of all types.
  int64_t typed(int32_t type, const Batch<A>& batch, int edge) const {
    return columns * static_cast<int64_t>(of.edge[batch.edge[edge] * of.edge_columns + type]);
  }

  // Adds a value of the tile's edges: their total first, so that chains of sums stay short.
  void add(const TapeOutput& output, const Place<A>& value, const Batch<A>& batch, int first, int edges, A* sum) const {
    if (is_narrow(output.value)) {
      A all = 0;
      for (int e = 0; e < edges; ++e) all += value.base[e];
      sum[0] += all;
    } else if (output.type >= 0) {
      for (int e = 0; e < edges; ++e) add_all(sum + typed(output.type, batch, first + e), value.at(e), columns);
    } else {
      int64_t c = 0;
      for (; c + lanes <= columns; c += lanes) {
        Wide<A> all = load<vector_bytes>(value.at(0) + c);
        for (int e = 1; e < edges; ++e) all += load<vector_bytes>(value.at(e) + c);
        store<vector_bytes>(sum + c, load<vector_bytes>(sum + c) + all);
      }
      for (; c < columns; ++c) {
        A all = value.at(0)[c];
        for (int e = 1; e < edges; ++e) all += value.at(e)[c];
        sum[c] += all;
      }
    }
  }

  // Takes a larger first output with its other outputs; for an equal one adds the other outputs. NaN stays NaN.
  template <class Output>
  void raise(A* state, const A* value, Output&& output) const {
    for (size_t i = of.outputs.size(); i-- > 0;) {  // the first one last, since it is compared
      const A* from = output(i);
      A* to = state + static_cast<int64_t>(i) * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const bool larger = state[c] == state[c] && !(value[c] <= state[c]);
        if (i == 0)
          to[c] = larger ? value[c] : to[c];
        else
          to[c] = larger ? from[c] : value[c] == state[c] ? to[c] + from[c] : to[c];
      }
    }
  }
};

}  // namespace

#define MGG_DEFINE(S) \
  void propagate(const Propagate<S>& call) { run_edges(call.call, PropagateOp<S>{call}); }
MGG_DEFINE(float)
MGG_DEFINE(double)
MGG_DEFINE(Float16)
MGG_DEFINE(BFloat16)
#undef MGG_DEFINE

}  // namespace MGG_ISA
}  // namespace mgg
