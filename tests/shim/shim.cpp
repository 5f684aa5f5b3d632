#include "shim.h"

#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace mgg {
namespace shim {
namespace {

constexpr size_t stack_bytes = 64 << 10;
constexpr unsigned char poison = 0xFF;  // a NaN in every type of rows
constexpr int widest_value = 16;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

// What lands at some time: a put, which then sets its signal, or a bulk copy, which its barrier counts.
struct Landing {
  Copy copy;
  uint64_t* word;     // the signal, or the barrier
  uint64_t value;     // of the signal
  const void* owner;  // the fiber that waits for a put with quiet; null for a bulk copy
};

// A phase of a barrier in shared memory, whose word counts the phases that have ended.
struct Phase {
  bool open = false;     // somebody has said what to expect
  int64_t expected = 0;  // bytes that have not landed
};

struct Fiber {
  Place place;
  int grid;
  bool slow;  // others overtake it
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  enum { running, waiting, ended } state = running;
  // What it waits for.
  std::string what;
  uint32_t mask = 0;
  int lane = -1, bytes = 0;
  alignas(16) char given[widest_value], taken[widest_value];
  std::vector<Copy> open;                // copies that are not committed
  std::deque<std::vector<Copy>> groups;  // committed ones, oldest first
  std::vector<Copy> gets;
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
  uint64_t slow;     // one in so many threads is; 0: none
  uint64_t landing;  // one in so many steps lands a put: transports are fast and slow
  ucontext_t home;
  std::string failure;
  std::vector<Parked> parked;
};

struct Symmetric {
  std::vector<char*> bases;
  size_t bytes;
};

thread_local Run* running = nullptr;
thread_local Fiber* current = nullptr;
std::vector<Symmetric> symmetric_memory;

#if defined(__SANITIZE_ADDRESS__)
thread_local const void* home_stack = nullptr;
thread_local size_t home_bytes = 0;
#endif

// Away from the fiber that runs, to the scheduler; back once that has drawn it again.
void leave() {
  [[maybe_unused]] Fiber* self = current;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(self->state == Fiber::ended ? nullptr : &fake, home_stack, home_bytes);
#endif
  swapcontext(&self->context, &running->home);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &home_stack, &home_bytes);
#endif
}

void enter(Fiber* fiber) {
  current = fiber;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber->stack.get(), stack_bytes);
#endif
  swapcontext(&running->home, &fiber->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  current = nullptr;
}

const Launch& launch_of(const Fiber& fiber) { return *running->grids[fiber.grid].launch; }

void begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &home_stack, &home_bytes);
#endif
  launch_of(*current).kernel();
  if (!current->open.empty() || !current->groups.empty()) fail("ends with copies under way");
  if (!current->gets.empty()) fail("ends with gets under way");
  current->state = Fiber::ended;
  leave();
}

void begin_block(int number) {
  Grid& grid = running->grids[number];
  const Launch& launch = *grid.launch;
  const int at = grid.begun++;
  Block& block = grid.blocks[at];
  ++grid.running;
  block.left = launch.threads;
  block.shared.resize((launch.shared_bytes + 15) / 16);
  if (launch.shared_bytes) std::memset(static_cast<void*>(block.shared.data()), poison, launch.shared_bytes);
  for (int thread = 0; thread < launch.threads; ++thread) {
    auto fiber = std::make_unique<Fiber>();
    fiber->grid = number;
    fiber->slow = running->slow && running->random() % running->slow == 0;
    fiber->place = {thread, launch.threads, at, launch.blocks, reinterpret_cast<char*>(block.shared.data())};
    fiber->stack.reset(new char[stack_bytes]);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, begin, 0);
    running->ready.push_back(fiber.get());
    block.fibers.push_back(std::move(fiber));
  }
}

std::string where(const Fiber& fiber) {
  return "PE " + std::to_string(launch_of(fiber).pe) + ", block " + std::to_string(fiber.place.block) + ", thread " +
         std::to_string(fiber.place.thread);
}

// After a fiber has ended: the next block may begin.
void end_fiber(const Fiber& fiber) {
  Grid& grid = running->grids[fiber.grid];
  Block& block = grid.blocks[fiber.place.block];
  if (--block.left > 0) return;
  --grid.running;
  const int number = fiber.grid;
  const char* shared = reinterpret_cast<const char*>(block.shared.data());
  const char* beyond = shared + sizeof(device::Pack) * block.shared.size();
  const auto inside = [=](const void* at) { return at >= shared && at < beyond; };
  for (const Landing& landing : running->landings)
    if (inside(landing.copy.to)) running->failure = where(fiber) + ": its block ends with bulk copies under way";
  for (auto at = running->phases.begin(); at != running->phases.end();)
    at = inside(at->first) ? running->phases.erase(at) : std::next(at);
  block = Block();  // the fiber is gone with it
  if (grid.begun < grid.launch->blocks) begin_block(number);
}

Fiber* lane_of(const Fiber& fiber, int lane) {
  const int first = fiber.place.thread / warp_lanes * warp_lanes;
  return running->grids[fiber.grid].blocks[fiber.place.block].fibers[first + lane].get();
}

// Once all lanes that one waits for wait for the same, each gets its value, and all go on.
void release(Fiber& last) {
  for (int lane = 0; lane < warp_lanes; ++lane) {
    if (!(last.mask >> lane & 1)) continue;
    const Fiber& other = *lane_of(last, lane);
    if (other.state != Fiber::waiting || other.mask != last.mask || other.what != last.what) return;
  }
  for (int lane = 0; lane < warp_lanes; ++lane) {
    if (!(last.mask >> lane & 1)) continue;
    Fiber& other = *lane_of(last, lane);
    if (other.lane >= 0) std::memcpy(other.taken, lane_of(last, other.lane)->given, other.bytes);
    other.state = Fiber::running;
    if (&other != &last) running->ready.push_back(&other);
  }
}

void land(const Copy& copy) { std::memmove(copy.to, copy.from, copy.bytes); }

void end_phase_if_done(uint64_t* barrier) {
  Phase& phase = running->phases.at(barrier);
  if (!phase.open || phase.expected) return;
  phase.open = false;
  ++*barrier;
}

void land_one(size_t at) {
  const Landing landing = running->landings[at];
  running->landings.erase(running->landings.begin() + static_cast<std::ptrdiff_t>(at));
  land(landing.copy);
  if (landing.owner) {
    *landing.word = landing.value;
    return;
  }
  running->phases.at(landing.word).expected -= static_cast<int64_t>(landing.copy.bytes);
  end_phase_if_done(landing.word);
}

// The same place on another PE; fails where memory is not symmetric, or not of this PE.
char* translated(const void* address, size_t bytes, int pe) {
  const char* at = static_cast<const char*>(address);
  const int me = launch_of(*current).pe;
  for (const Symmetric& memory : symmetric_memory) {
    const char* base = memory.bases[me];
    if (at < base || at >= base + memory.bytes) continue;
    if (at + bytes > base + memory.bytes) fail("reaches beyond symmetric memory");
    if (pe < 0 || pe >= static_cast<int>(memory.bases.size())) fail("names a PE that is not there");
    return memory.bases[pe] + (at - base);
  }
  fail("names memory that is not this PE's symmetric memory");
}

// Lets others run until something holds.
void wait_until(std::function<bool()> holds, const char* otherwise) {
  if (!holds()) {
    running->parked.push_back({current, std::move(holds), otherwise});
    leave();
  }
  yield();
}

// Those who wait for what holds by now go on.
void unpark() {
  auto& parked = running->parked;
  for (size_t at = 0; at < parked.size();) {
    if (!parked[at].holds()) {
      ++at;
      continue;
    }
    running->ready.push_back(parked[at].fiber);
    std::swap(parked[at], parked.back());
    parked.pop_back();
  }
}

void check_shared(const void* to, size_t bytes) {
  const char* at = static_cast<const char*>(to);
  const char* shared = current->place.shared;
  if (at < shared || at + bytes > shared + launch_of(*current).shared_bytes) fail("copies beyond shared memory");
}

void draw_and_enter() {
  if (!running->landings.empty() && (running->ready.empty() || running->random() % running->landing == 0)) {
    land_one(running->random() % running->landings.size());
    unpark();
  }
  if (running->ready.empty()) unpark();
  if (running->ready.empty()) return;
  auto& ready = running->ready;
  size_t drawn = running->random() % ready.size();
  for (int again = 0; again < 8 && ready[drawn]->slow; ++again) drawn = running->random() % ready.size();
  std::swap(ready[drawn], ready.back());
  Fiber* next = ready.back();
  ready.pop_back();
  enter(next);
  if (next->state == Fiber::ended && running->failure.empty()) end_fiber(*next);
}

void find_stuck() {
  if (!running->parked.empty()) {
    const Parked& first = running->parked.front();
    running->failure = where(*first.fiber) + ": " + first.otherwise;
    return;
  }
  for (const Grid& grid : running->grids)
    for (const Block& block : grid.blocks)
      for (const auto& fiber : block.fibers)
        if (fiber->state == Fiber::waiting) {
          running->failure = where(*fiber) + ": waits for lanes that never come (" + fiber->what + ")";
          return;
        }
}

}  // namespace

const Place& place() { return current->place; }

void fail(const char* what) {
  running->failure = where(*current) + ": " + what;
  current->state = Fiber::ended;
  leave();
  std::abort();  // nobody draws it again
}

void yield() {
  running->ready.push_back(current);
  leave();
}

void meet(const char* what, uint32_t mask, void* value, int bytes, int lane) {
  Fiber& self = *current;
  if (!(mask >> (self.place.thread % warp_lanes) & 1)) fail("a lane calls that its own mask leaves out");
  if (lane >= 0 && !(mask >> (lane % warp_lanes) & 1)) fail("reads a lane that takes no part");
  if (bytes > widest_value) fail("a value of more than 16 bytes");
  self.what = what, self.mask = mask, self.lane = lane < 0 ? -1 : lane % warp_lanes, self.bytes = bytes;
  if (bytes) std::memcpy(self.given, value, bytes);
  self.state = Fiber::waiting;
  release(self);
  if (self.state == Fiber::running) running->ready.push_back(&self);
  leave();
  if (lane >= 0) std::memcpy(value, self.taken, bytes);
}

void begin_copy(void* shared, const void* global, int bytes) {
  check_shared(shared, bytes);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes) fail("copies unaligned");
  std::memset(shared, poison, bytes);
  current->open.push_back({shared, global, size_t(bytes)});
}

void commit_copies() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

void wait_copies(int later) {
  auto& groups = current->groups;
  while (static_cast<int>(groups.size()) > later) {
    std::for_each(groups.front().begin(), groups.front().end(), land);
    groups.pop_front();
  }
  yield();
}

void add_symmetric(const std::vector<char*>& bases, size_t bytes) { symmetric_memory.push_back({bases, bytes}); }
void forget_symmetric() { symmetric_memory.clear(); }

void run(const std::vector<Launch>& launches, uint64_t seed) {
  Run here;
  here.random.seed(seed);
  here.landing = uint64_t(1) << (here.random() % 13);
  here.slow = here.random() % 2 ? 2 + here.random() % 6 : 0;
  Run* outer = running;
  running = &here;
  for (const Launch& launch : launches) {
    if (launch.threads % warp_lanes || launch.threads < warp_lanes) here.failure = "a block is not of whole warps";
    here.grids.push_back({&launch, std::vector<Block>(launch.blocks), 0, 0});
  }
  for (size_t grid = 0; grid < launches.size() && here.failure.empty(); ++grid)
    while (here.grids[grid].begun < std::min(launches[grid].blocks, std::max(1, launches[grid].resident)))
      begin_block(static_cast<int>(grid));
  while (here.failure.empty()) {
    if (here.ready.empty() && here.landings.empty()) unpark();
    if (here.ready.empty() && here.landings.empty()) break;
    draw_and_enter();
  }
  if (here.failure.empty()) find_stuck();
  running = outer;
  if (!here.failure.empty()) throw std::runtime_error("shim: " + here.failure);
}

}  // namespace shim

namespace device {

using namespace shim;

void start_barrier(uint64_t* barrier) {
  check_shared(barrier, sizeof *barrier);
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof *barrier) fail("a barrier is not aligned");
  *barrier = 0;
  running->phases[barrier] = Phase();
}

void expect_bulk(uint64_t* barrier, int bytes) {
  const auto found = running->phases.find(barrier);
  if (found == running->phases.end()) fail("a barrier that nobody has started");
  if (found->second.open) fail("expects more of a phase that has not ended");
  found->second.open = true;
  found->second.expected += bytes;
  end_phase_if_done(barrier);
}

void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
  check_shared(shared, bytes);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16 || bytes <= 0)
    fail("a bulk copy is not of whole packs");
  const auto found = running->phases.find(barrier);
  if (found == running->phases.end() || !found->second.open) fail("a bulk copy that its barrier does not expect");
  std::memset(shared, poison, bytes);
  running->landings.push_back({{shared, global, size_t(bytes)}, barrier, 0, nullptr});
  yield();
}

void wait_bulk(uint64_t* barrier, uint32_t parity) {
  if (!running->phases.count(barrier)) fail("waits at a barrier that nobody has started");
  wait_until([=] { return (*barrier & 1) != parity; }, "waits for a bulk copy that never lands");
}

void get_nbi(void* to, const void* symmetric, size_t bytes, int pe) {
  translated(to, bytes, launch_of(*current).pe);  // not every transport writes to other memory
  const char* from = translated(symmetric, bytes, pe);
  std::memset(to, poison, bytes);
  current->gets.push_back({to, from, bytes});
  yield();
}

void put_signal_nbi(void* symmetric, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe) {
  char* to = translated(symmetric, bytes, pe);
  auto* raised = reinterpret_cast<uint64_t*>(translated(signal, sizeof *signal, pe));
  running->landings.push_back({{to, from, bytes}, raised, value, current});
  yield();
}

void wait_signal(uint64_t* signal, uint64_t value) {
  wait_until([=] { return *signal >= value; }, "waits for a signal that never comes");
}

void quiet() {
  std::for_each(current->gets.begin(), current->gets.end(), land);
  current->gets.clear();
  for (size_t at = 0; at < running->landings.size();)
    running->landings[at].owner == current ? land_one(at) : void(++at);
  yield();
}

}  // namespace device
}  // namespace mgg
