#include "runtime/halo_exchange.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace mgg {

HaloExchange::HaloExchange(Layout layout, Transport* transport) : layout_(std::move(layout)), transport_(transport) {
  const int64_t pairs = int64_t(layout_.rounds) * layout_.size;
  const auto wrong = [&](const std::vector<int64_t>& counts) { return static_cast<int64_t>(counts.size()) != pairs; };
  if (wrong(layout_.send_counts) || wrong(layout_.send_places) || wrong(layout_.receive_counts))
    throw std::invalid_argument("exchange: a count for each round and PE");
  sends_to_.assign(layout_.size, 0), receives_from_.assign(layout_.size, 0), reachable_.assign(layout_.size, 0);
  int64_t rows = 0;
  for (int round = 0; round < layout_.rounds; ++round)
    for (int pe = 0; pe < layout_.size; ++pe) {
      rows += layout_.send_counts[pair(round, pe)];
      if (layout_.send_counts[pair(round, pe)]) sends_to_[pe] = 1;
      if (layout_.receive_counts[pair(round, pe)]) receives_from_[pe] = 1;
    }
  if (rows != static_cast<int64_t>(layout_.send_rows.size()))
    throw std::invalid_argument("exchange: rows and counts differ");
  unsent_ = std::make_unique<std::atomic<int64_t>[]>(pairs);
  stamps_.assign(2 + 2 * layout_.rounds + pairs, 0.0);
}

// At the first call, when all PEs have allocated what they exchange.
void HaloExchange::find_reachable() {
  for (int pe = 0; pe < layout_.size; ++pe) {
    reachable_[pe] = transport_->pointer(layout_.signals, pe) != nullptr;
    if ((sends_to_[pe] || receives_from_[pe]) && !reachable_[pe]) far_ = true;
  }
}

// Each rank begins with the peer after it, so that not all push to the same one.
void HaloExchange::make_packets(int64_t row_bytes) {
  row_bytes_ = row_bytes;
  packets_.clear();
  packets_of_.assign(int64_t(layout_.rounds) * layout_.size, 0);
  const int64_t rows_each = std::max<int64_t>(1, packet_bytes / row_bytes);
  std::vector<int64_t> first(packets_of_.size() + 1, 0);
  int64_t boxed = 0;
  for (size_t i = 0; i < packets_of_.size(); ++i) first[i + 1] = first[i] + layout_.send_counts[i];
  for (int round = 0; round < layout_.rounds; ++round)
    for (int step = 1; step <= layout_.size; ++step) {
      const int pe = (layout_.rank + step) % layout_.size;
      const int64_t at = pair(round, pe), count = layout_.send_counts[at];
      for (int64_t done = 0; done < count; done += rows_each, ++packets_of_[at])
        packets_.push_back({round, pe, first[at] + done, std::min(rows_each, count - done),
                            layout_.send_places[at] + done, boxed + done});
      if (!reachable_[pe]) boxed += count;
    }
  outbox_.resize(boxed * row_bytes);
}

void HaloExchange::begin(const char* rows, int64_t row_bytes) {
  stamps_[0] = now();
  if (call_ == 0) find_reachable();
  if (row_bytes != row_bytes_) make_packets(row_bytes);
  rows_ = rows;
  ++call_;
  unacknowledged_.clear();
  for (int pe = 0; pe < layout_.size; ++pe)
    if (receives_from_[pe] && !reachable_[pe]) unacknowledged_.push_back(pe);
  for (size_t i = 0; i < packets_of_.size(); ++i) unsent_[i].store(packets_of_[i], std::memory_order_relaxed);
  const double began = now();
  for (int pe = 0; pe < layout_.size; ++pe)
    if (sends_to_[pe] && call_ > 2) await(credit(pe), call_ - 2);
  waited_ += now() - began;
}

void HaloExchange::pack(const Packet& packet, char* to) const {
  constexpr int64_t ahead = 8;
  const int32_t* row = layout_.send_rows.data() + packet.first;
  for (int64_t i = 0; i < packet.count; ++i) {
    const char* next = rows_ + row[std::min(i + ahead, packet.count - 1)] * row_bytes_;
    for (int64_t line = 0; line < row_bytes_; line += 64) __builtin_prefetch(next + line);
    std::memcpy(to + i * row_bytes_, rows_ + row[i] * row_bytes_, row_bytes_);
  }
}

void HaloExchange::push(int64_t number) {
  const Packet& packet = packets_[number];
  char* place = layout_.staging + (call_ & 1) * layout_.staging_bytes + packet.place * row_bytes_;
  uint64_t* signal = arrival(packet.round, layout_.rank);
  auto& unsent = unsent_[pair(packet.round, packet.pe)];
  double& pushed = stamps_[2 + 2 * layout_.rounds + pair(packet.round, packet.pe)];
  rows_pushed_.fetch_add(packet.count, std::memory_order_relaxed);
  messages_pushed_.fetch_add(1, std::memory_order_relaxed);
  if (reachable_[packet.pe]) {
    pack(packet, static_cast<char*>(transport_->pointer(place, packet.pe)));
    if (unsent.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      store_signal(static_cast<uint64_t*>(transport_->pointer(signal, packet.pe)), call_);
      pushed = now();
    }
    return;
  }
  char* box = outbox_.data() + packet.box * row_bytes_;
  pack(packet, box);
  const std::lock_guard<std::mutex> lock(calling_);
  const bool last = unsent.fetch_sub(1, std::memory_order_relaxed) == 1;
  transport_->put_signal_nbi(place, box, packet.count * row_bytes_, last ? signal : nullptr, call_, packet.pe);
  if (last) pushed = now();
  turn();
}

void HaloExchange::turn() {
  transport_->progress();
  for (size_t i = 0; i < unacknowledged_.size();) {
    const int pe = unacknowledged_[i];
    bool here = true;
    for (int round = 0; round < layout_.rounds && here; ++round)
      here = layout_.receive_counts[pair(round, pe)] == 0 || load_signal(arrival(round, pe)) >= call_;
    if (!here) {
      ++i;
      continue;
    }
    uint64_t* mine = acknowledgement(layout_.rank);
    transport_->put_signal_nbi(mine, nullptr, 0, mine, call_, pe);
    unacknowledged_.erase(unacknowledged_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void HaloExchange::await(const uint64_t* signal, uint64_t value) {
  for (int tries = 0; load_signal(signal) < value; ++tries) {
    {
      const std::lock_guard<std::mutex> lock(calling_);
      turn();
    }
    if (tries > 64) sched_yield();  // where ranks outnumber cores, another rank has to push
  }
}

void HaloExchange::wait(int round) {
  const double began = stamps_[2 + round] = now();
  for (int step = 1; step <= layout_.size; ++step) {
    const int pe = (layout_.rank + layout_.size - step) % layout_.size;
    if (layout_.receive_counts[pair(round, pe)]) await(arrival(round, pe), call_);
  }
  waited_ += (stamps_[2 + layout_.rounds + round] = now()) - began;
}

void HaloExchange::transfer(const char* rows, int64_t row_bytes) {
  begin(rows, row_bytes);
  for (int64_t i = 0; i < packets(); ++i) push(i);
  for (int round = 0; round < layout_.rounds; ++round) wait(round);
  end();
}

void HaloExchange::progress() {
  if (calling_.try_lock()) {
    turn();
    calling_.unlock();
  }
}

void HaloExchange::end() {
  {
    const std::lock_guard<std::mutex> lock(calling_);
    for (int pe = 0; pe < layout_.size; ++pe) {
      if (!receives_from_[pe]) continue;
      uint64_t* mine = credit(layout_.rank);
      if (reachable_[pe])
        store_signal(static_cast<uint64_t*>(transport_->pointer(mine, pe)), call_);
      else
        transport_->put_signal_nbi(mine, nullptr, 0, mine, call_, pe);
    }
    turn();  // acknowledges what arrived since the last turn, before this PE leaves
    // The next call of the transport may be far off, so credits and acknowledgements leave now.
    for (int pe = 0; far_ && pe < layout_.size; ++pe) transport_->progress(), transport_->progress();
  }
  const double began = now();
  for (int pe = 0; pe < layout_.size; ++pe)
    if (sends_to_[pe] && !reachable_[pe]) await(acknowledgement(pe), call_);
  waited_ += (stamps_[1] = now()) - began;
}

}  // namespace mgg
