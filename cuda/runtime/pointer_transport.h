// The transport of ranks that share memory: everything is within reach, and copies are done when they return.
#pragma once
#include <atomic>
#include <cstring>
#include <vector>

#include "runtime/transport_host.h"

namespace mgg {

class PointerTransport : public Transport {
 public:
  explicit PointerTransport(int me) : me_(me) {}

  // A symmetric allocation: `bytes` on each PE, at these addresses [PEs] in this process. They are read when they are
  // needed, and must stay.
  void add(const uint64_t* addresses, size_t bytes) { regions_.push_back({addresses, bytes}); }

  void* pointer(const void* mine, int pe) const override {
    const char* address = static_cast<const char*>(mine);
    // Most calls are about the rows that the call before was about, and there may be many regions.
    const size_t recent = recent_.load(std::memory_order_relaxed);
    if (recent < regions_.size() && holds(regions_[recent], address)) return there(regions_[recent], address, pe);
    for (size_t i = 0; i < regions_.size(); ++i) {
      if (!holds(regions_[i], address)) continue;
      recent_.store(i, std::memory_order_relaxed);
      return there(regions_[i], address, pe);
    }
    return nullptr;
  }
  void get_nbi(void* to, const void* mine, size_t bytes, int pe, int) override {
    std::memcpy(to, pointer(mine, pe), bytes);
  }
  void quiet(int) override {}
  void put_signal_nbi(void* mine, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe) override {
    if (bytes) std::memcpy(pointer(mine, pe), from, bytes);
    if (signal) store_signal(static_cast<uint64_t*>(pointer(signal, pe)), value);
  }
  void progress() override {}

 private:
  struct Region {
    const uint64_t* addresses;
    size_t bytes;
  };
  static char* at(const Region& region, int pe) { return reinterpret_cast<char*>(region.addresses[pe]); }
  bool holds(const Region& region, const char* address) const {
    const char* own = at(region, me_);
    return address >= own && address < own + region.bytes;
  }
  void* there(const Region& region, const char* address, int pe) const {
    return at(region, pe) + (address - at(region, me_));
  }

  int me_;
  std::vector<Region> regions_;
  mutable std::atomic<size_t> recent_{0};
};

}  // namespace mgg
