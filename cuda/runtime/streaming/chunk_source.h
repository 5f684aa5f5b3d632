// Sources of streamed rows: a store in memory, or in a file.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace mgg {

// Limits the rate of transfers to and from stores, for studies of slow ones. Stores on one device share it.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // rate: bytes per second.
  explicit Pace(double rate);
  double rate() const { return rate_; }
  // Returns when bytes are there whose transfer began at `began`: after all others. By any thread, which wakes in time
  // from then on: sleeps last 50 microseconds longer otherwise.
  Clock::time_point due(int64_t bytes, Clock::time_point began);

 private:
  const double rate_;
  std::mutex mutex_;
  Clock::time_point next_{};
};

// Rows of a store, row_bytes apart. Slots may hold them further apart, where they are padded.
class ChunkSource {
 public:
  ChunkSource(int64_t rows, int64_t row_bytes, std::shared_ptr<Pace> pace);
  virtual ~ChunkSource() = default;
  ChunkSource(const ChunkSource&) = delete;
  ChunkSource& operator=(const ChunkSource&) = delete;

  // Brings rows to `to`, `apart` bytes from each other, with zeros between them; returns false if they lie there already.
  // Throws std::system_error where they cannot be read. By one thread.
  virtual bool read(int64_t first_row, int64_t rows, char* to, int64_t apart) = 0;

  // Most rows of one `read`: about 4 MiB.
  int64_t rows_at_once() const;
  int64_t rows() const { return rows_; }
  int64_t row_bytes() const { return row_bytes_; }
  // Null: rows are read as fast as they can be.
  Pace* pace() const { return pace_.get(); }

 protected:
  const int64_t rows_, row_bytes_;
  const std::shared_ptr<Pace> pace_;
};

class MemorySource final : public ChunkSource {
 public:
  MemorySource(const char* address, int64_t rows, int64_t row_bytes, std::shared_ptr<Pace> pace = nullptr)
      : ChunkSource(rows, row_bytes, std::move(pace)), address_(address) {}
  bool read(int64_t first_row, int64_t rows, char* to, int64_t apart) override;

 private:
  const char* address_;
};

// Rows of an open file, from byte `offset` on. direct: the file was opened with O_DIRECT, so that places in it, numbers
// of bytes and memory are multiples of `block`; rows that do not lie so go through memory of the source's own. `name`
// stands in errors.
class FileSource final : public ChunkSource {
 public:
  static constexpr int64_t block = 4096;

  FileSource(int file, int64_t offset, int64_t rows, int64_t row_bytes, bool direct, std::string name,
             std::shared_ptr<Pace> pace = nullptr);
  bool read(int64_t first_row, int64_t rows, char* to, int64_t apart) override;

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  // Reads bytes first .. last - 1 of the file; returns the number that were there.
  int64_t read_bytes(int64_t first, int64_t last, char* to) const;
  [[noreturn]] void ends_early(int64_t at) const;
  char* box(int64_t bytes);

  const int file_;
  const int64_t offset_;
  const bool direct_;
  const std::string name_;
  std::unique_ptr<char, Free> box_;
  int64_t box_bytes_ = 0;
};

}  // namespace mgg
