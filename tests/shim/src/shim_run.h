// A run of the shim: its grids, fibers, and copies under way.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "shim.h"

namespace mgg {
namespace shim {

constexpr unsigned char poison = 0xFF;  // a NaN in every type of rows
constexpr int widest_value = 16;

// Where a fiber goes on. Unlike swapcontext, setjmp asks nothing of the system: runs take half of the time. The address
// sanitizer knows only the former.
using Jump = jmp_buf;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

// What lands at some time: a put, which then sets its signal; a bulk copy, whose bytes its barrier counts; or a
// thread's copies, after which it arrives at its barrier.
struct Landing {
  enum Kind { put, bulk, copies } kind;
  std::vector<Copy> parts;
  uint64_t* word;     // the signal, or the barrier
  uint64_t value;     // of the signal
  const void* owner;  // the fiber that waits for a put with quiet
};

// A barrier in shared memory, whose word counts the phases that have ended.
struct Phase {
  int needed = 0, arrived = 0;  // arrivals
  int64_t expected = 0;         // bytes that have not landed
  int64_t rows = 0;             // copies of this phase
};

// A get under way.
struct Get {
  Copy copy;
  int32_t channel;
};

struct Fiber {
  Place place;
  int grid;
  bool slow;  // others overtake it
  ucontext_t context;
  Jump place_left;     // where it goes on
  bool begun = false;  // and not by its context
  std::unique_ptr<char[]> stack;
  enum { running, waiting, ended } state = running;
  // What it waits for.
  std::string what;
  uint32_t mask = 0;
  int lane = -1, bytes = 0;
  alignas(16) char given[widest_value], taken[widest_value];
  std::vector<Copy> open;                // copies that are not committed
  std::deque<std::vector<Copy>> groups;  // committed ones, oldest first
  std::vector<Get> gets;
  int64_t under_way = 0;  // of a first lane: rows that its warp has asked for, and nobody has waited for
  uint64_t seen = 0;      // events when it looked at signals
  bool looked = false;
  std::vector<uintptr_t> listed;          // sectors that it asked for as a lane, load by load; 0 where it needed none
  uintptr_t held = 0;                     // the last of them
};

// A fiber that waits for what others do, and what it says where that never comes.
struct Parked {
  Fiber* fiber;
  std::function<bool()> holds;
  const char* otherwise;
};

struct Block {
  std::vector<device::Pack> shared;
  std::vector<std::unique_ptr<Fiber>> fibers;
  int left = 0;  // fibers that have not ended
  int met = 0;   // that wait for the whole block
};

struct Grid {
  const Launch* launch;
  std::vector<Block> blocks;
  int begun = 0, running = 0;
};

struct Run {
  std::vector<Grid> grids;
  std::vector<Fiber*> ready;
  std::vector<Landing> landings;
  std::map<uint64_t*, Phase> phases;
  std::mt19937_64 random;
  uint64_t slow_threads, slow_blocks;  // one in so many is; 0: none
  uint64_t landing;  // one in so many steps lands a put: transports are fast and slow
  ucontext_t home;
  Jump place_left;  // where the scheduler goes on
  std::string failure;
  std::vector<Parked> parked;
  uint64_t events = 0;  // signals that were set, where this process plays all PEs
  uint64_t steps = 0;
};

extern thread_local Run* running;
extern thread_local Fiber* current;
// Signals that were set, where PEs are processes; else null.
extern std::atomic<uint64_t>* shared_events;

// ---- shim.cpp

// Signals that were set so far; and one more.
uint64_t events();
void count_event();

// Away from the fiber that runs, to the scheduler; back once that has drawn it again.
void leave();
// Lets others run until something holds; fails with `otherwise` where it never does.
void wait_until(std::function<bool()> holds, const char* otherwise);
const Launch& launch_of(const Fiber& fiber);
// Those who wait for what holds by now go on.
void unpark();
// A lane of its warp.
Fiber* lane_of(const Fiber& fiber, int lane);
// Whether lanes of its warp wait for this one.
bool others_wait(const Fiber& fiber);

// ---- shim_memory.cpp

// Lands the copy at this place of the run's list.
void land_one(size_t at);

// ---- shim_counts.cpp

// The requests for lists that the warps of a block have made.
void count_requests(const Block& block);

}  // namespace shim
}  // namespace mgg
