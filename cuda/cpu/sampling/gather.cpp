// Gathers rows: the transport gets those that pointers do not reach, and threads read those of the file, while others
// are copied. Rows are written in place, or by such threads.
#include "cpu/sampling/gather.h"

#include "cpu/sampling/copy_rows.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace mgg {
namespace {

constexpr int64_t line = 64;
constexpr int64_t many_ids = 1 << 17;     // below, a second thread costs more than it saves,
constexpr int64_t many_bytes = 4 << 20;   // as it does in copies of a CSR matrix
constexpr int64_t got_at_once = 1024;     // gets under way
constexpr int64_t csr_ahead = 16;         // rows of a CSR matrix that are prefetched,
constexpr int64_t most_foreseen = 256;    // and values of each
constexpr int64_t file_threads = 16;      // that wait for a file: a solid-state disk has many calls at a time
constexpr int64_t most_skipped = 1 << 10;   // bytes between rows of a file that one read takes with it,
constexpr int64_t most_run = 1 << 20;       // of so many bytes at most

inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += line) __builtin_prefetch(row + at);
}

// Throws for a number that is no row.
void check_rows(const Table& table, const int64_t* ids, int64_t count, int threads) {
  const uint64_t rows = table.rows;
  uint64_t outside = 0;  // in its highest bit, since SSE2 does not compare 64 bits
#pragma omp parallel for num_threads(threads) reduction(| : outside) if (count > many_ids)
  for (int64_t i = 0; i < count; ++i) outside |= uint64_t(ids[i]) | (rows - 1 - uint64_t(ids[i]));
  if (!(outside >> 63)) return;
  const int64_t* bad = std::find_if(ids, ids + count, [&](int64_t id) { return uint64_t(id) >= rows; });
  throw std::out_of_range("row " + std::to_string(*bad) + ", and rows are 0 to " + std::to_string(table.rows - 1));
}

// The places of a table's rows, as a call finds them.
class Found {
 public:
  explicit Found(const Table& table) {
    for (const Tier* tier = table.tiers; tier != table.tiers + table.tier_count; ++tier) {
      add(tier->first, tier->count, tier->row_bytes, reinterpret_cast<const char*>(tier->addresses[0]));
      for (int64_t pe = 0; pe < tier->count; ++pe) {
        parts_.push_back(reinterpret_cast<const char*>(tier->addresses[pe]));
        if (parts_.back() || pe >= tier->end - tier->first) continue;
        if (!table.transport || !tier->mine) throw std::invalid_argument("gather: rows out of reach");
        gets_ = true;
      }
    }
    for (const int64_t first : {table.file.first, table.file.end}) {
      add(first, 1, 0, nullptr);
      parts_.push_back(nullptr);
    }
  }
  // Whether some rows are got.
  bool gets() const { return gets_; }
  RowPlaces places() const {
    const auto count = static_cast<int64_t>(spans_.size());
    return {spans_.data(), firsts_.data(), parts_.data(), count, firsts_.back(), in_turn_};
  }

 private:
  void add(int64_t first, int64_t count, int64_t row_bytes, const char* rows) {
    if (!rows && count == 1) row_bytes = 0;
    const uint64_t base = reinterpret_cast<uint64_t>(rows) - first * row_bytes;
    const uint64_t inverse = (uint64_t(1) << 63) / count + 1;
    spans_.push_back({first, count, static_cast<int64_t>(parts_.size()), row_bytes, inverse, base});
    firsts_.push_back(first);
    in_turn_ |= count > 1;
  }

  std::vector<Span> spans_;
  std::vector<int64_t> firsts_;
  std::vector<const char*> parts_;
  bool gets_ = false, in_turn_ = false;
};

// A row of the file, and its place in the result.
struct Filed {
  int64_t slot, place;
};

// Starts to get the rows that no pointer reaches, and finds those of the file. The last gets are under way on return.
int64_t start_gets(const RowGather& call, const RowPlaces& places, std::vector<Filed>& filed) {
  const Table& table = call.table;
  int64_t got = 0;
  with_slots(table, [&](const auto& slots) {
    for (int64_t i = 0; i < call.count; ++i) {
      slots.prefetch(call.ids[std::min(i + slots_ahead, call.count - 1)]);
      const int64_t slot = slots(call.ids[i]);
      const Place place = places.find(slot);
      if (place.span == table.tier_count) filed.push_back({slot, i});
      if (place.span >= table.tier_count || places.parts[place.part]) continue;
      const Tier& tier = table.tiers[place.span];
      const int64_t pe = tier.pes[place.part - places.spans[place.span].part];
      table.transport->get_nbi(call.out + i * call.out_bytes, tier.mine + place.row * tier.row_bytes, table.bytes,
                               static_cast<int>(pe), 0);
      if (++got % got_at_once == 0) table.transport->quiet(0);
    }
  });
  return got;
}

// Reads of a file's rows into memory, or writes of them from there (const char), by threads that begin at once.
template <class Byte>
class FileCalls {
 public:
  // memory: of place 0. apart: bytes from one place to the next. Of rows with one slot the last place is written.
  FileCalls(const Table& table, std::vector<Filed> rows, Byte* memory, int64_t apart)
      : file_(table.file), bytes_(table.bytes), memory_(memory), apart_(apart), rows_(std::move(rows)) {
    std::sort(rows_.begin(), rows_.end(), [](const Filed& a, const Filed& b) {
      return a.slot != b.slot ? a.slot < b.slot : a.place < b.place;
    });
    for (int64_t i = 0; i < int64_t(rows_.size()); ++i) {
      const int64_t skipped = i ? rows_[i].slot - rows_[i - 1].slot - 1 : 0;
      const bool joins = i > 0 && (skipped < 0 || (skipped * bytes_ <= (writes ? 0 : most_skipped) &&
                                                   (rows_[i].slot - rows_[runs_.back()].slot + 1) * bytes_ <= most_run));
      if (!joins) runs_.push_back(i);
    }
    for (size_t run = 0; run < runs_.size(); ++run) longest_ = std::max(longest_, bytes_of(run));
    const int64_t threads = std::min<int64_t>(runs_.size(), file_threads);
    buffers_.reset(new char[std::max<int64_t>(threads, 1) * longest_]);  // here: memory of threads stays theirs
    try {
      for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error&) {  // those that have begun do all
    }
  }
  ~FileCalls() { join(); }

  FileFault join() {
    if (threads_.empty()) work(0);
    for (std::thread& each : threads_) each.join();
    threads_.clear();
    return fault_;
  }

 private:
  static constexpr bool writes = std::is_const_v<Byte>;

  int64_t end_of(int64_t run) const { return run + 1 < int64_t(runs_.size()) ? runs_[run + 1] : rows_.size(); }
  int64_t bytes_of(int64_t run) const { return (rows_[end_of(run) - 1].slot - rows_[runs_[run]].slot + 1) * bytes_; }

  void work(int64_t thread) {
    char* const buffer = buffers_.get() + thread * longest_;
    for (int64_t run; (run = next_++) < int64_t(runs_.size());) {
      const int64_t first = runs_[run], end = end_of(run), slot = rows_[first].slot, bytes = bytes_of(run);
      const auto copied = [&](const auto& copy) {
        for (int64_t i = first; i < end; ++i)
          copy(memory_ + rows_[i].place * apart_, buffer + (rows_[i].slot - slot) * bytes_);
      };
      if constexpr (writes) copied([this](const char* from, char* to) { std::memcpy(to, from, bytes_); });
      char* into = buffer;
      if constexpr (!writes) {
        if (end - first == 1) into = memory_ + rows_[first].place * apart_;  // read straight into its place
      }
      const int64_t from = file_.offset + (slot - file_.first) * bytes_;
      for (int64_t done = 0; done < bytes;) {
        const ssize_t moved = call(into + done, bytes - done, from + done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) {
          const int64_t at = slot + done / bytes_;  // in or before the first row that is missing
          const auto missing = std::find_if(rows_.begin() + first, rows_.begin() + end,
                                            [at](const Filed& row) { return row.slot >= at; });
          return fail({missing->slot, moved ? errno : 0});
        }
        done += moved;
      }
      if constexpr (!writes) {
        if (into == buffer) copied([this](char* to, const char* from) { std::memcpy(to, from, bytes_); });
      }
    }
  }

  ssize_t call(char* buffer, int64_t bytes, int64_t offset) const {
    return writes ? pwrite(file_.descriptor, buffer, bytes, offset) : pread(file_.descriptor, buffer, bytes, offset);
  }

  void fail(FileFault fault) {
    std::lock_guard<std::mutex> lock(guard_);
    if (fault_.slot < 0 || fault.slot < fault_.slot) fault_ = fault;
  }

  const FileTier& file_;
  const int64_t bytes_;
  Byte* const memory_;
  const int64_t apart_;
  std::vector<Filed> rows_;
  std::vector<int64_t> runs_;  // first row of each call
  int64_t longest_ = 0;        // bytes of a call at most
  std::unique_ptr<char[]> buffers_;
  std::vector<std::thread> threads_;
  std::atomic<int64_t> next_{0};
  std::mutex guard_;
  FileFault fault_{-1, 0};
};

}  // namespace

RowsRead gather_rows(const RowGather& call, void (*copy)(const RowCopies&), int64_t* read) {
  const Table& table = call.table;
  check_rows(table, call.ids, call.count, call.threads);
  const Found found(table);
  const RowPlaces places = found.places();
  RowsRead rows{0, 0, {-1, 0}};
  std::vector<Filed> filed;
  if (found.gets() || table.file.first < table.file.end) rows.got = start_gets(call, places, filed);
  FileCalls<char> file(table, std::move(filed), call.out, call.out_bytes);
  std::vector<int64_t> counts(places.last_part() + 1);
  copy({call, places, counts.data()});
  for (int64_t t = 0; t <= table.tier_count; ++t) {
    const int64_t first = places.spans[t].part, end = places.spans[t + 1].part;
    read[t] = std::accumulate(counts.begin() + first, counts.begin() + end, int64_t(0));
    for (int64_t part = first; t < table.tier_count && part < end; ++part)
      if (table.tiers[t].pes[part - first] == table.rank) rows.own += counts[part];
  }
  if (rows.got) table.transport->quiet(0);
  rows.fault = file.join();
  if (counts.back()) throw std::invalid_argument("gather: slots that no tier has");
  return rows;
}

FileFault update_rows(const Table& table, const int64_t* ids, int64_t count, const char* rows, int64_t row_bytes) {
  check_rows(table, ids, count, 1);
  const Found found(table);
  const RowPlaces places = found.places();
  std::vector<Filed> filed;
  with_slots(table, [&](const auto& slots) {
    for (int64_t i = 0; i < count; ++i) {
      slots.prefetch(ids[std::min(i + slots_ahead, count - 1)]);
      const int64_t slot = slots(ids[i]);
      const Place place = places.find(slot);
      if (place.span == table.tier_count) {
        filed.push_back({slot, i});
        continue;
      }
      // Tables point to rows that are read; the caller says that these may be written.
      char* to = const_cast<char*>(places.address(place));
      if (!to) throw std::invalid_argument("update: rows out of reach");
      std::memcpy(to, rows + i * row_bytes, table.bytes);
    }
  });
  return FileCalls<const char>(table, std::move(filed), rows, row_bytes).join();
}

void csr_offsets(const int64_t* indptr, int64_t all_rows, int64_t stored, const int64_t* rows, int64_t count,
                 int64_t* out_indptr) {
  for (int64_t i = 0; i < count; ++i)
    if (rows[i] < 0 || rows[i] >= all_rows)
      throw std::invalid_argument("gather: row " + std::to_string(rows[i]) + ", and there are " +
                                  std::to_string(all_rows));
  out_indptr[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + csr_ahead < count) __builtin_prefetch(indptr + rows[i + csr_ahead]);
    const int64_t begin = indptr[rows[i]], end = indptr[rows[i] + 1];
    if (begin < 0 || begin > end || end > stored)
      throw std::invalid_argument("gather: indptr does not ascend within the stored values");
    out_indptr[i + 1] = out_indptr[i] + end - begin;
  }
}

template <class T>
void gather_csr(const Csr<T>& matrix, const int64_t* rows, int64_t count, const int64_t* out_indptr, int64_t room,
                int32_t* out_indices, T* out_values, int threads) {
  const int64_t bytes = room * static_cast<int64_t>(sizeof(int32_t) + sizeof(T));
  int64_t wrong = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 512) reduction(+ : wrong) if (bytes > many_bytes)
  for (int64_t i = 0; i < count; ++i) {
    if (i + csr_ahead < count && rows[i + csr_ahead] >= 0 && rows[i + csr_ahead] < matrix.rows) {
      const int64_t next = matrix.indptr[rows[i + csr_ahead]];
      const int64_t values = std::min(out_indptr[i + csr_ahead + 1] - out_indptr[i + csr_ahead], most_foreseen);
      prefetch(reinterpret_cast<const char*>(matrix.indices + next), values * sizeof(int32_t));
      prefetch(reinterpret_cast<const char*>(matrix.values + next), values * sizeof(T));
    }
    const bool there = rows[i] >= 0 && rows[i] < matrix.rows;
    const int64_t from = there ? matrix.indptr[rows[i]] : 0, end = there ? matrix.indptr[rows[i] + 1] : -1;
    const int64_t to = out_indptr[i], stored = end - from;
    if (from < 0 || stored < 0 || end > matrix.stored || to < 0 || out_indptr[i + 1] - to != stored ||
        to + stored > room) {
      ++wrong;
      continue;
    }
    std::copy_n(matrix.indices + from, stored, out_indices + to);
    std::copy_n(matrix.values + from, stored, out_values + to);
  }
  if (wrong) throw std::invalid_argument("gather: out_indptr is not of these rows");
}

template void gather_csr(const Csr<float>&, const int64_t*, int64_t, const int64_t*, int64_t, int32_t*, float*, int);
template void gather_csr(const Csr<double>&, const int64_t*, int64_t, const int64_t*, int64_t, int32_t*, double*, int);

}  // namespace mgg
