// Functions of vectors of values, off by a few units in the last place at most. NaN stays NaN. Compiled once for each
// instruction set (MGG_ISA).
//
// Those of COUNT vectors work on x[0 .. COUNT - 1] in place: operations of several vectors are independent of each other,
// and a core waits for fewer of them.
#pragma once
#include <cmath>

#include "cpu/tile.h"

namespace mgg {
namespace MGG_ISA {
namespace {

template <class T>
using Wide = Vector<T, vector_bytes>;
template <class T>
constexpr int lanes_of = vector_bytes / static_cast<int>(sizeof(T));

template <int COUNT, class Body>
inline void each(Body&& body) {
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) body(i);
}

// a b + c, rounded once where the instruction set has that.
inline Wide<float> times_plus(Wide<float> a, Wide<float> b, Wide<float> c) {
#if defined(__AVX512F__)
  return (Wide<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Wide<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// x within two numbers; NaN stays NaN.
inline Wide<float> within(Wide<float> x, float lowest, float highest) {
#if defined(__AVX512F__)
  constexpr __mmask16 all = 0xFFFF;  // the forms without a mask are warned of by GCC 12
  const __m512 raised = _mm512_maskz_max_ps(all, _mm512_set1_ps(lowest), (__m512)x);
  return (Wide<float>)_mm512_maskz_min_ps(all, _mm512_set1_ps(highest), raised);
#elif defined(__AVX2__)
  const __m256 raised = _mm256_max_ps(_mm256_set1_ps(lowest), (__m256)x);
  return (Wide<float>)_mm256_min_ps(_mm256_set1_ps(highest), raised);
#else
  const Wide<float> raised = x < lowest ? Wide<float>{} + lowest : x;
  return raised > highest ? Wide<float>{} + highest : raised;
#endif
}

// exp(SIGN x): 2^n times a polynomial of degree 6 around 0, with the least largest error (3e-9), off by 2 ulp at most; 0
// below -87.7, where float32 has no normal numbers, and infinite from 88.4 on.
template <int COUNT, int SIGN = 1>
inline void exp_of(Wide<float>* x) {
  using V = Wide<float>;
  using U = Bits<vector_bytes>;
  constexpr float round = 12582912.0f;  // 1.5 x 2^23: sums with it are whole numbers
  V shifted[COUNT], y[COUNT];
  each<COUNT>([&](int i) { x[i] = SIGN > 0 ? within(x[i], -88.0f, 89.0f) : within(x[i], -89.0f, 88.0f); });
  each<COUNT>([&](int i) { shifted[i] = times_plus(x[i], V{} + SIGN * 1.44269504088896341f, V{} + round); });
  each<COUNT>([&](int i) { y[i] = shifted[i] - round; });  // n
  each<COUNT>([&](int i) { x[i] = times_plus(y[i], V{} - SIGN * 0.693359375f, x[i]); });
  each<COUNT>([&](int i) { x[i] = times_plus(y[i], V{} + SIGN * 2.12194440e-4f, x[i]); });  // x - n log 2
  each<COUNT>([&](int i) { y[i] = times_plus(x[i], V{} + 1.38146e-3f, V{} + SIGN * 8.36871e-3f); });
  const auto next = [&](float factor) { each<COUNT>([&](int i) { y[i] = times_plus(y[i], x[i], V{} + factor); }); };
  next(4.166839e-2f), next(SIGN * 1.6666521e-1f), next(4.9999993e-1f), next(SIGN), next(1);
  each<COUNT>([&](int i) {
    const U power = (reinterpret_cast<U>(shifted[i]) << 23) + (127u << 23);
    x[i] = y[i] * reinterpret_cast<V>(power);
  });
}
template <int COUNT, int SIGN = 1>
inline void exp_of(Wide<double>* x) {
  each<COUNT>([&](int i) {
    for (int lane = 0; lane < lanes_of<double>; ++lane) x[i][lane] = std::exp(SIGN * x[i][lane]);
  });
}
template <class V>
inline V exp_of(V x) {
  exp_of<1>(&x);
  return x;
}

template <int COUNT, class V>
inline void sigmoid_of(V* x) {
  exp_of<COUNT, -1>(x);
  each<COUNT>([&](int i) { x[i] = logistic(x[i]); });
}

// Near 0 an odd polynomial (Cephes, S. Moshier), elsewhere by exp.
template <int COUNT>
inline void tanh_of(Wide<float>* x) {
  using V = Wide<float>;
  V large[COUNT];
  each<COUNT>([&](int i) { large[i] = magnitude(x[i]) * 2; });
  exp_of<COUNT>(large);
  each<COUNT>([&](int i) {
    const V square = x[i] * x[i], size = magnitude(x[i]);
    V small = square * -5.70498872745e-3f + 2.06390887954e-2f;
    small = small * square - 5.37397155531e-2f;
    small = small * square + 1.33314422036e-1f;
    small = small * square - 3.33332819422e-1f;
    small = small * square * x[i] + x[i];
    const V far = 1 - 2 / (large[i] + 1);
    x[i] = size < 0.625f ? small : x[i] < 0 ? -far : far;
  });
}
template <int COUNT>
inline void tanh_of(Wide<double>* x) {
  each<COUNT>([&](int i) {
    for (int lane = 0; lane < lanes_of<double>; ++lane) x[i][lane] = std::tanh(x[i][lane]);
  });
}

template <class V>
inline V log_of(V x) {
  for (size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) x[i] = std::log(x[i]);
  return x;
}
template <class V>
inline V sqrt_of(V x) {
  for (size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) x[i] = std::sqrt(x[i]);
  return x;
}

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
