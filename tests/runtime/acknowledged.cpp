// Two ranks out of each other's reach whose puts land at once, seen or not: no acknowledgement may be lost.
// Prints "done" after 100,000 calls, once with rows one way and once both ways; a lost one hangs.
#include <cstdio>
#include <thread>

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

int main() {
  for (const bool both : {false, true}) {
    std::memset(memory, 0, sizeof(memory));
    std::thread other(play, 1, both);
    play(0, both);
    other.join();
  }
  std::puts("done");
}
