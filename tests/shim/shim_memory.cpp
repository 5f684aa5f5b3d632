// Copies to shared memory, symmetric memory, and when what is under way lands.
#include <algorithm>

#include "shim_run.h"

namespace mgg {
namespace shim {
namespace {

struct Symmetric {
  std::vector<char*> bases;
  size_t bytes;
};
std::vector<Symmetric> symmetric_memory;

void land(const Copy& copy) { std::memmove(copy.to, copy.from, copy.bytes); }

void end_phase_if_done(uint64_t* barrier) {
  Phase& phase = running->phases.at(barrier);
  if (!phase.open || phase.expected) return;
  phase.open = false;
  ++*barrier;
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

void check_shared(const void* to, size_t bytes) {
  const char* at = static_cast<const char*>(to);
  const char* shared = current->place.shared;
  if (at < shared || at + bytes > shared + launch_of(*current).shared_bytes) fail("copies beyond shared memory");
}

}  // namespace

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
