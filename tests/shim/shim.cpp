#include "shim.h"

#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

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
  int bytes;
};

struct Fiber {
  Place place;
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
};

struct Grid {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> ready;
  std::mt19937_64 random;
  ucontext_t home;
  const std::function<void()>* kernel;
  std::string failure;
  Launch launch;
};

thread_local Grid* grid = nullptr;
thread_local Fiber* current = nullptr;

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
  swapcontext(&self->context, &grid->home);
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
  swapcontext(&grid->home, &fiber->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  current = nullptr;
}

void begin() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &home_stack, &home_bytes);
#endif
  (*grid->kernel)();
  if (!current->open.empty() || !current->groups.empty()) fail("ends with copies under way");
  current->state = Fiber::ended;
  leave();
}

std::string where(const Fiber& fiber) {
  return "block " + std::to_string(fiber.place.block) + ", thread " + std::to_string(fiber.place.thread);
}

Fiber* lane_of(const Fiber& fiber, int lane) {
  const Place& at = fiber.place;
  const int first = at.thread / warp_lanes * warp_lanes;
  return grid->fibers[int64_t(at.block) * at.threads + first + lane].get();
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
    if (&other != &last) grid->ready.push_back(&other);
  }
}

void land(const Copy& copy) { std::memcpy(copy.to, copy.from, copy.bytes); }

}  // namespace

const Place& place() { return current->place; }

void fail(const char* what) {
  grid->failure = where(*current) + ": " + what;
  current->state = Fiber::ended;
  leave();
  std::abort();  // nobody draws it again
}

void yield() {
  grid->ready.push_back(current);
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
  if (self.state == Fiber::running) grid->ready.push_back(&self);
  leave();
  if (lane >= 0) std::memcpy(value, self.taken, bytes);
}

void begin_copy(void* shared, const void* global, int bytes) {
  char* to = static_cast<char*>(shared);
  const Place& at = current->place;
  if (to < at.shared || to + bytes > at.shared + grid->launch.shared_bytes) fail("copies beyond shared memory");
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(global)) % bytes) fail("copies unaligned");
  std::memset(to, poison, bytes);
  current->open.push_back({to, global, bytes});
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

void run(const Launch& launch, const std::function<void()>& kernel) {
  if (launch.threads % warp_lanes) throw std::runtime_error("shim: a block of whole warps");
  Grid here;
  here.launch = launch, here.kernel = &kernel;
  here.random.seed(launch.seed);
  std::vector<std::vector<device::Pack>> shared(launch.blocks);
  for (int block = 0; block < launch.blocks; ++block) {
    shared[block].resize((launch.shared_bytes + 15) / 16);
    std::memset(static_cast<void*>(shared[block].data()), poison, launch.shared_bytes);
    for (int thread = 0; thread < launch.threads; ++thread) {
      auto fiber = std::make_unique<Fiber>();
      fiber->place = {thread, launch.threads, block, launch.blocks, reinterpret_cast<char*>(shared[block].data())};
      fiber->stack.reset(new char[stack_bytes]);
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack.get();
      fiber->context.uc_stack.ss_size = stack_bytes;
      fiber->context.uc_link = nullptr;
      makecontext(&fiber->context, begin, 0);
      here.ready.push_back(fiber.get());
      here.fibers.push_back(std::move(fiber));
    }
  }
  Grid* outer = grid;
  grid = &here;
  while (!here.ready.empty() && here.failure.empty()) {
    std::swap(here.ready[here.random() % here.ready.size()], here.ready.back());
    Fiber* next = here.ready.back();
    here.ready.pop_back();
    enter(next);
  }
  grid = outer;
  if (here.failure.empty())
    for (const auto& fiber : here.fibers)
      if (fiber->state == Fiber::waiting)
        here.failure = where(*fiber) + ": waits for lanes that never come (" + fiber->what + ")";
  if (!here.failure.empty()) throw std::runtime_error("shim: " + here.failure);
}

}  // namespace shim
}  // namespace mgg
