// Philox4x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11), in NumPy's order: any
// part of the sequence that numpy.random.Philox draws, by itself.
#pragma once
#include <cstdint>

namespace mgg {

class Philox {
 public:
  // key [2] and counter [4] as in the state of a numpy.random.Philox that has nothing left in its buffer.
  Philox(const uint64_t* key, const uint64_t* counter) {
    for (int i = 0; i < 2; ++i) key_[i] = key[i];
    for (int i = 0; i < 4; ++i) counter_[i] = counter[i];
  }

  static constexpr int words = 4;  // of a counter
  static constexpr int together = 4;  // counters whose rounds are interleaved, which hides the latency of multiplying

  // Words `first` to first + count - 1 of the sequence lie in the result, at out + (first % 4). out has room for
  // room_for(count) words.
  const uint64_t* draw(uint64_t first, int64_t count, uint64_t* out) const {
    const uint64_t begin = first / words, shift = first % words;
    const int64_t counters = (static_cast<int64_t>(shift) + count + words - 1) / words;
    for (int64_t done = 0; done < counters; done += together) rounds(begin + done, out + done * words);
    return out + shift;
  }

  static constexpr int64_t room_for(int64_t count) { return count + 2 * words * together; }

 private:
  // The sequence begins with the counter after the state's own.
  void set(uint64_t number, uint64_t (&c)[4]) const {
    for (int i = 0; i < 4; ++i) c[i] = counter_[i];
    c[0] += number;
    bool carry = c[0] < number;
    if (++c[0] == 0) carry = true;
    for (int i = 1; i < 4 && carry; ++i) carry = ++c[i] == 0;
  }

  void rounds(uint64_t number, uint64_t* out) const {
    uint64_t c[together][4];
    for (int n = 0; n < together; ++n) set(number + n, c[n]);
    uint64_t k0 = key_[0], k1 = key_[1];
    for (int round = 0; round < 10; ++round) {
      for (int n = 0; n < together; ++n) {
        const auto p0 = static_cast<unsigned __int128>(c[n][0]) * 0xD2E7470EE14C6C93u;
        const auto p2 = static_cast<unsigned __int128>(c[n][2]) * 0xCA5A826395121157u;
        c[n][0] = static_cast<uint64_t>(p2 >> 64) ^ c[n][1] ^ k0;
        c[n][1] = static_cast<uint64_t>(p2);
        c[n][2] = static_cast<uint64_t>(p0 >> 64) ^ c[n][3] ^ k1;
        c[n][3] = static_cast<uint64_t>(p0);
      }
      k0 += 0x9E3779B97F4A7C15u, k1 += 0xBB67AE8584CAA73Bu;
    }
    for (int n = 0; n < together; ++n)
      for (int i = 0; i < 4; ++i) out[n * words + i] = c[n][i];
  }

  uint64_t key_[2], counter_[4];
};

// The upper half of a product: for a uniform word, one of 0 .. bound - 1, each as likely as the others to bound / 2^64.
inline uint64_t scaled(uint64_t word, uint64_t bound) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(word) * bound >> 64);
}

}  // namespace mgg
