// What kernels do is counted, for tests and for a model of their time.
#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "shim_run.h"

namespace mgg {
namespace shim {

Counts counts;
bool tracing = false;

namespace {

constexpr uintptr_t pack = 16, sector = 32, line = 128;
std::unordered_map<const void*, int64_t> atomics_at;

// Of units of `size` bytes, those that a span touches.
int64_t touched(uintptr_t first, int64_t bytes, uintptr_t size) {
  return static_cast<int64_t>((first + bytes - 1) / size - first / size + 1);
}

// Of what each lane of a warp asked for: it belongs to the transaction of the lane before, where that asked for the
// pack before. `asked`: which of a fiber's packs.
void count_transactions(const std::vector<std::unique_ptr<Fiber>>& fibers, std::vector<uintptr_t> Fiber::*asked,
                        int64_t& sectors, int64_t& lines) {
  std::vector<uintptr_t> before, own;  // sorted; the former as what would follow them
  for (size_t at = 0; at < fibers.size(); ++at) {
    own = (*fibers[at]).*asked;
    std::sort(own.begin(), own.end());
    if (at % warp_lanes == 0) before.clear();
    std::vector<uintptr_t> begun;  // packs that begin a transaction: no lane before leads up to them
    std::set_difference(own.begin(), own.end(), before.begin(), before.end(), std::back_inserter(begun));
    for (const uintptr_t each : own) sectors += each % sector == 0, lines += each % line == 0;
    for (const uintptr_t each : begun) sectors += each % sector != 0, lines += each % line != 0;
    for (uintptr_t& each : own) each += pack;
    before.swap(own);
  }
}

// The k-th load of each lane belongs to one instruction of the warp.
void count_requests(const std::vector<std::unique_ptr<Fiber>>& fibers, size_t first) {
  const size_t loads = fibers[first]->listed.size();
  std::vector<uintptr_t> sectors;
  for (size_t k = 0; k < loads; ++k) {
    sectors.clear();
    for (int lane = 0; lane < warp_lanes; ++lane) {
      const std::vector<uintptr_t>& asked = fibers[first + lane]->listed;
      if (asked.size() != loads) fail("load_warp: not by all lanes of a warp");
      if (asked[k]) sectors.push_back(asked[k]);
    }
    std::sort(sectors.begin(), sectors.end());
    sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
    constexpr uintptr_t each = line / sector;
    for (size_t at = 0; at < sectors.size();) {
      const size_t begin = at;
      while (at < sectors.size() && sectors[at] / each == sectors[begin] / each) ++at;
      ++counts.requests[at - begin - 1];
    }
  }
}

}  // namespace

Counts take_counts() {
  atomics_at.clear();
  return std::exchange(counts, Counts());
}

void trace_transactions(bool asked) { tracing = asked; }

void trace_load(const void* address, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(address);
  if (bytes == pack)
    current->loaded.push_back(first);
  else
    counts.load_sectors += touched(first, bytes, sector), counts.load_lines += touched(first, bytes, line);
}
void trace_store(const void* address) { current->stored.push_back(reinterpret_cast<uintptr_t>(address)); }

void count_list_load(const void* address, bool wanted) {
  const uintptr_t asked = wanted ? reinterpret_cast<uintptr_t>(address) / sector : 0;
  current->listed.push_back(asked == current->held ? 0 : asked);
  if (wanted) current->held = asked;
}

void count_fence() { ++counts.fences, ++current->fences; }

void count_atomic(const void* address) {
  ++counts.atomics;
  counts.most_atomics_an_address = std::max(counts.most_atomics_an_address, ++atomics_at[address]);
}

void count_block(const Block& block) {
  for (size_t first = 0; first < block.fibers.size(); first += warp_lanes) {
    int64_t most = 0;
    for (int lane = 0; lane < warp_lanes; ++lane) most = std::max(most, block.fibers[first + lane]->fences);
    counts.warp_fences += most;
  }
  for (size_t first = 0; first < block.fibers.size(); first += warp_lanes) count_requests(block.fibers, first);
  if (!tracing) return;
  count_transactions(block.fibers, &Fiber::loaded, counts.load_sectors, counts.load_lines);
  count_transactions(block.fibers, &Fiber::stored, counts.store_sectors, counts.store_lines);
}

}  // namespace shim
}  // namespace mgg
