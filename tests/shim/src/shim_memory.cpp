// Copies to shared memory, symmetric memory, and when what is under way lands.
#include <algorithm>
#include <utility>

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
  if (phase.arrived < phase.needed || phase.expected) return;
  phase.arrived = 0;
  ++*barrier;
}

Phase& phase_of(uint64_t* barrier) {
  const auto found = running->phases.find(barrier);
  if (found == running->phases.end()) fail("a barrier that nobody has started");
  return found->second;
}

void arrive(uint64_t* barrier) {
  Phase& phase = phase_of(barrier);
  if (phase.arrived == phase.needed) fail("more arrive than a phase takes, which has not ended");
  ++phase.arrived;
}

void asked_for_a_row() { counts.most_under_way = std::max(counts.most_under_way, ++lane_of(*current, 0)->under_way); }
void waited_for(int64_t rows) {
  if (rows == 0) return;
  ++counts.stages;
  counts.most_rows_a_stage = std::max(counts.most_rows_a_stage, rows);
  lane_of(*current, 0)->under_way -= rows;
}

void raise(uint64_t* signal, uint64_t value) {
  if (*signal > value) {  // nobody's fiber runs while a put lands
    running->failure = "a signal goes back from " + std::to_string(*signal) + " to " + std::to_string(value);
    return;
  }
  *signal = value;
  count_event();
  unpark();
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
  const Landing landing = std::move(running->landings[at]);
  running->landings.erase(running->landings.begin() + static_cast<std::ptrdiff_t>(at));
  std::for_each(landing.parts.begin(), landing.parts.end(), land);
  if (landing.kind == Landing::put) {
    raise(landing.word, landing.value);
    return;
  }
  Phase& phase = running->phases.at(landing.word);
  if (landing.kind == Landing::bulk)
    phase.expected -= static_cast<int64_t>(landing.parts.front().bytes);
  else
    ++phase.arrived;
  end_phase_if_done(landing.word);
}

// Whether it belongs to another PE than the one that runs.
void count_crossing(const void* address, int64_t bytes) {
  const char* at = static_cast<const char*>(address);
  const int me = launch_of(*current).pe;
  for (const Symmetric& memory : symmetric_memory)
    for (size_t pe = 0; pe < memory.bases.size(); ++pe)
      if (static_cast<int>(pe) != me && at >= memory.bases[pe] && at < memory.bases[pe] + memory.bytes)
        counts.crossed += bytes;
}

void begin_copy(void* shared, const void* global, int bytes) {
  check_shared(shared, bytes);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes) fail("copies unaligned");
  std::memset(shared, poison, bytes);
  count_crossing(global, bytes);
  counts.loads += bytes / 16;
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

void start_barrier(uint64_t* barrier, int arrivals) {
  check_shared(barrier, sizeof *barrier);
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof *barrier) fail("a barrier is not aligned");
  *barrier = 0;
  running->phases[barrier] = Phase();
  running->phases[barrier].needed = arrivals;
}

void expect_bulk(uint64_t* barrier, int bytes) {
  arrive(barrier);
  phase_of(barrier).expected += bytes;
  phase_of(barrier).rows = 0;
  end_phase_if_done(barrier);
}

void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
  check_shared(shared, bytes);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16 || bytes <= 0)
    fail("a bulk copy is not of whole packs");
  if (phase_of(barrier).arrived == 0) fail("a bulk copy that its barrier does not expect");
  std::memset(shared, poison, bytes);
  count_crossing(global, bytes);
  counts.loads += bytes / 16;
  ++phase_of(barrier).rows;
  asked_for_a_row();
  running->landings.push_back({Landing::bulk, {{shared, global, size_t(bytes)}}, barrier, 0, nullptr});
  yield();
}

void arrive_after_copies(uint64_t* barrier) {
  phase_of(barrier);
  running->landings.push_back({Landing::copies, std::move(current->open), barrier, 0, nullptr});
  current->open.clear();
  yield();
}

void wait_barrier(uint64_t* barrier, uint32_t parity) {
  Phase& phase = phase_of(barrier);
  wait_until([=] { return (*barrier & 1) != parity; }, "waits for a copy that never lands");
  waited_for(std::exchange(phase.rows, 0));
}

namespace {

// Begins a get that the calling thread waits for.
void begin_get(void* to, const void* symmetric, size_t bytes, int pe, int32_t channel) {
  translated(to, bytes, launch_of(*current).pe);  // not every transport writes to other memory
  const char* from = translated(symmetric, bytes, pe);
  std::memset(to, poison, bytes);
  count_crossing(from, static_cast<int64_t>(bytes));
  asked_for_a_row();
  current->gets.push_back({{to, from, bytes}, channel});
}

}  // namespace

void get_nbi(void* to, const void* symmetric, size_t bytes, int pe, int32_t channel) {
  begin_get(to, symmetric, bytes, pe, channel);
  yield();
}

void quiet(int32_t channel) {
  auto& gets = current->gets;
  const auto mine = [=](const Get& get) { return get.channel == channel; };
  const auto later = std::stable_partition(gets.begin(), gets.end(), mine);
  std::for_each(gets.begin(), later, [](const Get& get) { land(get.copy); });
  waited_for(later - gets.begin());
  gets.erase(gets.begin(), later);
  yield();
}

void put_signal_nbi(void* symmetric, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe) {
  char* to = translated(symmetric, bytes, pe);
  auto* raised = reinterpret_cast<uint64_t*>(translated(signal, sizeof *signal, pe));
  count_crossing(to, static_cast<int64_t>(bytes));
  running->landings.push_back({Landing::put, {{to, from, bytes}}, raised, value, current});
  yield();
}

void raise_signal(uint64_t* signal, uint64_t value, int pe) {
  auto* raised = reinterpret_cast<uint64_t*>(translated(signal, sizeof *signal, pe));
  running->landings.push_back({Landing::put, {}, raised, value, current});
  yield();
}

void quiet_puts() {
  for (size_t at = 0; at < running->landings.size();)
    running->landings[at].owner == current ? land_one(at) : void(++at);
  yield();
}

uint64_t peek_signal(const uint64_t* signal) {
  yield();
  if (!std::exchange(current->looked, true)) current->seen = events();
  return *signal;
}

int32_t load_in_block(const int32_t* word) {
  yield();
  if (!std::exchange(current->looked, true)) current->seen = events();
  return *word;
}
// A value may be what others wait for; 0 unlocks, which nobody waits for.
void store_in_block(int32_t* word, int32_t value) {
  yield();
  *word = value;
  if (value) count_event(), unpark();
  yield();
}

void store_signal(uint64_t* signal, uint64_t value) {
  yield();
  raise(signal, value);
  yield();
}

// A GPU would look again soon; here nothing can have changed before some signal has, which other lanes may have seen.
void rest() {
  const Fiber* self = current;
  const uint64_t seen = std::exchange(current->looked, false) ? current->seen : events();
  wait_until([=] { return events() != seen || others_wait(*self); }, "waits for a signal that never comes");
}

uint64_t clock() { return running->steps; }

}  // namespace device
}  // namespace mgg
