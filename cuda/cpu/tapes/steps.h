// The operators of tapes (mgg/tape.h) over columns that stay in vector registers from step to step.
//
// An instruction works on an accumulator, COUNT vectors of columns. Its function passes the accumulator as arguments to
// the function of the next instruction: a tail call, which compilers turn into a jump, so that the vectors stay in
// registers. Other operands lie in memory, at Operands::at. Compiled once for each instruction set (MGG_ISA).
#pragma once
#include <stdexcept>
#include <utility>

#include "cpu/functions.h"
#include "mgg/semantics.h"
#include "mgg/tape.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int most_places = 96;

// Addresses of the values of the current edge, by their numbers.
template <class A>
struct Operands {
  const A* at[most_places];
};

template <class A>
struct Instruction;

// A vector as it is passed in a register.
template <class A, size_t>
struct ArgumentOf {
  typedef A type __attribute__((vector_size(vector_bytes)));
};
template <class A, size_t I>
using Argument = typename ArgumentOf<A, I>::type;

template <class A, class Each>
struct Runs;
template <class A, size_t... I>
struct Runs<A, std::index_sequence<I...>> {
  using Function = void (*)(const Instruction<A>*, const Operands<A>*, int64_t column, Argument<A, I>...);

  // STEP: STEP::run<COUNT>(x, self, operands, column) changes the accumulator x.
  template <class STEP>
  static void run(const Instruction<A>* self, const Operands<A>* operands, int64_t column, Argument<A, I>... values) {
    constexpr int count = sizeof...(I);
    Wide<A> x[count] = {Wide<A>(values)...};
    STEP::template run<count>(x, *self, *operands, column);
    return self[1].template function<count>()(self + 1, operands, column, Argument<A, I>(x[I])...);
  }
  static void stop(const Instruction<A>*, const Operands<A>*, int64_t, Argument<A, I>...) {}

  static void begin(const Instruction<A>* first, const Operands<A>* operands, int64_t column) {
    first->template function<static_cast<int>(sizeof...(I))>()(first, operands, column, Argument<A, I>{}...);
  }
};
template <class A, int COUNT>
using Run = Runs<A, std::make_index_sequence<COUNT>>;

constexpr int most_vectors = 8;  // of an accumulator

// a, b: numbers of operands, where it has any. value: a constant.
template <class A>
struct Instruction {
  typename Run<A, most_vectors>::Function most;
  typename Run<A, 4>::Function four;
  typename Run<A, 1>::Function one;
  int32_t a, b;
  A value;

  template <int COUNT>
  auto function() const {
    if constexpr (COUNT == most_vectors) return most;
    else if constexpr (COUNT == 4) return four;
    else return one;
  }
};

template <class A, class STEP>
Instruction<A> instruction(int32_t a = 0, int32_t b = 0, A value = 0) {
  return {&Run<A, most_vectors>::template run<STEP>, &Run<A, 4>::template run<STEP>, &Run<A, 1>::template run<STEP>, a, b, value};
}
template <class A>
Instruction<A> end() {
  return {&Run<A, most_vectors>::stop, &Run<A, 4>::stop, &Run<A, 1>::stop, 0, 0, 0};
}

// Runs instructions over `length` columns, a whole number of vectors.
template <class A>
inline void run_all(const Instruction<A>* first, const Operands<A>& operands, int64_t length) {
  constexpr int lanes = lanes_of<A>;
  int64_t c = 0;
  for (; c + most_vectors * lanes <= length; c += most_vectors * lanes) Run<A, most_vectors>::begin(first, &operands, c);
  if (c + 4 * lanes <= length) Run<A, 4>::begin(first, &operands, c), c += 4 * lanes;
  for (; c < length; c += lanes) Run<A, 1>::begin(first, &operands, c);
}

template <int COUNT, class A>
inline void read(Wide<A>* to, const A* from) {
  each<COUNT>([&](int i) { to[i] = load<vector_bytes>(from + i * lanes_of<A>); });
}

// ---- steps

// x = op(x, y)
template <TapeOp OP, int COUNT, class A>
inline void apply(Wide<A>* x, [[maybe_unused]] const Wide<A>* y, [[maybe_unused]] A value) {
  using V = Wide<A>;
  const auto of_one = [&](auto&& function) { each<COUNT>([&](int i) { x[i] = function(x[i]); }); };
  const auto of_two = [&](auto&& function) { each<COUNT>([&](int i) { x[i] = function(x[i], y[i]); }); };
  switch (OP) {
    case TapeOp::exp: return exp_of<COUNT>(x);
    case TapeOp::log: return of_one([](V a) { return log_of(a); });
    case TapeOp::sqrt: return of_one([](V a) { return sqrt_of(a); });
    case TapeOp::tanh: return tanh_of<COUNT>(x);
    case TapeOp::sigmoid: return sigmoid_of<COUNT>(x);
    case TapeOp::abs: return of_one([](V a) { return magnitude(a); });
    case TapeOp::reciprocal: return of_one([](V a) { return 1 / a; });
    case TapeOp::leaky_relu: return of_one([=](V a) { return leaky_relu(a, value); });
    case TapeOp::add_value: return of_one([=](V a) { return a + value; });
    case TapeOp::mul_value: return of_one([=](V a) { return a * value; });
    case TapeOp::add: return of_two([](V a, V b) { return a + b; });
    case TapeOp::sub: return of_two([](V a, V b) { return a - b; });
    case TapeOp::mul: return of_two([](V a, V b) { return a * b; });
    case TapeOp::div: return of_two([](V a, V b) { return a / b; });
    case TapeOp::maximum: return of_two([](V a, V b) { return larger_of(a, b); });
    case TapeOp::minimum: return of_two([](V a, V b) { return smaller_of(a, b); });
    case TapeOp::where_positive: return of_two([=](V a, V b) { return where_positive(a, b, value); });
    case TapeOp::times_sign: return of_two([](V a, V b) { return times_sign(a, b); });
    case TapeOp::above: return of_two([](V a, V b) { return above(a, b, A(1)); });
    case TapeOp::equal: return of_two([](V a, V b) { return equal(a, b, A(1)); });
    default: return;
  }
}

// Where a step's operands come from; x is the accumulator.
enum class From {
  accumulator,  // x, or (x, x)
  first,        // (x, b)
  second,       // (a, x)
  memory        // a, or (a, b)
};
constexpr bool is_binary(TapeOp op) { return op >= TapeOp::add; }

template <class A, TapeOp OP, From FROM>
struct Step {
  template <int COUNT>
  static void run(Wide<A>* x, const Instruction<A>& self, const Operands<A>& operands, int64_t column) {
    Wide<A> y[COUNT];
    if constexpr (FROM == From::accumulator || FROM == From::second) each<COUNT>([&](int i) { y[i] = x[i]; });
    if constexpr (FROM == From::second || FROM == From::memory) read<COUNT>(x, operands.at[self.a] + column);
    if constexpr (FROM == From::first || (FROM == From::memory && is_binary(OP)))
      read<COUNT>(y, operands.at[self.b] + column);
    apply<OP, COUNT>(x, y, self.value);
  }
};

template <class A>
struct Splat {
  template <int COUNT>
  static void run(Wide<A>* x, const Instruction<A>& self, const Operands<A>& operands, int64_t) {
    const Wide<A> all = Wide<A>{} + operands.at[self.a][0];
    each<COUNT>([&](int i) { x[i] = all; });
  }
};

template <class A>
struct Store {
  template <int COUNT>
  static void run(Wide<A>* x, const Instruction<A>& self, const Operands<A>& operands, int64_t column) {
    A* to = const_cast<A*>(operands.at[self.a]) + column;
    each<COUNT>([&](int i) { store<vector_bytes>(to + i * lanes_of<A>, x[i]); });
  }
};

template <class A>
struct AddUp {
  template <int COUNT>
  static void run(Wide<A>* x, const Instruction<A>& self, const Operands<A>& operands, int64_t column) {
    A* to = const_cast<A*>(operands.at[self.a]) + column;
    each<COUNT>([&](int i) {
      A* sum = to + i * lanes_of<A>;
      store<vector_bytes>(sum, load<vector_bytes>(sum) + x[i]);
    });
  }
};

template <class A, TapeOp OP>
Instruction<A> step_of(From from, int32_t a, int32_t b, A value) {
  if constexpr (is_binary(OP)) {
    if (from == From::first) return instruction<A, Step<A, OP, From::first>>(a, b, value);
    if (from == From::second) return instruction<A, Step<A, OP, From::second>>(a, b, value);
  }
  if (from == From::memory) return instruction<A, Step<A, OP, From::memory>>(a, b, value);
  return instruction<A, Step<A, OP, From::accumulator>>(a, b, value);
}

template <class A>
Instruction<A> instruction_of(const TapeStep& step, From from) {
  const A value = static_cast<A>(step.value);
  const int32_t a = step.a, b = step.b;
  switch (static_cast<TapeOp>(step.op)) {
#define MGG_STEP(op) \
  case TapeOp::op: return step_of<A, TapeOp::op>(from, a, b, value);
    MGG_STEP(exp) MGG_STEP(log) MGG_STEP(sqrt) MGG_STEP(tanh) MGG_STEP(sigmoid) MGG_STEP(abs) MGG_STEP(reciprocal)
    MGG_STEP(leaky_relu) MGG_STEP(add_value) MGG_STEP(mul_value)
    MGG_STEP(add) MGG_STEP(sub) MGG_STEP(mul) MGG_STEP(div) MGG_STEP(maximum) MGG_STEP(minimum)
    MGG_STEP(where_positive) MGG_STEP(times_sign) MGG_STEP(above) MGG_STEP(equal)
#undef MGG_STEP
    default: throw std::invalid_argument("tape: no such operator of columns");
  }
}

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
