// Half-precision storage: rows take half the bytes, sums are float32. Conversions round to nearest, ties to even.
#pragma once
#include <cstdint>
#include <cstring>

#include "mgg/host_device.h"

namespace mgg {

struct Float16 {  // IEEE 754 binary16
  uint16_t bits;
};
struct BFloat16 {  // the upper half of a float32
  uint16_t bits;
};

MGG_BOTH float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
MGG_BOTH uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

MGG_BOTH float widen(float value) { return value; }
MGG_BOTH double widen(double value) { return value; }
MGG_BOTH float widen(BFloat16 value) { return float_of_bits(uint32_t(value.bits) << 16); }
MGG_BOTH float widen(Float16 value) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#else
  const uint32_t sign = uint32_t(value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of_bits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // As a float32 with the same fields the exponent is 112 too small, also for subnormal numbers.
  return float_of_bits(bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f) | sign);
#endif
}

MGG_BOTH void narrow(float value, float& out) { out = value; }
MGG_BOTH void narrow(double value, double& out) { out = value; }
MGG_BOTH void narrow(float value, BFloat16& out) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
#else
  const uint32_t bits = bits_of_float(value);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(value != value ? bits >> 16 | 0x40u : rounded);  // NaN stays NaN
#endif
}
MGG_BOTH void narrow(float value, Float16& out) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
#else
  const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (magnitude > 0x7F800000u)
    half = 0x7E00u;
  else if (magnitude >= 0x477FF000u)
    half = 0x7C00u;  // rounds to 65536 or more: infinity
  else if (magnitude < 0x38800000u)
    // Below 2^-14: adding 2^-1 leaves multiples of 2^-24, float16's smallest step, in the last bits.
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000u;
  else
    half = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  out.bits = static_cast<uint16_t>(sign | half);
#endif
}

// The type in which sums of rows of S are taken.
template <class S>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class S>
using Accumulator = typename AccumulatorOf<S>::type;

}  // namespace mgg
