// Arithmetic of draws by weight, for host and device: additions, multiplications and divisions alone, so that all
// processors get the same bits (GPU sources that include this are compiled with -fmad=false).
#pragma once
#include <cstdint>
#include <cstring>

#include "mgg/semantics.h"

namespace mgg {

// -log((2 bits + 1) / 2^53) for bits below 2^52, many values at a time. For x = m 2^n, m in [sqrt(1/2), sqrt(2)):
// log x = n log 2 + 2 artanh(s), where s = (m - 1) / (m + 1), and the terms of the series after the 11th are less than a
// rounding.
MGG_BOTH double exponential(uint64_t bits) {
  const double x = static_cast<double>(static_cast<int64_t>(2 * bits + 1)) * 0x1p-53;
  constexpr uint64_t root = 0x3FE6A09E667F3BCDu;  // the bits of sqrt(1/2)
  uint64_t whole;
  std::memcpy(&whole, &x, sizeof whole);
  const int64_t n = static_cast<int64_t>(whole - root) >> 52;
  whole -= static_cast<uint64_t>(n) << 52;
  double m;
  std::memcpy(&m, &whole, sizeof m);
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 1.0 / 21;
  series = series * z + 1.0 / 19, series = series * z + 1.0 / 17, series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13, series = series * z + 1.0 / 11, series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7, series = series * z + 1.0 / 5, series = series * z + 1.0 / 3;
  return -(static_cast<double>(n) * 0.693147180559945309417 + (2 * s + 2 * s * z * series));
}

// An edge's key, of two words of its node's draws: Exp(1) / weight (Efraimidis and Spirakis, IPL 2006); infinite for a
// weight of 0.
MGG_BOTH double edge_key(uint32_t first, uint32_t second, float weight) {
  return exponential(uint64_t(first) << 20 | second >> 12) / static_cast<double>(weight);
}

// One over the probability 1 - exp(-weight limit) with which an edge's key is below `limit`, the smallest key that was
// not drawn (Cohen and Kaplan, PODC 2007, rank conditioning); 1 where all were. For x = n log 2 + r, |r| at most
// log(2) / 2: 1 - exp(-x) = (1 - 2^-n) + 2^-n (1 - exp(-r)), whose terms after the 14th are less than a rounding.
MGG_BOTH double one_over_drawn(float weight, double limit) {
  const double given = static_cast<double>(weight) * limit, x = given < 40 ? given : 40;  // exp(-40) is lost beside 1
  const auto n = static_cast<int32_t>(x * 1.44269504088896340736 + 0.5);
  // log 2 as two numbers, of which the first has 21 bits less than a double.
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  const double z = r * r;
  double even = 1, odd = 1;  // two sums, of every second term
  for (int term = 12; term > 0; term -= 2) {
    even = 1 + even * z * (1.0 / (term * (term + 1)));
    odd = 1 + odd * z * (1.0 / ((term + 1) * (term + 2)));
  }
  const uint64_t power = static_cast<uint64_t>(1023 - n) << 52;
  double part;
  std::memcpy(&part, &power, sizeof part);
  return 1 / ((1 - part) + part * (r * (even - odd * r / 2)));
}

}  // namespace mgg
