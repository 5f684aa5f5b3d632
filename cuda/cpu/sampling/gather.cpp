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
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
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
constexpr int64_t csr_ahead = 16;         // rows of a CSR matrix that are prefetched,
constexpr int64_t most_foreseen = 256;    // and values of each
constexpr int64_t readers = 16;           // threads that wait for a file: a solid-state disk has many reads at a time
constexpr int64_t most_skipped = 16 << 10;  // bytes between rows of a file that one read takes with it,
constexpr int64_t most_read = 1 << 20;      // of so many bytes at most

typedef uint64_t Pack __attribute__((vector_size(16), may_alias, aligned(1)));

inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += line) __builtin_prefetch(row + at);
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

// The PE that owns a row: the last whose rows do not begin after it.
inline int owner_of(const RowGather& call, int64_t row) {
  int low = 0, count = call.pes;
  while (count > 1) {
    const int half = count / 2;
    low = call.bounds[low + half] <= row ? low + half : low;
    count -= half;
  }
  return low;
}

// Where a row lies, or null if no pointer reaches it.
inline const char* place_of(const RowGather& call, int64_t row) {
  const int pe = owner_of(call, row);
  const char* base = reinterpret_cast<const char*>(call.addresses[pe]);
  return base ? base + (row - call.bounds[pe]) * call.row_bytes : nullptr;
}

// Counts rows of this PE and of others; throws for a row that is of none.
RowsRead counted(const RowGather& call) {
  const int64_t first = call.bounds[0], end = call.bounds[call.pes];
  const int64_t own = call.bounds[call.rank], own_end = call.bounds[call.rank + 1];
  int64_t outside = 0, local = 0;
#pragma omp parallel for num_threads(call.threads) reduction(+ : outside, local) if (call.count > many_ids)
  for (int64_t i = 0; i < call.count; ++i) {
    const int64_t id = call.ids[i];
    outside += (id < first) | (id >= end);
    local += (id >= own) & (id < own_end);
  }
  if (outside) {
    const auto is_bad = [&](int64_t id) { return id < first || id >= end; };
    const int64_t* bad = std::find_if(call.ids, call.ids + call.count, is_bad);
    throw std::invalid_argument("gather: row " + std::to_string(*bad) + ", and rows are " + std::to_string(first) +
                                " to " + std::to_string(end - 1));
  }
  return {local, call.count - local, 0};
}

// Starts to get the rows that no pointer reaches; the last of them are under way on return.
int64_t start_gets(const RowGather& call) {
  const char* mine = reinterpret_cast<const char*>(call.addresses[call.rank]);
  int64_t got = 0;
  for (int64_t i = 0; i < call.count; ++i) {
    const int pe = owner_of(call, call.ids[i]);
    if (call.addresses[pe]) continue;
    call.transport->get_nbi(call.out + i * call.row_bytes, mine + (call.ids[i] - call.bounds[pe]) * call.row_bytes,
                            call.row_bytes, pe, 0);
    if (++got % got_at_once == 0) call.transport->quiet(0);
  }
  return got;
}

// Copies rows first .. end - 1 of those that `rows.place` finds; null is left out.
template <bool STREAMS, class Rows>
void copy_rows(const Rows& rows, int64_t first, int64_t end) {
  const int64_t ahead = std::min(ring, std::max<int64_t>(4, bytes_ahead / std::max<int64_t>(1, rows.bytes)));
  const char* places[ring];
  const auto foresee = [&](int64_t i) {
    const char* place = places[i % ring] = rows.place(i);
    if (place) prefetch(place, rows.bytes);
  };
  for (int64_t i = first; i < std::min(end, first + ahead); ++i) foresee(i);
  for (int64_t i = first; i < end; ++i) {
    const char* place = places[i % ring];
    if (i + ahead < end) foresee(i + ahead);
    if (place) rows.template copy<STREAMS>(i, place);
  }
}

template <bool STREAMS, class Rows>
void copy_all(const Rows& rows, int64_t count, int threads) {
#pragma omp parallel num_threads(threads) if (count * rows.bytes > many_bytes)
  {
    const int64_t step = std::clamp<int64_t>(bytes_at_once / std::max<int64_t>(1, rows.bytes), 1, piece);
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < count; first += step)
      copy_rows<STREAMS>(rows, first, std::min(first + step, count));
#if defined(__SSE2__)
    if (STREAMS) _mm_sfence();  // others see the rows after this
#endif
  }
}

template <class Rows>
void copy_all(const Rows& rows, int64_t count, int threads) {
  if (rows.streams && count * rows.bytes > most_cached)
    copy_all<true>(rows, count, threads);
  else
    copy_all<false>(rows, count, threads);
}

// Rows of ranges of PEs.
struct RangedRows {
  const RowGather& call;
  int64_t bytes = call.row_bytes;
  bool streams = true;

  const char* place(int64_t i) const { return place_of(call, call.ids[i]); }
  template <bool STREAMS>
  void copy(int64_t i, const char* from) const {
    copy_row<STREAMS>(call.out + i * bytes, from, bytes);
  }
};

// Rows in tiers, which may be of any length and begin anywhere.
struct TieredRows {
  const TieredGather& call;
  const int64_t* slots;  // [count]
  int64_t bytes = call.bytes;
  bool streams = (reinterpret_cast<uintptr_t>(call.out) | call.out_bytes | call.bytes) % sizeof(Pack) == 0;

  const char* place(int64_t i) const {
    const Tier* tier = call.tiers;
    while (tier != call.tiers + call.tier_count && slots[i] >= tier->end) ++tier;
    if (tier == call.tiers + call.tier_count) return nullptr;  // in the file
    const int64_t number = slots[i] - tier->first, row = tier->pes == 1 ? number : number / tier->pes;
    return reinterpret_cast<const char*>(tier->addresses[number - row * tier->pes]) + row * tier->row_bytes;
  }
  template <bool STREAMS>
  void copy(int64_t i, const char* from) const {
    copy_row<STREAMS>(call.out + i * call.out_bytes, from, bytes);
  }
};

// Reads of a file's rows, by threads that begin at once.
class FileReads {
 public:
  FileReads(const TieredGather& call, const int64_t* slots, int64_t count) : call_(call) {
    if (!count) return;
    rows_.reserve(count);
    for (int64_t i = 0; i < call_.count; ++i)
      if (slots[i] >= call_.file.first) rows_.push_back({slots[i], i});
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.slot < b.slot; });
    for (int64_t i = 0; i < int64_t(rows_.size()); ++i) {
      const bool joins = i > 0 && (rows_[i].slot - rows_[i - 1].slot - 1) * call_.bytes <= most_skipped &&
                         (rows_[i].slot - rows_[runs_.back()].slot + 1) * call_.bytes <= most_read;
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
  struct Row {
    int64_t slot, place;
  };

  void work() {
    std::vector<char> buffer;
    for (int64_t run; (run = next_++) < int64_t(runs_.size());) {
      const int64_t first = runs_[run], end = run + 1 < int64_t(runs_.size()) ? runs_[run + 1] : rows_.size();
      const int64_t slot = rows_[first].slot, bytes = (rows_[end - 1].slot - slot + 1) * call_.bytes;
      try {
        buffer.resize(bytes);
      } catch (const std::bad_alloc&) {
        return fail({slot, ENOMEM});
      }
      const int64_t from = call_.file.offset + (slot - call_.file.first) * call_.bytes;
      for (int64_t done = 0; done < bytes;) {
        const ssize_t got = pread(call_.file.descriptor, buffer.data() + done, bytes - done, from + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          const int64_t at = slot + done / call_.bytes;  // in or before the first row that is missing
          const auto missing = std::find_if(rows_.begin() + first, rows_.begin() + end,
                                            [at](const Row& row) { return row.slot >= at; });
          return fail({missing->slot, got ? errno : 0});
        }
        done += got;
      }
      for (int64_t i = first; i < end; ++i)
        std::memcpy(call_.out + rows_[i].place * call_.out_bytes, buffer.data() + (rows_[i].slot - slot) * call_.bytes,
                    call_.bytes);
    }
  }

  void fail(FileFault fault) {
    std::lock_guard<std::mutex> lock(guard_);
    if (fault_.slot < 0 || fault.slot < fault_.slot) fault_ = fault;
  }

  const TieredGather& call_;
  std::vector<Row> rows_;
  std::vector<int64_t> runs_;  // first row of each read
  std::vector<std::thread> threads_;
  std::atomic<int64_t> next_{0};
  std::mutex guard_;
  FileFault fault_{-1, 0};
};

}  // namespace

FileFault gather_tiers(const TieredGather& call, int64_t* read) {
  std::unique_ptr<int64_t[]> slots(new int64_t[call.count]);
  int64_t outside = call.count;
#pragma omp parallel for num_threads(call.threads) reduction(min : outside) if (call.count > many_ids)
  for (int64_t i = 0; i < call.count; ++i) {
    const int64_t id = call.ids[i];
    bool there = id >= 0 && id < call.rows;
    slots[i] = !there ? 0 : call.slots ? call.slots[id] : call.wide_slots ? call.wide_slots[id] : id;
    there = there && slots[i] >= 0 && slots[i] < call.file.end;
    if (!there) outside = std::min(outside, i);
  }
  if (outside < call.count)
    throw std::out_of_range("row " + std::to_string(call.ids[outside]) + ", and rows are 0 to " +
                                std::to_string(call.rows - 1));
  int64_t left = call.count;  // of slots from a tier's end on
  for (int64_t t = 0; t < call.tier_count; ++t) {
    const int64_t end = call.tiers[t].end, before = left;
    left = std::count_if(slots.get(), slots.get() + call.count, [end](int64_t slot) { return slot >= end; });
    read[t] = before - left;
  }
  read[call.tier_count] = left;
  FileReads file(call, slots.get(), left);
  copy_all(TieredRows{call, slots.get()}, call.count, call.threads);
  return file.join();
}

RowsRead gather_rows(const RowGather& call) {
  RowsRead read = counted(call);
  const uint64_t* end = call.addresses + call.pes;
  if (std::find(call.addresses, end, 0) != end) read.got = start_gets(call);
  copy_all(RangedRows{call}, call.count, call.threads);
  if (read.got) call.transport->quiet(0);
  return read;
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
