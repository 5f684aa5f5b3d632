// Every promise of mgg::Transport, kept by OpenSHMEM between all PEs of a run: exits with 0, or says which was broken.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <shmem.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/runtime_shmem.h"

namespace {

constexpr size_t words = 1 << 16;  // of a PE's source, and of what each PE may send it
int me, size;

void check(bool kept, const char* promise) {
  if (kept) return;
  std::fprintf(stderr, "PE %d of %d: %s\n", me, size, promise);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

uint32_t word(int pe, size_t i, uint64_t round) { return static_cast<uint32_t>(pe * 1000003 + i * 31 + round); }

void compute(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Gets of all sizes from all PEs over both channels at once; each quiet vouches for its own channel.
void gets(mgg::Transport& transport, const uint32_t* source) {
  for (size_t count : {size_t(1), size_t(7), size_t(128), size_t(5000), words}) {
    std::vector<std::vector<uint32_t>> to(2 * size, std::vector<uint32_t>(count));
    for (int pe = 0; pe < size; ++pe)
      for (int channel : {0, 1})
        transport.get_nbi(to[2 * pe + channel].data(), source + channel * (words - count), count * sizeof(uint32_t),
                          pe, channel);
    for (int channel : {1, 0}) {
      transport.quiet(channel);
      for (int pe = 0; pe < size; ++pe)
        for (size_t i = 0; i < count; ++i)
          check(to[2 * pe + channel][i] == word(pe, channel * (words - count) + i, 0), "quiet before all gets landed");
    }
  }
}

// All PEs send to all others, again and again into the same places, while each also computes.
void puts(mgg::Transport& transport, uint32_t* inbox, uint64_t* signals, uint64_t rounds) {
  std::vector<uint32_t> out(words);
  for (uint64_t round = 1; round <= rounds; ++round) {
    const size_t count = round % 3 == 0 ? words : round % 3 == 1 ? 1000 : 1;
    for (size_t i = 0; i < count; ++i) out[i] = word(me, i, round);
    for (int hop = 1; hop < size; ++hop) {
      const int pe = (me + hop) % size;
      uint32_t* mine = inbox + me * words;
      // In two halves, the first without a signal of its own; in some rounds the signal alone follows.
      const size_t half = count / 2;
      transport.put_signal_nbi(mine, out.data(), half * sizeof(uint32_t), nullptr, 0, pe);
      const size_t rest = (count - half) * sizeof(uint32_t);
      if (round % 2) {
        transport.put_signal_nbi(mine + half, out.data() + half, rest, signals + me, round, pe);
      } else {
        transport.put_signal_nbi(mine + half, out.data() + half, rest, nullptr, 0, pe);
        transport.put_signal_nbi(nullptr, nullptr, 0, signals + me, round, pe);
      }
    }
    for (int hop = 1; hop < size; ++hop) {
      const int pe = (me + hop) % size;
      while (mgg::load_signal(signals + pe) < round) {
        compute(20e-6);
        transport.progress();
      }
      for (size_t i = 0; i < count; ++i)
        check(inbox[pe * words + i] == word(pe, i, round), "a signal was seen before what it stands for");
    }
    shmem_barrier_all();  // all puts have landed: what was sent may be written again, and what was received too
    for (uint32_t& value : out) value = 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  mgg::shmem::start((size + 4) * words * sizeof(uint32_t) + (1 << 20));
  check(mgg::shmem::me() == me && mgg::shmem::size() == size, "PE and rank differ");
  auto* source = static_cast<uint32_t*>(mgg::shmem::allocate(words * sizeof(uint32_t)));
  auto* inbox = static_cast<uint32_t*>(mgg::shmem::allocate(size * words * sizeof(uint32_t)));
  auto* signals = static_cast<uint64_t*>(mgg::shmem::allocate(size * sizeof(uint64_t)));
  for (size_t i = 0; i < words; ++i) source[i] = word(me, i, 0);
  for (int pe = 0; pe < size; ++pe) signals[pe] = 0;
  shmem_barrier_all();
  mgg::Transport& transport = mgg::shmem::transport();
  check(transport.pointer(source, me) == source, "no pointer to its own memory");
  if (rounds) {
    gets(transport, source);
    shmem_barrier_all();
    puts(transport, inbox, signals, rounds);
  }
  mgg::shmem::finish();
  return 0;
}
