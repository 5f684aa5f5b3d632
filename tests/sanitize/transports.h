// Transports between ranks that are threads of one process.
#pragma once
#include <cstring>
#include <vector>

#include "runtime/pointer_transport.h"

// Ranks out of each other's reach, as over a network: what is started goes on only while its rank calls the transport,
// and gets land no earlier than their quiet. Whoever relies on more than a Transport promises is found out.
class FarTransport : public mgg::Transport {
 public:
  // early: break the promise that bytes come before their signal.
  FarTransport(const mgg::PointerTransport& addresses, int me, bool early)
      : addresses_(addresses), me_(me), early_(early) {}

  void* pointer(const void* mine, int pe) const override {
    return pe == me_ ? addresses_.pointer(mine, pe) : nullptr;
  }
  void get_nbi(void* to, const void* mine, size_t bytes, int pe, int channel) override {
    gets_[channel].push_back({to, addresses_.pointer(mine, pe), bytes, nullptr, 0});
  }
  void quiet(int channel) override {
    for (const Copy& get : gets_[channel]) std::memcpy(get.to, get.from, get.bytes);
    gets_[channel].clear();
  }
  void put_signal_nbi(void* mine, const void* from, size_t bytes, uint64_t* signal, uint64_t value, int pe) override {
    void* to = bytes ? addresses_.pointer(mine, pe) : nullptr;
    puts_.push_back({to, from, bytes, signal ? addresses_.pointer(signal, pe) : nullptr, value});
  }
  void progress() override {
    if (puts_.empty()) return;
    deliver(puts_.front());
    puts_.erase(puts_.begin());
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    void* signal;
    uint64_t value;
  };
  void deliver(const Copy& put) const {
    if (early_) tell(put);
    if (put.bytes) std::memcpy(put.to, put.from, put.bytes);
    if (!early_) tell(put);
  }
  static void tell(const Copy& put) {
    if (put.signal) mgg::store_signal(static_cast<uint64_t*>(put.signal), put.value);
  }

  const mgg::PointerTransport& addresses_;
  int me_;
  bool early_;
  std::vector<Copy> puts_, gets_[2];
};
