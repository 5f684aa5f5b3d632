// Chunks that stream past, and from rank to rank, under the thread sanitizer: ranks are threads of this process.
//
//   chunk_streams RANKS PASSES
//
// Every rank makes the same passes in a chain, and checks each value of each chunk while it may be read.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/streaming/chunk_stream.h"

namespace {

constexpr int64_t chunks = 7, chunk_rows = 40, row_values = 16, calls = 5;

struct Rank {
  std::vector<int32_t> slots;
  mgg::ChunkStream::Signals signals{0, 0};
};

// There and back, call by call. A chunk that is in no slot takes the one after that of the step before.
std::vector<mgg::Step> steps_of(int64_t slots) {
  std::vector<mgg::Step> steps;
  std::vector<int64_t> held(slots, -1);
  int32_t last = 0;
  for (int64_t call = 0; call < calls; ++call)
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t chunk = call % 2 ? chunks - 1 - i : i;
      const auto at = std::find(held.begin(), held.end(), chunk);
      const bool loads = at == held.end();
      last = loads ? static_cast<int32_t>((last + 1) % slots) : static_cast<int32_t>(at - held.begin());
      held[last] = chunk;
      steps.push_back({chunk * chunk_rows, chunk_rows, last, loads});
    }
  return steps;
}

void check(const char* rows, int64_t first_row) {
  const auto* values = reinterpret_cast<const int32_t*>(rows);
  for (int64_t i = 0; i < chunk_rows * row_values; ++i)
    if (values[i] != first_row * row_values + i) {
      std::fprintf(stderr, "row %ld: another value\n", first_row + i / row_values);
      std::_Exit(1);
    }
}

void play(std::vector<Rank>& ranks, size_t rank, const std::vector<int32_t>& store, int64_t passes) {
  uint64_t first = 0;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t slots = 2 + pass % 3, bytes = row_values * sizeof(int32_t);
    const auto steps = steps_of(slots);
    mgg::ChunkStream::Chain chain{&ranks[rank].signals, nullptr, nullptr, nullptr, first};
    if (rank > 0) chain.before = &ranks[rank - 1].signals;
    if (rank > 0) chain.slots = reinterpret_cast<const char*>(ranks[rank - 1].slots.data());
    if (rank + 1 < ranks.size()) chain.after = &ranks[rank + 1].signals;
    const auto source = std::make_shared<mgg::MemorySource>(reinterpret_cast<const char*>(store.data()),
                                                            chunks * chunk_rows, bytes);
    mgg::ChunkStream stream({steps, std::vector<int64_t>(calls, chunks),
                             reinterpret_cast<char*>(ranks[rank].slots.data()), chunk_rows * bytes, bytes,
                             pass % 2 == 0, chain},
                            source);
    for (int64_t call = 0, step = 0; call < calls; ++call) {
      stream.begin(nullptr, bytes);
      for (int round = 0; round < chunks; ++round, ++step) {
        stream.wait(round);
        check(stream.rows_of(round, 0), steps[step].first_row);
      }
      stream.end();
      if (rank % 2) std::this_thread::yield();
    }
    first += steps.size();
  }
}

}  // namespace

int main(int, char** given) {
  std::vector<Rank> ranks(std::atoi(given[1]));
  std::vector<int32_t> store(chunks * chunk_rows * row_values);
  for (size_t i = 0; i < store.size(); ++i) store[i] = static_cast<int32_t>(i);
  for (Rank& rank : ranks) rank.slots.resize(4 * chunk_rows * row_values);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    threads.emplace_back([&, rank] { play(ranks, rank, store, std::atoi(given[2])); });
  for (auto& thread : threads) thread.join();
}
