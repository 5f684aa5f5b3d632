// Reads rows as an aggregation reads them, and keeps only a sum.
//
// A load of any part of a cache line moves all of it, so 16 bytes of each line are loaded, and added to one
// register as integers (one cycle, where a floating-point sum would wait for four): no instruction set makes this
// faster. There are no stores, and no destinations: blocks are of as many edges as a schedule's by default.
#include "bench/gather_floor.h"

#include <algorithm>

#include "cpu/work_queue.h"

namespace mgg {
namespace {

constexpr int64_t line = 64;
constexpr int64_t block_edges = 4096;

typedef uint64_t Lanes __attribute__((vector_size(16), may_alias));

inline Lanes load(const char* at) { return *reinterpret_cast<const Lanes*>(at); }
inline uint64_t both(Lanes lanes) { return lanes[0] + lanes[1]; }

// Rows that begin with a cache line and hold this many.
template <int LINES>
struct Whole {
  static void prefetch(const Gather&, const char* row) {
#pragma GCC unroll 32
    for (int i = 0; i < LINES; ++i) __builtin_prefetch(row + i * line);
  }
  static Lanes add(const Gather&, const char* row, Lanes sum) {
#pragma GCC unroll 32
    for (int i = 0; i < LINES; ++i) sum += load(row + i * line);
    return sum;
  }
};

// Rows that begin and end anywhere.
struct Any {
  static const char* next(const char* at) {
    return reinterpret_cast<const char*>((reinterpret_cast<uintptr_t>(at) / line + 1) * line);
  }
  static void prefetch(const Gather& call, const char* row) {
    for (const char* at = row; at < row + call.row_bytes; at = next(at)) __builtin_prefetch(at);
  }
  static Lanes add(const Gather& call, const char* row, Lanes sum) {
    for (const char* at = row; at < row + call.row_bytes; at = next(at)) sum += load(at);
    return sum;
  }
};

template <class Row>
uint64_t gather_as(const Gather& call) {
  uint64_t total = 0;
  WorkQueue queue((call.edges + block_edges - 1) / block_edges, call.threads);
#pragma omp parallel num_threads(call.threads) reduction(+ : total)
  {
    Lanes sum = {};
    const Gather mine = call;
    queue.each([&](int64_t block) {
      const int64_t first = block * block_edges, last = std::min(first + block_edges, mine.edges);
      const int64_t ahead = last + mine.ahead <= mine.edges ? mine.ahead : 0;
      for (int64_t edge = first; edge < last; ++edge) {
        Row::prefetch(mine, mine.rows + mine.indices[edge + ahead] * mine.stride);
        sum = Row::add(mine, mine.rows + mine.indices[edge] * mine.stride, sum);
      }
    });
    total += both(sum);
  }
  return total;
}

}  // namespace

uint64_t gather(const Gather& call) {
  const bool whole = reinterpret_cast<uintptr_t>(call.rows) % line == 0 && call.stride % line == 0;
  switch (whole ? (call.row_bytes + line - 1) / line : 0) {
    case 1: return gather_as<Whole<1>>(call);
    case 2: return gather_as<Whole<2>>(call);
    case 4: return gather_as<Whole<4>>(call);
    case 8: return gather_as<Whole<8>>(call);
    case 16: return gather_as<Whole<16>>(call);
    case 32: return gather_as<Whole<32>>(call);
    default: return gather_as<Any>(call);
  }
}

}  // namespace mgg
