// Two ranks out of each other's reach whose puts land at once, seen or not: no acknowledgement may be lost.
// Prints "done" after 100,000 calls, once with rows one way and once both ways; a lost one hangs. Then rows of 64 KiB
// cross in packets, several to a round, of two rounds; prints "wrong" where one arrives in another's place.
#include <cstdio>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "runtime/halo_exchange.h"
#include "runtime/pointer_transport.h"

struct Unreachable : mgg::PointerTransport {
  Unreachable(int me, const uint64_t (&base)[2], size_t bytes) : PointerTransport(me), me_(me) { add(base, bytes); }
  void* pointer(const void* mine, int pe) const override { return pe == me_ ? there(mine, pe) : nullptr; }
  void* there(const void* mine, int pe) const { return PointerTransport::pointer(mine, pe); }
  void put_signal_nbi(void* mine, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe) override {
    if (bytes) std::memcpy(there(mine, pe), from, bytes);
    if (signal) mgg::store_signal(static_cast<uint64_t*>(there(signal, pe)), value);
  }
  int me_;
};

constexpr int64_t row_bytes = 64, rows = 8, staging = rows * row_bytes;
alignas(64) char memory[2][2 * staging + 4096];

void play(int rank, bool both) {
  const uint64_t base[2] = {reinterpret_cast<uint64_t>(memory[0]), reinterpret_cast<uint64_t>(memory[1])};
  Unreachable transport(rank, base, sizeof(memory[0]));
  mgg::HaloExchange::Layout layout{rank, 2, 1, {}, {0, 0}, {0, 0}, {0, 0}, memory[rank], staging,
                                   reinterpret_cast<uint64_t*>(memory[rank] + 2 * staging)};
  if (rank == 0 || both) {
    for (int row = 0; row < rows; ++row) layout.send_rows.push_back(row);
    layout.send_counts[1 - rank] = rows;
  }
  if (rank == 1 || both) layout.receive_counts[1 - rank] = rows;
  mgg::HaloExchange exchange(layout, &transport);
  const std::vector<char> values(staging, 1);
  for (int call = 0; call < 100000; ++call) exchange.transfer(values.data(), row_bytes);
}

constexpr int64_t wide_bytes = 64 << 10;  // two rows a packet
alignas(64) char wide_memory[2][2 * rows * wide_bytes + 4096];

// Rows leave with the 20th call after their own, as they are then.
struct Late : Unreachable {
  using Unreachable::Unreachable;
  void put_signal_nbi(void* mine, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe) override {
    const auto put = [=] { Unreachable::put_signal_nbi(mine, from, bytes, signal, value, pe); };
    if (bytes)
      waiting.emplace_back(calls + 20, put);
    else
      put();
  }
  void progress() override {
    for (++calls; !waiting.empty() && waiting.front().first <= calls; waiting.pop_front()) waiting.front().second();
  }
  int calls = 0;
  std::deque<std::pair<int, std::function<void()>>> waiting;
};

// Sends its rows to the other rank, the last one first: five in the first round, behind the others' place.
bool arrives(int rank) {
  const uint64_t base[2] = {reinterpret_cast<uint64_t>(wide_memory[0]), reinterpret_cast<uint64_t>(wide_memory[1])};
  Late transport(rank, base, sizeof(wide_memory[0]));
  std::vector<int64_t> counts(4), places(4);
  counts[1 - rank] = 5, counts[2 + 1 - rank] = 3, places[1 - rank] = 3;
  mgg::HaloExchange exchange({rank, 2, 2, {7, 6, 5, 4, 3, 2, 1, 0}, counts, places, counts, wide_memory[rank],
                              rows * wide_bytes, reinterpret_cast<uint64_t*>(wide_memory[rank] + 2 * rows * wide_bytes)},
                             &transport);
  std::vector<char> values(rows * wide_bytes);
  bool right = true;
  for (int call = 1; call <= 3; ++call) {
    for (int64_t row = 0; row < rows; ++row)
      std::memset(values.data() + row * wide_bytes, static_cast<char>(10 * call + row), wide_bytes);
    exchange.transfer(values.data(), wide_bytes);
    const char* staged = exchange.rows_of(0, 0);
    for (int64_t at = 0; at < rows * wide_bytes; ++at) {
      const int64_t place = at / wide_bytes, row = place < 3 ? 2 - place : 10 - place;
      right &= staged[at] == static_cast<char>(10 * call + row);
    }
  }
  return right;
}

int main() {
  for (const bool both : {false, true}) {
    std::memset(memory, 0, sizeof(memory));
    std::thread other(play, 1, both);
    play(0, both);
    other.join();
  }
  bool right[2];
  std::thread other([&] { right[1] = arrives(1); });
  right[0] = arrives(0);
  other.join();
  std::puts(right[0] && right[1] ? "done" : "wrong");
}
