// The PEs of a job as processes of the host: their heaps lie in memory that all of them share, and that is gone with the
// last of them. Kernels of several processes run at the same time then, and see each other's signals.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "runtime/runtime_nvshmem.h"
#include "runtime_shim.h"
#include "shim_run.h"

namespace mgg {
namespace nvshmem {
namespace {

constexpr int most_pes = 64;
constexpr size_t header_bytes = 4096, heap_bytes = size_t(256) << 20, alignment = 512;
constexpr auto patience = std::chrono::seconds(60);

struct Header {
  std::atomic<uint64_t> arrived, events;  // at barriers, of all PEs; signals
  std::atomic<uint64_t> asked[most_pes];  // bytes that each PE wants
};
static_assert(sizeof(Header) <= header_bytes, "a page");

char* shared = nullptr;
int me = 0, pes = 0, descriptor = -1;
uint64_t barriers = 0;
std::map<size_t, size_t> blocks;  // offset in a heap, bytes; the same on all PEs

Header& header() { return *reinterpret_cast<Header*>(shared); }
char* heap(int pe) { return shared + header_bytes + pe * heap_bytes; }
void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("shim: ") + what);
}

}  // namespace

std::string unique_id() {
  descriptor = memfd_create("mgg-shim", MFD_CLOEXEC);
  check(descriptor >= 0, "no shared memory");
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor);
}

int start(const std::string& id, int rank, int size) {
  check(!shared && size <= most_pes, "started already, or too many PEs");
  const int opened = open(id.c_str(), O_RDWR | O_CLOEXEC);
  check(opened >= 0, "cannot open what another PE shares");
  const size_t bytes = header_bytes + size * heap_bytes;
  check(ftruncate(opened, static_cast<off_t>(bytes)) == 0, "no room");
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, opened, 0);
  close(opened);
  check(found != MAP_FAILED, "cannot map what PEs share");
  shared = static_cast<char*>(found), me = rank, pes = size, barriers = 0;
  shim::settings().pe = rank;
  shim::shared_events = &header().events;
  std::vector<char*> heaps;
  for (int pe = 0; pe < pes; ++pe) heaps.push_back(heap(pe));
  shim::add_symmetric(heaps, heap_bytes);
  barrier(nullptr);
  if (descriptor >= 0) close(std::exchange(descriptor, -1));
  return 2;
}

void barrier(void*) {
  check(shared, "no job has been started");
  const auto began = std::chrono::steady_clock::now();
  const uint64_t all = ++barriers * pes;
  ++header().arrived;
  while (header().arrived < all) {
    check(std::chrono::steady_clock::now() - began < patience, "a PE never comes to a barrier");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void* allocate(size_t bytes) {
  header().asked[me] = bytes;
  barrier(nullptr);
  for (int pe = 0; pe < pes; ++pe) check(header().asked[pe] == bytes, "PEs allocate different sizes");
  const size_t size = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  size_t at = 0;
  for (const auto& [offset, taken] : blocks) {
    if (at + size <= offset) break;
    at = offset + taken;
  }
  check(at + size <= heap_bytes, "the heap has no room");
  blocks[at] = size;
  std::memset(heap(me) + at, 0, size);
  barrier(nullptr);
  return heap(me) + at;
}

void release(void* symmetric) {
  check(blocks.erase(static_cast<char*>(symmetric) - heap(me)) == 1, "releases what was not allocated");
  barrier(nullptr);
}

void* pointer(const void* symmetric, int pe) { return heap(pe) + (static_cast<const char*>(symmetric) - heap(me)); }

void finish() {
  barrier(nullptr);
  shim::forget_symmetric();
  shim::shared_events = nullptr;
  munmap(shared, header_bytes + pes * heap_bytes);
  shared = nullptr;
  blocks.clear();
}

}  // namespace nvshmem
}  // namespace mgg
