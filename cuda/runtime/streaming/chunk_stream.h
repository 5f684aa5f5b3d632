// Chunks of a store that are streamed: a thread brings them into slots ahead of the sums, in the order of the schedules.
//
// A pass is a sequence of steps, cut into calls: a call sums the edges of one interval of destinations, and each of its
// steps is a round of it. A step names a chunk and the slot that it lies in. The thread loads the chunk of a step as
// soon as the step that had its slot before is finished: a later wait, or the end of its call, says so. With two slots
// and more, loads overlap with sums, across calls too. (Chunk-based streaming: NGra, section 3.1.)
//
// Ranks that run the same steps may form a chain (NGra, section 4): its first rank loads from the store, and each other
// one copies what it loads from the slots of the rank before. A rank says which steps are there, and which it has
// copied; it overwrites a slot once the rank after it has copied what lies there, and so loads the first chunk of a pass
// only when that rank has begun the pass too.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "mgg/layout.h"
#include "runtime/streaming/chunk_source.h"
#include "runtime/exchange.h"

namespace mgg {

class ChunkStream final : public Exchange {
 public:
  // Words of 8 bytes that ranks of a chain read of each other, and that this rank alone writes: numbers of steps.
  struct Signals {
    uint64_t there, copied;
  };
  // A rank's place in its chain. first: number of the pass's first step, among all steps of the chain's passes so far.
  struct Chain {
    Signals* mine = nullptr;        // null: there is no chain
    const Signals* before = nullptr;  // null: this rank is the first
    const Signals* after = nullptr;   // null: this rank is the last
    const char* slots = nullptr;    // of the rank before, laid out as this rank's
    uint64_t first = 0;
  };
  struct Layout {
    std::vector<Step> steps;
    std::vector<int64_t> calls;  // number of steps of each call
    char* slots;                 // slot_bytes apart
    int64_t slot_bytes, row_bytes;
    bool ahead;  // chunks are loaded before they are waited for
    Chain chain;
  };

  ChunkStream(Layout layout, std::shared_ptr<ChunkSource> source);
  ~ChunkStream() override { stop(); }
  // Ends the thread, wherever the pass is.
  void stop();

  void begin(const char* rows, int64_t row_bytes) override;
  void wait(int round) override;
  void end() override;
  int64_t rounds() const override { return call_ < calls() ? layout_.calls[call_] : 0; }
  const char* rows_of(int round, int64_t) const override { return slot(layout_.steps[first_ + round]); }

  int64_t calls() const { return static_cast<int64_t>(layout_.calls.size()); }
  // Number of calls that have ended.
  int64_t ended() const { return call_; }
  // The step of a round of the next call.
  const Step& step(int64_t round) const { return layout_.steps[first_ + round]; }
  int64_t row_bytes() const { return layout_.row_bytes; }

  Moved take_moved() override;

 private:
  using Clock = std::chrono::steady_clock;

  // Bit of Signals::there of a rank that could not load a chunk; the other bits are the pass's Chain::first, so that the
  // error of one pass is none of the next, which a follower may begin first.
  static constexpr uint64_t failed = uint64_t(1) << 63;

  char* slot(const Step& step) const { return layout_.slots + step.slot * layout_.slot_bytes; }
  void run();
  bool free_for(int64_t step);
  void bring(int64_t step);
  void load(const Step& step);
  void copy(int64_t step);
  template <class Ready>
  bool poll(Ready&& ready);
  void sleep_until(Clock::time_point due);

  Layout layout_;
  std::shared_ptr<ChunkSource> source_;
  std::vector<int64_t> before_;  // for each step the one that had its slot before, or -1
  int64_t call_ = 0, first_ = 0;  // the call that is made, or comes next, and its first step
  std::mutex mutex_;
  std::condition_variable turned_;
  // Numbers of steps, guarded by the mutex: finished, allowed to be loaded without `ahead`, loaded.
  int64_t finished_ = 0, wanted_ = 0, there_ = 0;
  bool stopped_ = false;
  std::exception_ptr error_;
  double waited_ = 0, loading_ = 0;
  std::atomic<int64_t> rows_loaded_{0}, rows_passed_{0};
  std::thread thread_;        // last, since it uses the others
};

}  // namespace mgg
