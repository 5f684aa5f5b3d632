// Copies rows at the speed of memory: each row is prefetched several rows before it is copied, since no hardware
// predicts where the next row lies. Few rows are copied by the calling thread alone.
#include "cpu/sampling/gather.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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
constexpr int64_t many_ids = 1 << 15;
constexpr int64_t many_bytes = 4 << 20;   // below, a second thread costs more than it saves
constexpr int64_t bytes_ahead = 8 << 10;  // that are prefetched: more than a core's outstanding requests
constexpr int64_t got_at_once = 1024;     // gets under way
constexpr int64_t most_cached = 32 << 20;  // bytes of results that a cache may hold until they are read
constexpr int64_t piece = 1024;           // rows that a thread copies at once, at most,
constexpr int64_t bytes_at_once = 256 << 10;  // and their bytes
constexpr int64_t ring = 128;             // rows whose places are known ahead, a power of two
constexpr int64_t slots_ahead = 32;       // that are prefetched
constexpr int64_t csr_ahead = 16;         // rows of a CSR matrix that are prefetched,
constexpr int64_t most_foreseen = 256;    // and values of each
constexpr int64_t readers = 16;           // threads that wait for a file: a solid-state disk has many reads at a time
constexpr int64_t most_skipped = 16 << 10;  // bytes between rows of a file that one read takes with it,
constexpr int64_t most_read = 1 << 20;      // of so many bytes at most

typedef uint64_t Pack __attribute__((vector_size(16), may_alias, aligned(1)));

inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += line) __builtin_prefetch(row + at);
}

inline void foresee_slot(const Table& table, int64_t row) {
  if (table.slots) __builtin_prefetch(table.slots + row);
  if (table.wide_slots) __builtin_prefetch(table.wide_slots + row);
}

// STREAMS: past the caches.
template <bool STREAMS>
inline void store(char* to, Pack value) {
#if defined(__SSE2__)
  if constexpr (STREAMS) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
#endif
  *reinterpret_cast<Pack*>(to) = value;
}

// STREAMS: `to` is a multiple of 16 bytes, and so is the row.
template <bool STREAMS>
inline void copy_row(char* to, const char* from, int64_t bytes) {
  const auto pack = [&](int64_t at) { return *reinterpret_cast<const Pack*>(from + at); };
  int64_t at = 0;
  for (; at + line <= bytes; at += line) {
    const Pack a = pack(at), b = pack(at + 16), c = pack(at + 32), d = pack(at + 48);
    store<STREAMS>(to + at, a), store<STREAMS>(to + at + 16, b);
    store<STREAMS>(to + at + 32, c), store<STREAMS>(to + at + 48, d);
  }
  for (; at + 16 <= bytes; at += sizeof(Pack)) store<STREAMS>(to + at, pack(at));
  if (!STREAMS && at < bytes) std::memcpy(to + at, from + at, bytes - at);
}

inline int64_t slot_of(const Table& table, int64_t row) {
  return table.slots ? table.slots[row] : table.wide_slots ? table.wide_slots[row] : row;
}

// The tier of a slot: the last that does not begin after it. tier_count: the file.
inline int64_t tier_of(const Table& table, int64_t slot) {
  int64_t low = 0, count = table.tier_count + 1;
  while (count > 1) {
    const int64_t half = count / 2;
    low = table.firsts[low + half] <= slot ? low + half : low;
    count -= half;
  }
  return low;
}

// The PE's place in a tier, and the row there, of a slot.
struct Place {
  int64_t pe, row;
};

inline Place place_in(const Tier& tier, int64_t slot) {
  const int64_t number = slot - tier.first, row = tier.count == 1 ? number : number / tier.count;
  return {number - row * tier.count, row};
}

// Throws for a number that is no row.
void check_rows(const RowGather& call) {
  const uint64_t rows = call.table.rows;
  int64_t outside = 0;
#pragma omp parallel for num_threads(call.threads) reduction(+ : outside) if (call.count > many_ids)
  for (int64_t i = 0; i < call.count; ++i) outside += uint64_t(call.ids[i]) >= rows;
  if (!outside) return;
  const int64_t* bad = std::find_if(call.ids, call.ids + call.count, [&](int64_t id) { return uint64_t(id) >= rows; });
  throw std::out_of_range("row " + std::to_string(*bad) + ", and rows are 0 to " + std::to_string(call.table.rows - 1));
}

// Returns whether all rows of the tiers are reached through pointers. Throws where some are not reached at all.
bool all_reached(const Table& table) {
  bool all = true;
  for (const Tier* tier = table.tiers; tier != table.tiers + table.tier_count; ++tier)
    for (int64_t pe = 0; pe < std::min(tier->count, tier->end - tier->first); ++pe)
      if (!tier->addresses[pe]) {
        if (!table.transport || !tier->mine) throw std::invalid_argument("gather: rows out of reach");
        all = false;
      }
  return all;
}

// A row of the file, and its place in the result.
struct Filed {
  int64_t slot, place;
};

// Starts to get the rows that no pointer reaches, and finds those of the file. The last gets are under way on return.
int64_t start_gets(const RowGather& call, std::vector<Filed>& filed) {
  const Table& table = call.table;
  int64_t got = 0;
  for (int64_t i = 0; i < call.count; ++i) {
    if (i + slots_ahead < call.count) foresee_slot(table, call.ids[i + slots_ahead]);
    const int64_t slot = slot_of(table, call.ids[i]), t = tier_of(table, slot);
    if (t == table.tier_count) {
      if (slot < table.file.end) filed.push_back({slot, i});
      continue;
    }
    const Tier& tier = table.tiers[t];
    const Place place = place_in(tier, slot);
    if (slot < 0 || tier.addresses[place.pe]) continue;
    table.transport->get_nbi(call.out + i * call.out_bytes, tier.mine + place.row * tier.row_bytes, table.bytes,
                             static_cast<int>(tier.pes[place.pe]), 0);
    if (++got % got_at_once == 0) table.transport->quiet(0);
  }
  return got;
}

// Numbers of rows of each PE of each tier, then of the file, and of slots that are not there.
using Counts = std::vector<int64_t>;

// Copies rows first .. end - 1 of the result, but for those that no pointer reaches.
template <bool STREAMS>
void copy_rows(const RowGather& call, const int64_t* first_counts, int64_t first, int64_t end, int64_t* counts) {
  const Table& table = call.table;
  const int64_t ahead = std::min(ring, std::max<int64_t>(4, bytes_ahead / std::max<int64_t>(1, table.bytes)));
  const char* places[ring];
  const auto find = [&](int64_t i) -> const char* {
    const int64_t slot = slot_of(table, call.ids[i]), t = tier_of(table, slot);
    if (t == table.tier_count || slot < 0) {
      ++counts[first_counts[table.tier_count] + (slot < 0 || slot >= table.file.end)];
      return nullptr;
    }
    const Tier& tier = table.tiers[t];
    const Place place = place_in(tier, slot);
    ++counts[first_counts[t] + place.pe];
    const char* rows = reinterpret_cast<const char*>(tier.addresses[place.pe]);
    return rows ? rows + place.row * tier.row_bytes : nullptr;
  };
  const auto foresee = [&](int64_t i) {
    const char* place = places[i % ring] = find(i);
    if (place) prefetch(place, table.bytes);
  };
  for (int64_t i = first; i < std::min(end, first + ahead); ++i) foresee(i);
  for (int64_t i = first; i < end; ++i) {
    const char* place = places[i % ring];
    if (i + ahead < end) foresee(i + ahead);
    if (place) copy_row<STREAMS>(call.out + i * call.out_bytes, place, table.bytes);
  }
}

template <bool STREAMS>
void copy_all(const RowGather& call, const int64_t* first_counts, Counts& counts) {
  const int64_t bytes = std::max<int64_t>(1, call.table.bytes), step = std::clamp<int64_t>(bytes_at_once / bytes, 1, piece);
#pragma omp parallel num_threads(call.threads) if (call.count * bytes > many_bytes)
  {
    Counts mine(counts.size());
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < call.count; first += step)
      copy_rows<STREAMS>(call, first_counts, first, std::min(first + step, call.count), mine.data());
#if defined(__SSE2__)
    if (STREAMS) _mm_sfence();  // others see the rows after this
#endif
#pragma omp critical
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += mine[i];
  }
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
      try {
        buffer.resize(bytes);
      } catch (const std::bad_alloc&) {
        return fail({slot, ENOMEM});
      }
      const int64_t from = file_.offset + (slot - file_.first) * bytes_;
      for (int64_t done = 0; done < bytes;) {
        const ssize_t got = pread(file_.descriptor, buffer.data() + done, bytes - done, from + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          const int64_t at = slot + done / bytes_;  // in or before the first row that is missing
          const auto missing = std::find_if(rows_.begin() + first, rows_.begin() + end,
                                            [at](const Filed& row) { return row.slot >= at; });
          return fail({missing->slot, got ? errno : 0});
        }
        done += got;
      }
      for (int64_t i = first; i < end; ++i)
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

RowsRead gather_rows(const RowGather& call, int64_t* read) {
  const Table& table = call.table;
  check_rows(call);
  RowsRead found{0, 0, {-1, 0}};
  std::vector<Filed> filed;
  if (!all_reached(table) || table.file.first < table.file.end) found.got = start_gets(call, filed);
  FileReads file(call, std::move(filed));
  std::vector<int64_t> first_counts(1);
  for (int64_t t = 0; t < table.tier_count; ++t) first_counts.push_back(first_counts[t] + table.tiers[t].count);
  Counts counts(first_counts.back() + 2);
  const bool packs = (reinterpret_cast<uintptr_t>(call.out) | call.out_bytes | table.bytes) % sizeof(Pack) == 0;
  if (packs && call.count * table.bytes > most_cached)
    copy_all<true>(call, first_counts.data(), counts);
  else
    copy_all<false>(call, first_counts.data(), counts);
  for (int64_t t = 0; t < table.tier_count; ++t) {
    const int64_t* of_tier = counts.data() + first_counts[t];
    read[t] = std::accumulate(of_tier, of_tier + table.tiers[t].count, int64_t(0));
    for (int64_t pe = 0; pe < table.tiers[t].count; ++pe)
      if (table.tiers[t].pes[pe] == table.rank) found.own += of_tier[pe];
  }
  read[table.tier_count] = counts[first_counts.back()];
  if (found.got) table.transport->quiet(0);
  found.fault = file.join();
  if (counts.back()) throw std::invalid_argument("gather: slots that no tier has");
  return found;
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
