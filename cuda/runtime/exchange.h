// Interface of exchanges, which bring the chunks that are missing when a call begins, in rounds: a halo
// (halo_exchange.h), or chunks of a store that stream past (streaming/chunk_stream.h).
#pragma once
#include <cstdint>

namespace mgg {

// Rows and messages that an exchange has moved. rows: that a halo has pushed, or that a stream has loaded from its
// store; passed: that a stream has copied from the rank before. waited: seconds that sums have waited; loading: seconds
// that a stream's thread has loaded.
struct Moved {
  int64_t rows = 0, passed = 0, messages = 0;
  double waited = 0, loading = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Starts a call over this rank's `rows`, row_bytes apart. By one thread.
  virtual void begin(const char* rows, int64_t row_bytes) = 0;
  // Pieces of work that the call's threads share before they sum anything. By any thread.
  virtual int64_t packets() const { return 0; }
  virtual void push(int64_t) {}
  // Waits until a round is there; those before it have been summed. Does not throw, since threads of a parallel region
  // call it. By one thread.
  virtual void wait(int round) = 0;
  // Lets transfers go on, between blocks of sums. By one thread.
  virtual void progress() {}
  // Ends the call. Throws where a round could not be brought: the call's sums are worth nothing then. By one thread.
  virtual void end() = 0;
  // Counts since the last call of this function. Between calls, by one thread.
  virtual Moved take_moved() = 0;

  // Number of rounds of this call; before `begin`, of the next one.
  virtual int64_t rounds() const = 0;
  // Where a round's rows lie in this call; first_row: Chunk::first_row of its chunk.
  virtual const char* rows_of(int round, int64_t first_row) const = 0;
};

}  // namespace mgg
