// From a tape's steps to phases, which run one after another over the edges of a tile: instructions (cpu/tapes/steps.h)
// for steps of columns that follow each other, and the steps that lead from columns to single values. Compiled once for
// each instruction set (MGG_ISA).
#pragma once
#include <algorithm>
#include <vector>

#include "cpu/edges.h"
#include "cpu/tapes/steps.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int most_totals = most_places - most_values;  // of outputs that instructions add up

// kind: by_column runs instructions for each edge, by_edge runs them once, over single values of all edges; pick and
// column_sum are the step of that name, from a to out.
template <class A>
struct Phase {
  enum Kind { by_column, by_edge, pick, column_sum } kind;
  std::vector<Instruction<A>> instructions;
  int32_t a = 0, out = 0;
};

// totals: numbers of the outputs that instructions add up: output totals[i] at place most_values + i. within: of each
// value, whether it is a register of columns that one phase alone reads. moving: the values that lie elsewhere for each
// edge.
template <class A>
struct TapeProgram {
  std::vector<Phase<A>> phases;
  std::vector<int> totals;
  std::vector<char> within;
  std::vector<int> moving;
};

// Compiles the steps of a tape. reads: numbers of the values that are read of each edge after all steps.
template <class A>
class TapeCompiler {
 public:
  TapeCompiler(const std::vector<TapeValue>& values, const std::vector<TapeStep>& steps,
               const std::vector<TapeOutput>& outputs, bool adds)
      : values_(values), steps_(steps), outputs_(outputs) {
    for (size_t i = 0; adds && i < outputs.size() && made_.totals.size() < most_totals; ++i)
      if (outputs[i].type < 0 && is(outputs[i].value, TapeKind::wide)) made_.totals.push_back(static_cast<int>(i));
  }

  TapeProgram<A> compiled() {
    phase_of_.resize(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i) phase_of_[i] = i > 0 && follows(i) ? phase_of_[i - 1] : count_++;
    for (size_t i = 0; i < steps_.size(); ++i) add(i);
    for (Phase<A>& phase : made_.phases) phase.instructions.push_back(end<A>());
    made_.within.resize(values_.size());
    for (int value = 0; value < static_cast<int>(values_.size()); ++value) {
      made_.within[value] = is_within(value);
      const bool stays = made_.within[value] || is(value, TapeKind::shared);
      if (!stays && !(is(value, TapeKind::near) && values_[value].type < 0)) made_.moving.push_back(value);
    }
    return std::move(made_);
  }

 private:
  bool is(int value, TapeKind kind) const { return values_[value].kind == static_cast<int32_t>(kind); }
  TapeOp op(size_t i) const { return static_cast<TapeOp>(steps_[i].op); }
  typename Phase<A>::Kind kind(size_t i) const {
    if (op(i) == TapeOp::pick) return Phase<A>::pick;
    if (op(i) == TapeOp::column_sum) return Phase<A>::column_sum;
    return is(steps_[i].out, TapeKind::narrow) ? Phase<A>::by_edge : Phase<A>::by_column;
  }
  // Whether step i belongs to the phase of the one before.
  bool follows(size_t i) const {
    return kind(i) == kind(i - 1) && (kind(i) == Phase<A>::by_column || kind(i) == Phase<A>::by_edge);
  }
  bool reads(size_t i, int value) const { return steps_[i].a == value || steps_[i].b == value; }

  // Whether anything but instructions reads a register after the last step.
  bool read_at_end(int value) const {
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_[i].value == value && std::count(made_.totals.begin(), made_.totals.end(), static_cast<int>(i)) == 0)
        return true;
    return false;
  }
  bool is_last_of(size_t i) const {
    for (size_t later = i + 1; later < steps_.size(); ++later)
      if (steps_[later].out == steps_[i].out) return false;
    return true;
  }
  // Whether the result of step i is read by anything but the next step, which takes it from the accumulator.
  bool is_kept(size_t i) const {
    const int value = steps_[i].out;
    for (size_t later = i + 1; later < steps_.size(); ++later) {
      if (reads(later, value) && (later > i + 1 || !follows(later))) return true;
      if (steps_[later].out == value) return false;
    }
    return read_at_end(value);
  }
  bool is_within(int value) const {
    if (!is(value, TapeKind::wide) || read_at_end(value)) return false;
    int phase = -1;
    for (size_t i = 0; i < steps_.size(); ++i)
      if (reads(i, value) || steps_[i].out == value) {
        if (phase >= 0 && phase != phase_of_[i]) return false;
        phase = phase_of_[i];
      }
    return true;
  }

  void add(size_t i) {
    const TapeStep& step = steps_[i];
    if (i == 0 || phase_of_[i] != phase_of_[i - 1]) made_.phases.push_back({kind(i), {}, step.a, step.out});
    if (kind(i) == Phase<A>::pick || kind(i) == Phase<A>::column_sum) return;
    auto& to = made_.phases.back().instructions;
    const bool goes_on = i > 0 && phase_of_[i] == phase_of_[i - 1];
    const bool a = goes_on && step.a == steps_[i - 1].out, b = goes_on && step.b == steps_[i - 1].out;
    const From from = a ? (b || step.b < 0 ? From::accumulator : From::first) : b ? From::second : From::memory;
    to.push_back(op(i) == TapeOp::splat ? instruction<A, Splat<A>>(step.a) : instruction_of<A>(step, from));
    if (is_kept(i)) to.push_back(instruction<A, Store<A>>(step.out));
    for (size_t total = 0; total < made_.totals.size(); ++total)
      if (outputs_[made_.totals[total]].value == step.out && is_last_of(i))
        to.push_back(instruction<A, AddUp<A>>(most_values + static_cast<int32_t>(total)));
  }

  const std::vector<TapeValue>& values_;
  const std::vector<TapeStep>& steps_;
  const std::vector<TapeOutput>& outputs_;
  TapeProgram<A> made_;
  std::vector<int> phase_of_;
  int count_ = 0;
};

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
