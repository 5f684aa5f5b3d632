// What kernels do is counted, for tests.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "shim_run.h"

namespace mgg {
namespace shim {

Counts counts;

namespace {

constexpr uintptr_t sector = 32, line = 128;
std::unordered_map<const void*, int64_t> atomics_at;

// The k-th load of each lane belongs to one instruction of the warp.
void count_requests_of_warp(const std::vector<std::unique_ptr<Fiber>>& fibers, size_t first) {
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

void count_list_load(const void* address, bool wanted) {
  const uintptr_t asked = wanted ? reinterpret_cast<uintptr_t>(address) / sector : 0;
  current->listed.push_back(asked == current->held ? 0 : asked);
  if (wanted) current->held = asked;
}

void count_atomic(const void* address) {
  ++counts.atomics;
  counts.most_atomics_an_address = std::max(counts.most_atomics_an_address, ++atomics_at[address]);
}

void count_requests(const Block& block) {
  for (size_t first = 0; first < block.fibers.size(); first += warp_lanes) count_requests_of_warp(block.fibers, first);
}

}  // namespace shim
}  // namespace mgg
