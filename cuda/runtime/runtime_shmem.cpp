// All calls of OpenSHMEM (1.4) that this project makes, and of the MPI below it.
#include "runtime/runtime_shmem.h"

#define OMPI_SKIP_MPICXX 1  // C++ bindings that nothing here uses
#include <mpi.h>
#include <shmem.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace mgg::shmem {
namespace {

class ShmemTransport final : public Transport {
 public:
  ShmemTransport() : word_(static_cast<uint64_t*>(shmem_calloc(1, sizeof(uint64_t)))) {
    if (!word_) throw std::bad_alloc();
    // A context of its own for each channel, so that quiet waits for that channel's gets alone.
    for (shmem_ctx_t& context : channels_)
      if (shmem_ctx_create(SHMEM_CTX_SERIALIZED, &context)) throw std::runtime_error("OpenSHMEM gives no context");
  }
  ~ShmemTransport() override {
    settle();
    for (shmem_ctx_t context : channels_) shmem_ctx_destroy(context);
  }

  void* pointer(const void* mine, int pe) const override { return shmem_ptr(mine, pe); }

  void get_nbi(void* to, const void* mine, size_t bytes, int pe, int channel) override {
    shmem_ctx_getmem_nbi(channels_[channel], to, mine, bytes, pe);
  }
  void quiet(int channel) override { shmem_ctx_quiet(channels_[channel]); }

  void put_signal_nbi(void* mine, const void* from, size_t bytes, uint64_t* signal, uint64_t value,
                      int pe) override {
    if (!bytes && !signal) return;
    if (void* there = shmem_ptr(bytes ? mine : signal, pe)) {
      if (bytes) std::memcpy(there, from, bytes);
      if (signal) static_cast<std::atomic<uint64_t>*>(shmem_ptr(signal, pe))->store(value, std::memory_order_release);
      return;
    }
    if (bytes) shmem_putmem_nbi(mine, from, bytes, pe);
    if (!signal) return;
    // OpenSHMEM 1.4 has no put with signal. A blocking put of the word would wait until the network has taken all that
    // is before it, so it is non-blocking as well, from a place that stays for long.
    uint64_t& word = words_[next_word_++ % words_.size()];
    word = value;
    shmem_fence();
    shmem_putmem_nbi(signal, &word, sizeof(value), pe);
  }

  // Nothing in OpenSHMEM lets its library look at its connections without waiting for something (Open MPI's shmem_test
  // only compares), but MPI and OpenSHMEM share one engine, and a probe that finds nothing turns it once.
  void progress() override {
    int found;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
  }

 private:
  // Between hosts, UCX flushes a connection before it closes it, and asks the other side for an answer if anything was
  // sent since the last flush. In shmem_finalize Open MPI 4.1 answers no more, and both sides would wait for ever. So
  // each channel is used and flushed once more, while all PEs listen.
  void settle() {
    uint64_t found = 0;
    for (int pe = 0; pe < shmem_n_pes(); ++pe)
      for (int channel : {0, 1}) {
        get_nbi(&found, word_, sizeof(found), pe, channel);
        quiet(channel);
      }
    shmem_free(word_);  // a barrier as well
  }

  uint64_t* word_;  // symmetric
  shmem_ctx_t channels_[2];
  // Signals on their way. Callers wait for answers long before as many are.
  std::vector<uint64_t> words_ = std::vector<uint64_t>(1 << 17);
  size_t next_word_ = 0;
};

std::unique_ptr<ShmemTransport> running;

// Open MPI's shmem_init takes the signals by which people and schedulers end processes, and then ignores them. While
// one of these lives, nothing changes for the process.
class KeptSignals {
 public:
  KeptSignals() {
    for (size_t i = 0; i < count; ++i) sigaction(numbers[i], nullptr, &actions_[i]);
  }
  ~KeptSignals() {
    for (size_t i = 0; i < count; ++i) sigaction(numbers[i], &actions_[i], nullptr);
  }

 private:
  static constexpr int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
  static constexpr size_t count = sizeof(numbers) / sizeof(numbers[0]);
  struct sigaction actions_[count];
};

}  // namespace

void start(size_t heap_bytes) {
  setenv("SHMEM_SYMMETRIC_HEAP_SIZE", std::to_string(heap_bytes).c_str(), 1);
  int provided = SHMEM_THREAD_SINGLE;
  {
    const KeptSignals kept;
    shmem_init_thread(SHMEM_THREAD_SERIALIZED, &provided);
  }
  if (provided < SHMEM_THREAD_SERIALIZED) throw std::runtime_error("OpenSHMEM allows calls from one thread only");
  running = std::make_unique<ShmemTransport>();
}

void finish() {
  if (!running) return;
  running.reset();
  shmem_finalize();
}

bool started() { return running != nullptr; }

int me() { return shmem_my_pe(); }
int size() { return shmem_n_pes(); }

std::string version() {
  const auto dotted = [](int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); };
  return "Open MPI v" + dotted(OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION) +
         ", OpenSHMEM " + dotted(SHMEM_MAJOR_VERSION, SHMEM_MINOR_VERSION);
}

void* allocate(size_t bytes) {
  void* memory = shmem_align(64, bytes ? bytes : 64);  // an empty allocation would be null
  if (!memory) throw std::bad_alloc();
  return memory;
}
void release(void* memory) { shmem_free(memory); }

void* pointer(const void* mine, int pe) { return shmem_ptr(mine, pe); }

Transport& transport() {
  if (!running) throw std::runtime_error("OpenSHMEM has not been started");
  return *running;
}

}  // namespace mgg::shmem
