#include "runtime/streaming/chunk_source.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

namespace mgg {
namespace {

// Copies rows that lie from_apart bytes from each other to where they lie to_apart bytes from each other.
void spread(const char* from, int64_t from_apart, int64_t rows, char* to, int64_t to_apart) {
  if (from_apart == to_apart) {
    std::memcpy(to, from, rows * from_apart);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * to_apart, from + i * from_apart, from_apart);
    std::memset(to + i * to_apart + from_apart, 0, to_apart - from_apart);
  }
}

int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Pace::Pace(double rate) : rate_(rate) {
  if (!(rate > 0)) throw std::invalid_argument("pace: no such rate");
}

Pace::Clock::time_point Pace::due(int64_t bytes, Clock::time_point began) {
  ::prctl(PR_SET_TIMERSLACK, 1);
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / rate_);
  const std::lock_guard<std::mutex> lock(mutex_);
  next_ = std::max(next_, began) + std::chrono::duration_cast<Clock::duration>(takes);
  return next_;
}

ChunkSource::ChunkSource(int64_t rows, int64_t row_bytes, std::shared_ptr<Pace> pace)
    : rows_(rows), row_bytes_(row_bytes), pace_(std::move(pace)) {
  if (rows < 0 || row_bytes < 1) throw std::invalid_argument("source: no such rows");
}

// A multiple of 256 rows where there are so many: rows of 16 bytes and more begin with a block of a file then.
int64_t ChunkSource::rows_at_once() const {
  constexpr int64_t bytes = 4 << 20, aligned = 256;
  const int64_t fitting = std::max<int64_t>(1, bytes / row_bytes_);
  return fitting > aligned ? fitting / aligned * aligned : fitting;
}

bool MemorySource::read(int64_t first_row, int64_t rows, char* to, int64_t apart) {
  const char* from = address_ + first_row * row_bytes_;
  if (to == from && apart == row_bytes_) return false;
  spread(from, row_bytes_, rows, to, apart);
  return true;
}

void FileSource::Free::operator()(char* memory) const { std::free(memory); }

FileSource::FileSource(int file, int64_t offset, int64_t rows, int64_t row_bytes, bool direct, std::string name,
                       std::shared_ptr<Pace> pace)
    : ChunkSource(rows, row_bytes, std::move(pace)),
      file_(file),
      offset_(offset),
      direct_(direct),
      name_(std::move(name)) {}

int64_t FileSource::read_bytes(int64_t first, int64_t last, char* to) const {
  int64_t at = first;
  while (at < last) {
    const ssize_t got = ::pread(file_, to + (at - first), last - at, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), name_);
    if (got == 0) break;
    at += got;
    // A direct read that does not end with a block has met the end of the file.
    if (direct_ && got % block) break;
  }
  return at - first;
}

void FileSource::ends_early(int64_t at) const {
  throw std::system_error(EIO, std::generic_category(), name_ + " ends at byte " + std::to_string(at));
}

char* FileSource::box(int64_t bytes) {
  if (bytes > box_bytes_) {
    box_.reset(static_cast<char*>(std::aligned_alloc(block, up(bytes, block))));
    if (!box_) throw std::bad_alloc();
    box_bytes_ = up(bytes, block);
  }
  return box_.get();
}

bool FileSource::read(int64_t first_row, int64_t rows, char* to, int64_t apart) {
  const int64_t first = offset_ + first_row * row_bytes_, last = first + rows * row_bytes_;
  const bool whole = first % block == 0 && last % block == 0 && reinterpret_cast<uintptr_t>(to) % block == 0;
  if (apart == row_bytes_ && (whole || !direct_)) {
    const int64_t got = read_bytes(first, last, to);
    if (got < last - first) ends_early(first + got);
    return true;
  }
  const int64_t from = direct_ ? first / block * block : first, end = direct_ ? up(last, block) : last;
  char* box = this->box(end - from);
  const int64_t got = read_bytes(from, end, box);
  if (from + got < last) ends_early(from + got);
  spread(box + (first - from), row_bytes_, rows, to, apart);
  return true;
}

}  // namespace mgg
