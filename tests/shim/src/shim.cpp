// Fibers, and who goes on.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "shim_run.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace mgg {
namespace shim {

thread_local Run* running = nullptr;
thread_local Fiber* current = nullptr;
std::atomic<uint64_t>* shared_events = nullptr;

namespace {

#if defined(__SANITIZE_ADDRESS__)
thread_local const void* home_stack = nullptr;
thread_local size_t home_bytes = 0;
#endif

}  // namespace

uint64_t events() { return shared_events ? shared_events->load() : running->events; }
void count_event() { shared_events ? void(++*shared_events) : void(++running->events); }

// Away from the fiber that runs, to the scheduler; back once that has drawn it again.
void leave() {
  Fiber* self = current;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(self->state == Fiber::ended ? nullptr : &fake, home_stack, home_bytes);
  swapcontext(&self->context, &running->home);
  __sanitizer_finish_switch_fiber(fake, &home_stack, &home_bytes);
#else
  if (!_setjmp(self->place_left)) _longjmp(running->place_left, 1);
#endif
}

const Launch& launch_of(const Fiber& fiber) { return *running->grids[fiber.grid].launch; }

std::string where(const Fiber& fiber) {
  return "PE " + std::to_string(launch_of(fiber).pe) + ", block " + std::to_string(fiber.place.block) + ", thread " +
         std::to_string(fiber.place.thread);
}

Fiber* lane_of(const Fiber& fiber, int lane) {
  const int first = fiber.place.thread / warp_lanes * warp_lanes;
  return running->grids[fiber.grid].blocks[fiber.place.block].fibers[first + lane].get();
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

namespace {

constexpr size_t stack_bytes = 64 << 10;

// Returns when the fiber leaves.
void go_on(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber->stack.get(), stack_bytes);
  swapcontext(&running->home, &fiber->context);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  if (_setjmp(running->place_left)) return;
  if (fiber->begun) _longjmp(fiber->place_left, 1);
  fiber->begun = true;
  setcontext(&fiber->context);
#endif
}

void enter(Fiber* fiber) {
  current = fiber;
  go_on(fiber);
  current = nullptr;
}

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
  const bool slow = running->slow_blocks && running->random() % running->slow_blocks == 0;
  block.left = launch.threads;
  block.shared.resize((launch.shared_bytes + 15) / 16);
  if (launch.shared_bytes) std::memset(static_cast<void*>(block.shared.data()), poison, launch.shared_bytes);
  for (int thread = 0; thread < launch.threads; ++thread) {
    auto fiber = std::make_unique<Fiber>();
    fiber->grid = number;
    fiber->slow = slow || (running->slow_threads && running->random() % running->slow_threads == 0);
    char* shared = reinterpret_cast<char*>(block.shared.data());
    fiber->place = {thread, launch.threads, at, launch.blocks, shared, shared + launch.shared_bytes};
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

void begin_grid(int number) {
  const Launch& launch = *running->grids[number].launch;
  while (running->grids[number].begun < std::min(launch.blocks, std::max(1, launch.resident))) begin_block(number);
}

// A PE's launches follow each other.
void begin_grid_after(int number) {
  for (size_t next = number + 1; next < running->grids.size(); ++next)
    if (running->grids[next].launch->pe == running->grids[number].launch->pe)
      return begin_grid(static_cast<int>(next));
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
    for (const Copy& part : landing.parts)
      if (inside(part.to)) running->failure = where(fiber) + ": its block ends with copies under way";
  for (auto at = running->phases.begin(); at != running->phases.end();)
    at = inside(at->first) ? running->phases.erase(at) : std::next(at);
  count_requests(block);
  block = Block();  // the fiber is gone with it
  if (grid.begun < grid.launch->blocks)
    begin_block(number);
  else if (grid.running == 0)
    begin_grid_after(number);
}

// Once all lanes that one waits for wait for the same, each gets its value, and all go on.
void release(Fiber& last) {
  for (int lane = 0; lane < warp_lanes; ++lane) {
    if (!(last.mask >> lane & 1)) continue;
    const Fiber& other = *lane_of(last, lane);
    if (other.state != Fiber::waiting || other.mask != last.mask || other.what != last.what) return;
  }
  uint32_t every = 0;
  for (int lane = 0; lane < warp_lanes && last.lane == all_lanes; ++lane) {
    uint32_t bits = 0;
    if (last.mask >> lane & 1) std::memcpy(&bits, lane_of(last, lane)->given, sizeof bits);
    every |= bits;
  }
  for (int lane = 0; lane < warp_lanes; ++lane) {
    if (!(last.mask >> lane & 1)) continue;
    Fiber& other = *lane_of(last, lane);
    if (other.lane == all_lanes) std::memcpy(other.taken, &every, sizeof every);
    if (other.lane >= 0) std::memcpy(other.taken, lane_of(last, other.lane)->given, other.bytes);
    other.state = Fiber::running;
    if (&other != &last) running->ready.push_back(&other);
  }
}

void draw_and_enter() {
  ++running->steps;
  if (!running->landings.empty() && (running->ready.empty() || running->random() % running->landing == 0)) {
    land_one(running->random() % running->landings.size());
    unpark();
  }
  if (running->ready.empty() || running->steps % 64 == 0) unpark();
  if (running->ready.empty() || !running->failure.empty()) return;
  auto& ready = running->ready;
  size_t drawn = running->random() % ready.size();
  for (int again = 0; again < 8 && ready[drawn]->slow; ++again) drawn = running->random() % ready.size();
  std::swap(ready[drawn], ready.back());
  Fiber* next = ready.back();
  ready.pop_back();
  enter(next);
  if (next->state == Fiber::ended && running->failure.empty()) end_fiber(*next);
}

// Where nobody here can go on: whether other processes may still set signals that some wait for.
bool others_may_come(std::chrono::steady_clock::time_point idle_since) {
  constexpr auto patience = std::chrono::seconds(60);
  if (!shared_events || running->parked.empty()) return false;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  return std::chrono::steady_clock::now() - idle_since < patience;
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
  self.what = what, self.mask = mask, self.lane = lane < 0 ? lane : lane % warp_lanes, self.bytes = bytes;
  if (bytes) std::memcpy(self.given, value, bytes);
  self.state = Fiber::waiting;
  release(self);
  if (self.state == Fiber::running) running->ready.push_back(&self);
  leave();
  if (lane != no_lane) std::memcpy(value, self.taken, bytes);
}

bool others_wait(const Fiber& fiber) {
  const int mine = fiber.place.thread % warp_lanes;
  for (int lane = 0; lane < warp_lanes; ++lane) {
    const Fiber& other = *lane_of(fiber, lane);
    if (other.state == Fiber::waiting && other.mask >> mine & 1) return true;
  }
  return false;
}

void meet_block() {
  Block& block = running->grids[current->grid].blocks[current->place.block];
  if (block.left < current->place.threads) fail("a thread of the block has ended that others wait for");
  current->what = "sync_block", current->mask = 0;
  current->state = Fiber::waiting;
  if (++block.met == current->place.threads) {
    block.met = 0;
    for (const auto& fiber : block.fibers) {
      fiber->state = Fiber::running;
      running->ready.push_back(fiber.get());
    }
  }
  leave();
}

void run(const std::vector<Launch>& launches, uint64_t seed) {
  Run here;
  here.random.seed(seed);
  here.landing = uint64_t(1) << (here.random() % 13);
  const uint64_t hindered = here.random() % 3;
  here.slow_threads = hindered == 1 ? 2 + here.random() % 6 : 0;
  here.slow_blocks = hindered == 2 ? 2 + here.random() % 6 : 0;
  Run* outer = running;
  running = &here;
  for (const Launch& launch : launches) {
    if (launch.threads % warp_lanes || launch.threads < warp_lanes) here.failure = "a block is not of whole warps";
    counts.blocks = launch.blocks, counts.threads = launch.threads;
    here.grids.push_back({&launch, std::vector<Block>(launch.blocks), 0, 0});
  }
  for (size_t grid = 0; grid < launches.size() && here.failure.empty(); ++grid) {
    const auto same = [&](const Launch& other) { return other.pe == launches[grid].pe; };
    const auto end = launches.begin() + static_cast<std::ptrdiff_t>(grid);
    if (std::none_of(launches.begin(), end, same)) begin_grid(static_cast<int>(grid));
  }
  auto idle_since = std::chrono::steady_clock::now();
  while (here.failure.empty()) {
    if (here.ready.empty() && here.landings.empty()) unpark();
    if (here.ready.empty() && here.landings.empty()) {
      if (others_may_come(idle_since)) continue;
      break;
    }
    draw_and_enter();
    if (shared_events && here.ready.empty()) idle_since = std::chrono::steady_clock::now();
  }
  if (here.failure.empty()) find_stuck();
  running = outer;
  if (!here.failure.empty()) throw std::runtime_error("shim: " + here.failure);
}

}  // namespace shim

}  // namespace mgg
