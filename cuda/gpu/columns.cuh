// The sums of a worker: the columns of its lanes, added up in blocks that keep long sums exact enough (semantics.h).
#pragma once
#include <cstring>

#include "runtime/device.h"
#include "mgg/half.h"
#include "mgg/semantics.h"

namespace mgg {

struct DeviceSum {
  MGG_DEVICE static float start() { return 0.0f; }
  MGG_DEVICE static float combine(float a, float b) { return a + b; }
};
struct DeviceMax {
  MGG_DEVICE static float start() { return float_of_bits(0xFF800000u); }
  MGG_DEVICE static float combine(float a, float b) { return a >= b || a != a ? a : b; }  // NaN stays NaN
};

// The columns of one lane: PACKS packs, LANES packs apart.
template <class S, int PACKS>
struct Columns {
  static constexpr int values = 16 / static_cast<int>(sizeof(S));
  float value[PACKS][values];

  template <class R>
  MGG_DEVICE void clear() {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < values; ++i) value[p][i] = R::start();
  }
  template <class R>
  MGG_DEVICE void combine(const Columns& other) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < values; ++i) value[p][i] = R::combine(value[p][i], other.value[p][i]);
  }
  template <class R>
  MGG_DEVICE void combine(int p, const device::Pack& pack, float weight) {
    S row[values];
    memcpy(row, &pack, sizeof row);
#pragma unroll
    for (int i = 0; i < values; ++i) value[p][i] = R::combine(value[p][i], widen(row[i]) * weight);
  }
};

// Adds terms in blocks of a length that keeps the error of long sums small (semantics.h).
template <class S, class R, int PACKS>
struct BlockedSum {
  Columns<S, PACKS> sum, total;
  int32_t block, left;
  MGG_DEVICE explicit BlockedSum(int64_t terms) : block(static_cast<int32_t>(summation_block(terms))), left(block) {
    sum.template clear<R>();
    total.template clear<R>();
  }
  MGG_DEVICE void took_one() {
    if (--left > 0) return;
    total.template combine<R>(sum);
    sum.template clear<R>();
    left = block;
  }
  MGG_DEVICE const Columns<S, PACKS>& result() {
    sum.template combine<R>(total);
    return sum;
  }
};

}  // namespace mgg
