// A program that is run for each edge, column by column: the part of a layer's ApplyEdge that is not moved to the
// vertices (NGra, section 3.2). Python compiles it (mgg_hpc/runtime/backends/tape.py declares the same structs).
//
// Values are wide, with `columns` values for each edge, or narrow, with one. Steps are in an order in which each value
// is computed before it is used.
#pragma once
#include <cstdint>

namespace mgg {

enum class TapeOp : int32_t {
  // narrow from an operand's first value, wide from narrow, narrow from wide
  pick, splat, column_sum,
  // of one value, and of `value` where it says so
  exp, log, sqrt, tanh, sigmoid, abs, reciprocal, leaky_relu, add_value, mul_value,
  // of two
  add, sub, mul, div, maximum, minimum,
  // derivatives: a where b > 0, else value a; a times the sign of b; 1, 1/2 or 0 where a >, = or < b; 1 where a = b,
  // else 0
  where_positive, times_sign, above, equal,
};

enum class TapeKind : int32_t {
  wide, narrow,  // registers
  far,           // columns of the row at the edge's other end, from `index` on
  near,          // array `index` of rows of this end
  shared,        // values that all edges share, from `index` on
  edge,          // column `index` of the edge's own data; narrow
};

// type: the column of edge data by which far columns are chosen: type t begins t x columns later; -1: none.
// narrow: whether it is one value for each edge, of a far row or a near one too.
struct TapeValue {
  int32_t kind, index, type, narrow;
};

// a, b: numbers of values, b -1 where there is one. out: the number of the register's value.
struct TapeStep {
  int32_t op, out, a, b;
  double value;
};

// A value that is reduced over the edges of a destination. width: of its array's rows; type: as in TapeValue, by which
// the columns are chosen that it is added to.
struct TapeOutput {
  int32_t value, type;
  int64_t width;
};

}  // namespace mgg
