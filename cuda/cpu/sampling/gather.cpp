// Gathers rows: the transport gets those that pointers do not reach, and threads read those of the file, while others
// are copied.
#include "cpu/sampling/gather.h"

#include "cpu/sampling/copy_rows.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
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
constexpr int64_t readers = 16;           // threads that wait for a file: a solid-state disk has many reads at a time
constexpr int64_t most_skipped = 1 << 10;   // bytes between rows of a file that one read takes with it,
constexpr int64_t most_read = 1 << 20;      // of so many bytes at most

inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += line) __builtin_prefetch(row + at);
}

// Throws for a number that is no row.
void check_rows(const RowGather& call) {
  const uint64_t rows = call.table.rows;
  uint64_t outside = 0;  // in its highest bit, since SSE2 does not compare 64 bits
#pragma omp parallel for num_threads(call.threads) reduction(| : outside) if (call.count > many_ids)
  for (int64_t i = 0; i < call.count; ++i) outside |= uint64_t(call.ids[i]) | (rows - 1 - uint64_t(call.ids[i]));
  if (!(outside >> 63)) return;
  const int64_t* bad = std::find_if(call.ids, call.ids + call.count, [&](int64_t id) { return uint64_t(id) >= rows; });
  throw std::out_of_range("row " + std::to_string(*bad) + ", and rows are 0 to " + std::to_string(call.table.rows - 1));
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

// Reads of a file's rows, by threads that begin at once.
class FileReads {
 public:
  FileReads(const RowGather& call, std::vector<Filed> rows)
      : call_(call), file_(call.table.file), bytes_(call.table.bytes), rows_(std::move(rows)) {
    std::sort(rows_.begin(), rows_.end(), [](const Filed& a, const Filed& b) { return a.slot < b.slot; });
    for (int64_t i = 0; i < int64_t(rows_.size()); ++i) {
      const bool joins = i > 0 && (rows_[i].slot - rows_[i - 1].slot - 1) * bytes_ <= most_skipped &&
                         (rows_[i].slot - rows_[runs_.back()].slot + 1) * bytes_ <= most_read;
      if (!joins) runs_.push_back(i);
    }
    const int64_t threads = std::min<int64_t>(runs_.size(), readers);
    try {
      for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // those that have begun read all
    }
  }
  ~FileReads() { join(); }

  FileFault join() {
    if (threads_.empty()) work();
    for (std::thread& each : threads_) each.join();
    threads_.clear();
    return fault_;
  }

 private:
  void work() {
    std::vector<char> buffer;
    for (int64_t run; (run = next_++) < int64_t(runs_.size());) {
      const int64_t first = runs_[run], end = run + 1 < int64_t(runs_.size()) ? runs_[run + 1] : rows_.size();
      const int64_t slot = rows_[first].slot, bytes = (rows_[end - 1].slot - slot + 1) * bytes_;
      const bool alone = end - first == 1;  // read straight into its place
      try {
        if (!alone) buffer.resize(std::max<size_t>(buffer.size(), bytes));
      } catch (const std::bad_alloc&) {
        return fail({slot, ENOMEM});
      }
      char* into = alone ? call_.out + rows_[first].place * call_.out_bytes : buffer.data();
      const int64_t from = file_.offset + (slot - file_.first) * bytes_;
      for (int64_t done = 0; done < bytes;) {
        const ssize_t got = pread(file_.descriptor, into + done, bytes - done, from + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          const int64_t at = slot + done / bytes_;  // in or before the first row that is missing
          const auto missing = std::find_if(rows_.begin() + first, rows_.begin() + end,
                                            [at](const Filed& row) { return row.slot >= at; });
          return fail({missing->slot, got ? errno : 0});
        }
        done += got;
      }
      for (int64_t i = first; i < end && !alone; ++i)
        std::memcpy(call_.out + rows_[i].place * call_.out_bytes, buffer.data() + (rows_[i].slot - slot) * bytes_,
                    bytes_);
    }
  }

  void fail(FileFault fault) {
    std::lock_guard<std::mutex> lock(guard_);
    if (fault_.slot < 0 || fault.slot < fault_.slot) fault_ = fault;
  }

  const RowGather& call_;
  const FileTier& file_;
  const int64_t bytes_;
  std::vector<Filed> rows_;
  std::vector<int64_t> runs_;  // first row of each read
  std::vector<std::thread> threads_;
  std::atomic<int64_t> next_{0};
  std::mutex guard_;
  FileFault fault_{-1, 0};
};

}  // namespace

RowsRead gather_rows(const RowGather& call, void (*copy)(const RowCopies&), int64_t* read) {
  const Table& table = call.table;
  check_rows(call);
  const Found found(table);
  const RowPlaces places = found.places();
  RowsRead rows{0, 0, {-1, 0}};
  std::vector<Filed> filed;
  if (found.gets() || table.file.first < table.file.end) rows.got = start_gets(call, places, filed);
  FileReads file(call, std::move(filed));
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
