// The least that a sum over neighbours' rows costs on this machine: what it must read, and nothing else.
#pragma once
#include <cstdint>

namespace mgg {

struct Gather {
  const int32_t* indices;  // a row each, in the order in which they are read
  int64_t edges;
  const char* rows;  // row 0, aligned to 16 bytes
  int64_t stride;    // bytes from one row to the next, a multiple of 16
  int64_t row_bytes;
  int ahead;  // rows are prefetched this many edges before they are read
  int threads;
};

// Returns a sum of what was read, modulo 2^64: the first 8 and the next 8 bytes of each cache line (of a row
// that begins within a line: its first 16 bytes).
uint64_t gather(const Gather& call);

}  // namespace mgg
