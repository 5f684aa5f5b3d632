// A numbering of 0 .. n-1 in an order that looks random, which takes no memory: any number's place, and back.
#pragma once
#include <cstdint>

namespace mgg {

// Multiplications by odd numbers and shifts are bijections of the numbers of so many bits; numbers past the end are
// mapped again until they lie inside (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002), which takes less than two turns in the mean.
class Bijection {
 public:
  Bijection(uint64_t count, uint64_t key) : count_(count) {
    while (bits_ < 64 && count > uint64_t(1) << bits_) ++bits_;
    mask_ = bits_ == 64 ? ~uint64_t(0) : (uint64_t(1) << bits_) - 1;
    shift_ = (bits_ + 1) / 2;  // of half the bits at least: such a shift undoes itself
    for (int i = 0; i < turns; ++i) {
      key += 0x9E3779B97F4A7C15u;  // SplitMix64 (Steele, Lea, Flood: OOPSLA 2014) makes factors from the key
      uint64_t word = key;
      word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
      word = (word ^ word >> 27) * 0x94D049BB133111EBu;
      word ^= word >> 31;
      factor_[i] = word | 1;
      offset_[i] = word >> 1;
      inverse_[i] = inverse_of(factor_[i]);
    }
  }

  uint64_t operator()(uint64_t number) const {
    do {
      for (int i = 0; i < turns; ++i) {
        number = (number * factor_[i] + offset_[i]) & mask_;
        number ^= number >> shift_;
      }
    } while (number >= count_);
    return number;
  }

  uint64_t back(uint64_t number) const {
    do {
      for (int i = turns - 1; i >= 0; --i) {
        number ^= number >> shift_;
        number = ((number - offset_[i]) * inverse_[i]) & mask_;
      }
    } while (number >= count_);
    return number;
  }

 private:
  static constexpr int turns = 4;

  // Newton's iteration modulo 2^64: each step doubles the right bits, of which an odd number has three at once.
  static uint64_t inverse_of(uint64_t odd) {
    uint64_t inverse = odd;
    for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
    return inverse;
  }

  uint64_t count_, mask_, factor_[turns], offset_[turns], inverse_[turns];
  int bits_ = 1, shift_;
};

}  // namespace mgg
