// The runtime that moves rows, as host schedules use it. One thread at a time calls it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mgg {

class Transport {
 public:
  virtual ~Transport() = default;

  // Where `mine`, an address in this PE's symmetric memory, lies on `pe` as this process sees it; null if out of
  // reach.
  virtual void* pointer(const void* mine, int pe) const = 0;

  // Starts to copy `bytes` from pe's counterpart of `mine` to `to`, which may be any memory. Channels are 0 and 1.
  virtual void get_nbi(void* to, const void* mine, size_t bytes, int pe, int channel) = 0;
  // Returns when all gets of this channel have landed, whatever goes on in the other.
  virtual void quiet(int channel) = 0;

  // Starts to copy `from`, which may be any memory and is not written before the bytes have landed (as an answer from pe
  // tells), to pe's counterpart of `mine`, and then to set pe's counterpart of `signal` to `value`: a PE that sees the
  // value (load_signal) sees these bytes and the bytes of all earlier puts to `pe`. Signals only grow. Without bytes
  // only the signal is set, and without a signal (null) only the bytes are copied.
  virtual void put_signal_nbi(void* mine, const void* from, size_t bytes, uint64_t* signal, uint64_t value,
                              int pe) = 0;

  // Makes progress on transfers from and to this PE. Called every few microseconds to milliseconds.
  virtual void progress() = 0;
};

inline uint64_t load_signal(const uint64_t* signal) {
  return reinterpret_cast<const std::atomic<uint64_t>*>(signal)->load(std::memory_order_acquire);
}

inline void store_signal(uint64_t* signal, uint64_t value) {
  reinterpret_cast<std::atomic<uint64_t>*>(signal)->store(value, std::memory_order_release);
}

}  // namespace mgg
