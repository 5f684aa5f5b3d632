#include "runtime/streaming/chunk_stream.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/transport_host.h"

namespace mgg {
namespace {

double seconds(std::chrono::steady_clock::duration taken) { return std::chrono::duration<double>(taken).count(); }

}  // namespace

ChunkStream::ChunkStream(Layout layout, std::shared_ptr<ChunkSource> source)
    : layout_(std::move(layout)), source_(std::move(source)) {
  int64_t steps = 0;
  for (const int64_t count : layout_.calls) {
    if (count < 0) throw std::invalid_argument("stream: a call of fewer than 0 steps");
    steps += count;
  }
  if (steps != static_cast<int64_t>(layout_.steps.size()))
    throw std::invalid_argument("stream: calls have another number of steps");
  if (source_->row_bytes() > layout_.row_bytes) throw std::invalid_argument("stream: rows of the store are wider");
  std::vector<int64_t> last;  // of each slot
  for (int64_t i = 0; i < steps; ++i) {
    const Step& step = layout_.steps[i];
    if (step.slot < 0 || step.rows < 0 || step.rows * layout_.row_bytes > layout_.slot_bytes)
      throw std::invalid_argument("stream: a chunk does not fit its slot");
    if (step.first_row < 0 || step.first_row + step.rows > source_->rows())
      throw std::invalid_argument("stream: a chunk of rows that the store does not have");
    if (step.slot >= static_cast<int64_t>(last.size())) last.resize(step.slot + 1, -1);
    const int64_t before = last[step.slot];
    const auto same = [&](const Step& held) { return held.first_row == step.first_row && held.rows == step.rows; };
    if (!step.loads && (before < 0 || !same(layout_.steps[before])))
      throw std::invalid_argument("stream: a step finds another chunk in its slot");
    before_.push_back(before);
    last[step.slot] = i;
  }
  // The former pass is over here, also where it was left before its end. What `there` says of it is too small, or an
  // error of that pass, and stays: the rank after this one may still be in that pass.
  if (layout_.chain.mine) store_signal(&layout_.chain.mine->copied, layout_.chain.first);
  thread_ = std::thread([this] { run(); });
}

void ChunkStream::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  turned_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ChunkStream::begin(const char*, int64_t) {}

void ChunkStream::wait(int round) {
  const int64_t step = first_ + round;
  std::unique_lock<std::mutex> lock(mutex_);
  finished_ = step, wanted_ = step + 1;
  turned_.notify_all();
  const auto ready = [&] { return there_ > step || error_ || stopped_; };
  if (ready()) return;
  const auto began = Clock::now();
  turned_.wait(lock, ready);
  waited_ += seconds(Clock::now() - began);
}

void ChunkStream::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  first_ += layout_.calls[call_++];
  const bool whole = there_ >= first_;
  finished_ = first_;
  turned_.notify_all();
  if (whole) return;
  if (error_) std::rethrow_exception(error_);
  throw std::runtime_error("stream: it was closed before its chunks were there");
}

Moved ChunkStream::take_moved() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {rows_loaded_.exchange(0), rows_passed_.exchange(0), 0, std::exchange(waited_, 0.0),
          std::exchange(loading_, 0.0)};
}

// Looks again and again, ever more seldom, since ranks may outnumber cores; returns false where the thread is to end.
template <class Ready>
bool ChunkStream::poll(Ready&& ready) {
  constexpr std::chrono::microseconds longest(200);
  for (std::chrono::microseconds pause(2); !ready(); pause = std::min(2 * pause, longest)) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (turned_.wait_for(lock, pause, [&] { return stopped_; })) return false;
  }
  return true;
}

// Waits until a step's chunk may be brought into its slot; returns false where the thread is to end.
bool ChunkStream::free_for(int64_t step) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    turned_.wait(lock, [&] {
      return stopped_ || (finished_ > before_[step] && (layout_.ahead || wanted_ > step)) ||
             !layout_.steps[step].loads;
    });
    if (stopped_) return false;
  }
  const Chain& chain = layout_.chain;
  if (!chain.after || !layout_.steps[step].loads) return true;
  const uint64_t copied = chain.first + before_[step] + 1;
  return poll([&] { return load_signal(&chain.after->copied) >= copied; });
}

void ChunkStream::run() {
  for (int64_t i = 0; i < static_cast<int64_t>(layout_.steps.size()); ++i) {
    if (!free_for(i)) return;
    const auto began = Clock::now();
    std::exception_ptr error;
    try {
      bring(i);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    loading_ += seconds(Clock::now() - began);
    if (stopped_) return;
    error_ = error;
    if (!error) there_ = i + 1;
    const uint64_t first = layout_.chain.first;
    if (layout_.chain.mine) store_signal(&layout_.chain.mine->there, error ? failed | first : first + i + 1);
    turned_.notify_all();
    if (error) return;
  }
}

void ChunkStream::bring(int64_t step) {
  const Chain& chain = layout_.chain;
  if (layout_.steps[step].loads) chain.before ? copy(step) : load(layout_.steps[step]);
  if (chain.mine) store_signal(&chain.mine->copied, chain.first + step + 1);
}

// Copies a chunk from its slot on the rank before, once it is there.
void ChunkStream::copy(int64_t number) {
  const Chain& chain = layout_.chain;
  const Step& step = layout_.steps[number];
  const uint64_t wanted = chain.first + number + 1;
  bool error = false;
  const auto ready = [&] {
    const uint64_t there = load_signal(&chain.before->there);
    error = there == (failed | chain.first);
    return error || (there < failed && there >= wanted);
  };
  if (!poll(ready)) return;
  if (error) throw std::runtime_error("stream: the rank before in the chain could not load a chunk");
  std::memcpy(slot(step), chain.slots + step.slot * layout_.slot_bytes, step.rows * layout_.row_bytes);
  rows_passed_.fetch_add(step.rows, std::memory_order_relaxed);
}

void ChunkStream::load(const Step& step) {
  const int64_t most = source_->rows_at_once();
  for (int64_t done = 0; done < step.rows; done += most) {
    const auto began = Clock::now();
    const int64_t rows = std::min(most, step.rows - done);
    char* to = slot(step) + done * layout_.row_bytes;
    if (!source_->read(step.first_row + done, rows, to, layout_.row_bytes)) continue;
    rows_loaded_.fetch_add(rows, std::memory_order_relaxed);
    if (source_->pace()) sleep_until(source_->pace()->due(rows * source_->row_bytes(), began));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
  }
}

// Returns earlier where the thread is to end.
void ChunkStream::sleep_until(Clock::time_point due) {
  std::unique_lock<std::mutex> lock(mutex_);
  turned_.wait_until(lock, due, [&] { return stopped_; });
}

}  // namespace mgg
