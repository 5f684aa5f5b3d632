// Tapes (mgg/tape.h) as Python gives them, and what is wrong with one.
#pragma once
#include <vector>

#include "mgg/tape.h"
#include "python/bindings.h"

namespace mgg {

struct Tape {
  std::vector<TapeValue> values;
  std::vector<TapeStep> steps;
  std::vector<TapeOutput> outputs;
  Tape(const Flat<const uint8_t>& values, const Flat<const uint8_t>& steps, const Flat<const uint8_t>& outputs)
      : values(structs<TapeValue>(values, "values: not a whole number of structs")),
        steps(structs<TapeStep>(steps, "steps: not a whole number of structs")),
        outputs(structs<TapeOutput>(outputs, "outputs: not a whole number of structs")) {}
};

// Operands that a tape may read: columns of wide values and of far rows, columns of edge data, wide registers, arrays of this end,
// and values that all edges share.
struct TapeRoom {
  int64_t columns, far_columns, edge_columns, registers, near, shared;
};

// Throws std::invalid_argument for a tape whose values are not there, or too wide for what they are read from.
inline void check_tape(const Tape& tape, const TapeRoom& room, bool max, int64_t most_values) {
  const auto count = static_cast<int64_t>(tape.values.size());
  require(count <= most_values, "tape: too many values");
  const auto among = [&](int64_t value) { require(value >= 0 && value < count, "tape: no such value"); };
  const auto typed = [&](int64_t type) { require(type < room.edge_columns, "tape: no such data of edges"); };
  for (const TapeStep& step : tape.steps) {
    among(step.out), among(step.a);
    if (step.b >= 0) among(step.b);
  }
  for (const TapeOutput& output : tape.outputs) {
    among(output.value), typed(output.type);
    const bool fits = output.type >= 0 ? output.width % room.columns == 0 : output.width == 1 || output.width == room.columns;
    require(fits && (!max || (output.type < 0 && output.width == room.columns)), "tape: an output of another width");
  }
  for (const TapeValue& value : tape.values) {
    const int64_t first = value.index, last = first + (value.narrow ? 1 : room.columns);
    require(first >= 0, "tape: no such value");
    typed(value.type);
    switch (static_cast<TapeKind>(value.kind)) {
      case TapeKind::wide: require(first < room.registers, "tape: no such register"); break;
      case TapeKind::narrow: require(first < count, "tape: no such register"); break;
      case TapeKind::far: require(last <= room.far_columns, "tape: rows have too few columns"); break;
      case TapeKind::near: require(first < room.near, "tape: no such array"); break;
      case TapeKind::shared: require(last <= room.shared, "tape: too few shared values"); break;
      case TapeKind::edge: require(first < room.edge_columns, "tape: no such data of edges"); break;
      default: require(false, "tape: no such kind of value");
    }
  }
}

}  // namespace mgg
