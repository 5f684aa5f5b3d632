// Copies rows at the speed of memory; compiled once for each instruction set (MGG_ISA).
//
// No hardware predicts where the next row lies, so each line is prefetched some KiB before it is copied. A prefetch
// that waits for the address of its page keeps a core from running more than some hundred instructions ahead, so what
// is computed adds to the time: places are found for many rows at once, in loops that become vector instructions. On
// one core of an EPYC 9005 with pages of 4 KiB, a random row of 64 bytes takes 5.3 ns at least; to find its place, row
// by row, took as long again.
#include "cpu/sampling/copy_rows.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstring>
#include <vector>

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int64_t line = 64;
constexpr int64_t bytes_ahead = 8 << 10;    // that are prefetched: more than a core's outstanding requests
constexpr int64_t most_ahead = 128;         // rows
constexpr int64_t batch = 64;               // rows whose places are found at once
constexpr int64_t ring = 256;               // rows whose places are known: at least 2 * batch + most_ahead
constexpr int64_t most_compared = 8;        // spans with each of which a slot is compared; more are searched
constexpr int64_t most_cached = 32 << 20;   // bytes of results that a cache may hold until they are read
constexpr int64_t piece = 4096;             // rows that a thread copies at once, at most,
constexpr int64_t piece_bytes = 1 << 20;    // and their bytes
constexpr int64_t many_bytes = 4 << 20;     // below, a second thread costs more than it saves,
constexpr int64_t row_costs = 128;          // where each row takes as long as so many bytes more
static_assert(ring % batch == 0 && ring >= 2 * batch + most_ahead);

typedef uint64_t Pack __attribute__((vector_size(16)));
#if defined(__AVX512F__)
typedef uint64_t Wide __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef uint64_t Wide __attribute__((vector_size(32)));
#else
typedef Pack Wide;
#endif

// Where results go: into the caches, or past them, for results of whole lines or of values of 4 bytes.
enum class Store { cached, lines, words };

template <class T>
inline T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
inline void store(char* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}
// Past the caches; `to` is a multiple of the value's bytes.
template <class T>
inline void stream(char* to, T value) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(T) == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(T) == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
  if constexpr (sizeof(T) == 4) return _mm_stream_si32(reinterpret_cast<int*>(to), value);
#endif
  store(to, value);
}

inline void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += line) __builtin_prefetch(row + at);
  __builtin_prefetch(row + bytes - 1);  // in another line, unless it begins with one
}

// Copies a row, and prefetches another.
template <Store STORE>
inline void copy_row(char* to, const char* from, int64_t bytes, const char* next) {
  int64_t at = 0;
  if constexpr (STORE == Store::words)
    for (; at < bytes && reinterpret_cast<uintptr_t>(to + at) % sizeof(Pack); at += 4)
      stream(to + at, load<int32_t>(from + at));
  for (; at + line <= bytes; at += line) {
    __builtin_prefetch(next + at);
    for (int64_t part = at; part < at + line;) {
      if constexpr (STORE == Store::words)
        stream(to + part, load<Pack>(from + part)), part += sizeof(Pack);
      else if constexpr (STORE == Store::lines)
        stream(to + part, load<Wide>(from + part)), part += sizeof(Wide);
      else
        store(to + part, load<Wide>(from + part)), part += sizeof(Wide);
    }
  }
  if (reinterpret_cast<uintptr_t>(next) % line) __builtin_prefetch(next + bytes - 1);  // in another line
  if (at == bytes) return;
  __builtin_prefetch(next + at);
  if constexpr (STORE == Store::cached) {
    // The last values may be copied twice.
    constexpr int64_t wide = sizeof(Wide), pack = sizeof(Pack);
    for (; at + wide <= bytes; at += wide) store(to + at, load<Wide>(from + at));
    if (at < bytes && bytes >= wide) return store(to + bytes - wide, load<Wide>(from + bytes - wide));
    for (; at + pack <= bytes; at += pack) store(to + at, load<Pack>(from + at));
    if (at < bytes && bytes >= pack) return store(to + bytes - pack, load<Pack>(from + bytes - pack));
    std::memcpy(to + at, from + at, bytes - at);
  } else {
    for (; at + 16 <= bytes; at += 16) stream(to + at, load<Pack>(from + at));
    for (; at < bytes; at += 4) stream(to + at, load<int32_t>(from + at));
  }
}

// Sets rows [count] to where the rows ids [count] lie, of which there are `left` in all; null where no pointer reaches.
template <class Slots>
inline void find(const RowPlaces& places, const Slots& slots, const int64_t* ids, int64_t count, int64_t left,
                 const char** rows, int64_t* counts) {
  int64_t slot[batch], span[batch];
  if constexpr (Slots::IS_MAP)
    for (int64_t i = 0; i < count; ++i) slots.prefetch(ids[std::min(i + slots_ahead, left - 1)]);
  if (places.count > most_compared) {
    for (int64_t i = 0; i < count; ++i) {
      const Place place = places.find(slots(ids[i]));
      rows[i] = places.address(place), ++counts[place.part];
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) slot[i] = std::min<uint64_t>(slots(ids[i]), places.end), span[i] = 0;
  for (int64_t s = 1; s < places.count; ++s) {
    const int64_t first = places.firsts[s];
    int64_t behind = 0;  // rows in this span or a later one
    for (int64_t i = 0; i < count; ++i) {
      const int64_t is = first <= slot[i];
      span[i] += is, behind += is;
    }
    if (!places.in_turn) counts[s] += behind, counts[s - 1] -= behind;
  }
  if (places.in_turn) {
    for (int64_t i = 0; i < count; ++i) {
      const Place place = places.place(span[i], slot[i]);
      rows[i] = places.address(place), ++counts[place.part];
    }
    return;
  }
  counts[0] += count;
  for (int64_t i = 0; i < count; ++i) {
    const Span& in = places.spans[span[i]];
    rows[i] = reinterpret_cast<const char*>(in.base + slot[i] * in.row_bytes);
  }
}

// Copies rows first .. end - 1 of the result.
template <Store STORE>
void copy_piece(const RowGather& call, const RowPlaces& places, int64_t first, int64_t end, int64_t* counts) {
  const int64_t bytes = call.table.bytes, out_bytes = call.out_bytes, n = end - first;
  const int64_t ahead = std::clamp<int64_t>(bytes_ahead / std::max<int64_t>(1, bytes), 2, most_ahead);
  const char* rows[ring];
  int64_t found = 0;
  for (int64_t at = 0; at < n; at += batch) {
    const int64_t last = std::min(n, at + batch);
    for (; found < std::min(n, last + ahead); found += batch)
      with_slots(call.table, [&](const auto& slots) {
        const int64_t begin = first + found, more = std::min(batch, n - found);
        find(places, slots, call.ids + begin, more, call.count - begin, rows + found % ring, counts);
      });
    for (int64_t i = 0; !at && i < std::min(n, ahead); ++i) prefetch(rows[i], bytes);
    char* out = call.out + (first + at) * out_bytes;
    for (int64_t i = at; i < last; ++i, out += out_bytes) {
      const char* next = rows[std::min(i + ahead, n - 1) & (ring - 1)];
      if (const char* from = rows[i & (ring - 1)]) copy_row<STORE>(out, from, bytes, next);
    }
  }
}

template <Store STORE>
void copy_all(const RowCopies& copies) {
  const RowGather& call = copies.call;
  const int64_t parts = copies.places.last_part() + 1, bytes = std::max<int64_t>(1, call.table.bytes);
  const int64_t step = std::clamp<int64_t>(piece_bytes / bytes, 1, piece);
#pragma omp parallel num_threads(call.threads) if (call.count * (bytes + row_costs) > many_bytes)
  {
    std::vector<int64_t> counts(parts);
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < call.count; first += step)
      copy_piece<STORE>(call, copies.places, first, std::min(first + step, call.count), counts.data());
#if defined(__SSE2__)
    if (STORE != Store::cached) _mm_sfence();  // others see the rows after this
#endif
#pragma omp critical
    for (int64_t part = 0; part < parts; ++part) copies.counts[part] += counts[part];
  }
}

}  // namespace

void copy_rows(const RowCopies& copies) {
  const RowGather& call = copies.call;
  const uintptr_t multiple = reinterpret_cast<uintptr_t>(call.out) | call.out_bytes | call.table.bytes;
  if (call.count * call.table.bytes <= most_cached || multiple % 4)
    copy_all<Store::cached>(copies);
  else if (multiple % line)
    copy_all<Store::words>(copies);
  else
    copy_all<Store::lines>(copies);
}

}  // namespace MGG_ISA
}  // namespace mgg
