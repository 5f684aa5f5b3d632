// Where the rows of a table lie, and copies of those that pointers reach.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/sampling/gather.h"

namespace mgg {

// Slots from `first` on that lie on `count` PEs in turn: part `part` is the first PE's. inverse: 2^63 / count, rounded
// up, by which quotients of numbers below 2^63 / count are exact. Where count is 1, slot s is at base + s * row_bytes;
// both are 0 where no pointer reaches it.
struct Span {
  int64_t first, count, part, row_bytes;
  uint64_t inverse, base;
};

// A slot's span, the part of it that one PE has, and the row there.
struct Place {
  int64_t span, part, row;
};

// The spans of the tiers, then of the file, then of all slots that are not there, which are taken for slot `end`.
struct RowPlaces {
  const Span* spans;
  const int64_t* firsts;     // [count], of the spans
  const char* const* parts;  // row 0 of each; null where no pointer reaches it
  int64_t count, end;
  bool in_turn;  // whether some span lies on several PEs

  int64_t last_part() const { return spans[count - 1].part; }

  // Without branches, since no hardware predicts which tier is next.
  Place find(int64_t slot) const {
    slot = std::min<uint64_t>(slot, end);
    int64_t low = 0;
    for (int64_t left = count; left > 1;) {  // the last that does not begin after it
      const int64_t half = left / 2;
      low += half & -int64_t(firsts[low + half] <= slot);
      left -= half;
    }
    return place(low, slot);
  }
  Place place(int64_t span, int64_t slot) const {
    const Span& at = spans[span];
    const int64_t number = slot - at.first;
    const int64_t row = static_cast<Product>(number) * at.inverse >> 63;
    return {span, at.part + number - row * at.count, row};
  }
  const char* address(const Place& place) const {
    const char* rows = parts[place.part];
    return rows ? rows + place.row * spans[place.span].row_bytes : nullptr;
  }

 private:
  __extension__ typedef unsigned __int128 Product;
};

// The slots of rows. IS_MAP: they are read from memory.
template <class Slot>
struct Slots {
  static constexpr bool IS_MAP = true;
  const Slot* slots;
  int64_t operator()(int64_t row) const { return slots[row]; }
  void prefetch(int64_t row) const { __builtin_prefetch(slots + row); }
};
struct Numbers {
  static constexpr bool IS_MAP = false;
  int64_t operator()(int64_t row) const { return row; }
  void prefetch(int64_t) const {}
};

constexpr int64_t slots_ahead = 64;  // that are prefetched

// Calls work(slots) with the slots of a table.
template <class Work>
inline void with_slots(const Table& table, const Work& work) {
  if (table.slots) return work(Slots<int32_t>{table.slots});
  if (table.wide_slots) return work(Slots<int64_t>{table.wide_slots});
  work(Numbers{});
}

// Copies the rows that pointers reach, and adds the numbers of all rows to counts [last_part + 1] by their parts.
struct RowCopies {
  const RowGather& call;
  RowPlaces places;
  int64_t* counts;
};

#define MGG_DECLARE(isa)             \
  namespace isa {                    \
  void copy_rows(const RowCopies&);  \
  }
MGG_DECLARE(baseline)
MGG_DECLARE(avx2)
MGG_DECLARE(avx512)
#undef MGG_DECLARE

}  // namespace mgg
