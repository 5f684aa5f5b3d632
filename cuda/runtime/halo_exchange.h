// Moves each distinct remote row once a call: owners pack and push their rows in rounds, receivers sum meanwhile.
//
// A round is a part of a rank's halo; its rows lie together in the receiver's staging, round after round. Owners push
// packets of up to packet_bytes: into the receiver's memory where it is within reach, else by the transport. Every
// round has a signal for each pair of ranks, whose values are the numbers of calls, so nothing is ever reset.
// Staging is used in turn by odd and even calls. A receiver's credit says up to which call it has read, and an
// owner does not push call n before it has the credit of call n - 2. A receiver out of reach also acknowledges what
// has arrived, and its owners stay until it has: only inside of calls do ranks keep the network going.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/exchange.h"
#include "runtime/transport_host.h"

namespace mgg {

class HaloExchange final : public Exchange {
 public:
  static constexpr int64_t packet_bytes = 128 << 10;

  struct Layout {
    int rank, size, rounds;
    std::vector<int32_t> send_rows;       // rows of this rank, by round, then PE
    std::vector<int64_t> send_counts;     // [rounds x size]
    std::vector<int64_t> send_places;     // [rounds x size]: where in the PE's staging they begin, in rows
    std::vector<int64_t> receive_counts;  // [rounds x size]
    char* staging;                        // symmetric, 2 x staging_bytes
    int64_t staging_bytes;
    uint64_t* signals;  // symmetric, signal_count(rounds, size), zero at first
  };
  static int64_t signal_count(int rounds, int size) { return int64_t(rounds + 2) * size; }

  HaloExchange(Layout layout, Transport* transport);

  // Starts a call over `rows`, row_bytes apart; waits for the credits that it takes. By one thread.
  void begin(const char* rows, int64_t row_bytes) override;
  int64_t packets() const override { return static_cast<int64_t>(packets_.size()); }
  // Packs and pushes one packet. By any thread; packets are in the order in which receivers want them.
  void push(int64_t packet) override;
  // Waits until a round has arrived. By one thread.
  void wait(int round) override;
  // Rounds arrive in the staging of this call.
  const char* rows_of(int, int64_t first_row) const override {
    return layout_.staging + (call_ & 1) * layout_.staging_bytes + first_row * row_bytes_;
  }
  // Lets transfers go on, unless another thread does already.
  void progress() override;
  // Ends the call: gives the owners their credit, and waits until what was pushed has arrived. By one thread.
  void end() override;

  // A whole call without any sums, as bulk exchanges do. Owners may push again at once, so the rows that arrived have to
  // be read before any rank's next call but one.
  void transfer(const char* rows, int64_t row_bytes);

  Moved take_moved() override {
    return {rows_pushed_.exchange(0), 0, messages_pushed_.exchange(0), std::exchange(waited_, 0.0), 0};
  }
  // Times of the last call, in seconds of the monotonic clock: begin and end of the call; when this rank began to wait
  // for each round; when each round had arrived; when each round's last row was pushed to each PE (0: none is pushed).
  const std::vector<double>& stamps() const { return stamps_; }
  int64_t rounds() const override { return layout_.rounds; }

 private:
  struct Packet {
    int32_t round, pe;
    int64_t first, count;  // among send_rows
    int64_t place;         // in the receiver's staging, in rows
    int64_t box;           // in the outbox, in rows; for PEs out of reach
  };
  uint64_t* arrival(int round, int pe) const { return layout_.signals + int64_t(round) * layout_.size + pe; }
  uint64_t* credit(int pe) const { return arrival(layout_.rounds, pe); }
  uint64_t* acknowledgement(int pe) const { return arrival(layout_.rounds + 1, pe); }
  int64_t pair(int round, int pe) const { return int64_t(round) * layout_.size + pe; }
  void find_reachable();
  void make_packets(int64_t row_bytes);
  void await(const uint64_t* signal, uint64_t value);
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void turn();  // with calling_ held
  void pack(const Packet& packet, char* to) const;

  Layout layout_;
  Transport* transport_;
  std::mutex calling_;
  std::vector<char> sends_to_, receives_from_, reachable_;  // [size]
  std::vector<int> unacknowledged_;                         // PEs out of reach whose rows are on their way here
  std::vector<Packet> packets_;
  std::unique_ptr<std::atomic<int64_t>[]> unsent_;  // packets of each pair of round and PE
  std::vector<int64_t> packets_of_;                 // [rounds x size]
  std::vector<char> outbox_;                        // packed rows on their way to PEs out of reach
  int64_t row_bytes_ = 0;
  const char* rows_ = nullptr;
  uint64_t call_ = 0;
  bool far_ = false;  // some peer is out of reach
  std::atomic<int64_t> rows_pushed_{0}, messages_pushed_{0};
  double waited_ = 0;
  std::vector<double> stamps_;  // [2 + 2 rounds + rounds x size]
};

}  // namespace mgg
