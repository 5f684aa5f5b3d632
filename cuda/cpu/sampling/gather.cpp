// Copies rows at the speed of memory: each row is prefetched several rows before it is copied, since no hardware
// predicts where the next row lies. Few rows are copied by the calling thread alone.
#include "cpu/sampling/gather.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <stdexcept>
#include <string>

namespace mgg {
namespace {

constexpr int64_t line = 64;
constexpr int64_t many_ids = 1 << 15;
constexpr int64_t many_bytes = 4 << 20;   // below, a second thread costs more than it saves
constexpr int64_t bytes_ahead = 8 << 10;  // that are prefetched: more than a core's outstanding requests
constexpr int64_t got_at_once = 1024;     // gets under way
constexpr int64_t most_cached = 32 << 20;  // bytes of results that a cache may hold until they are read
constexpr int64_t piece = 1024;           // rows that a thread copies at once
constexpr int64_t ring = 128;             // rows whose places are known ahead, a power of two
constexpr int64_t csr_ahead = 16;         // rows of a CSR matrix that are prefetched,
constexpr int64_t most_foreseen = 256;    // and values of each

typedef uint64_t Pack __attribute__((vector_size(16), may_alias));

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

template <bool STREAMS>
inline void copy_row(char* to, const char* from, int64_t bytes) {
  const auto pack = [&](int64_t at) { return *reinterpret_cast<const Pack*>(from + at); };
  int64_t at = 0;
  for (; at + line <= bytes; at += line) {
    const Pack a = pack(at), b = pack(at + 16), c = pack(at + 32), d = pack(at + 48);
    store<STREAMS>(to + at, a), store<STREAMS>(to + at + 16, b);
    store<STREAMS>(to + at + 32, c), store<STREAMS>(to + at + 48, d);
  }
  for (; at < bytes; at += sizeof(Pack)) store<STREAMS>(to + at, pack(at));
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

// Copies rows first .. end - 1 that pointers reach.
template <bool STREAMS>
void copy_rows(const RowGather& call, int64_t first, int64_t end) {
  const int64_t ahead = std::min(ring, std::max<int64_t>(4, bytes_ahead / call.row_bytes));
  const char* places[ring];
  const auto foresee = [&](int64_t i) {
    const char* place = places[i % ring] = place_of(call, call.ids[i]);
    if (place) prefetch(place, call.row_bytes);
  };
  for (int64_t i = first; i < std::min(end, first + ahead); ++i) foresee(i);
  for (int64_t i = first; i < end; ++i) {
    const char* place = places[i % ring];
    if (i + ahead < end) foresee(i + ahead);
    if (place) copy_row<STREAMS>(call.out + i * call.row_bytes, place, call.row_bytes);
  }
}

template <bool STREAMS>
void copy_all(const RowGather& call) {
#pragma omp parallel num_threads(call.threads) if (call.count * call.row_bytes > many_bytes)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < call.count; first += piece)
      copy_rows<STREAMS>(call, first, std::min(first + piece, call.count));
#if defined(__SSE2__)
    if (STREAMS) _mm_sfence();  // others see the rows after this
#endif
  }
}

}  // namespace

RowsRead gather_rows(const RowGather& call) {
  RowsRead read = counted(call);
  const uint64_t* end = call.addresses + call.pes;
  if (std::find(call.addresses, end, 0) != end) read.got = start_gets(call);
  if (call.count * call.row_bytes > most_cached)
    copy_all<true>(call);
  else
    copy_all<false>(call);
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
