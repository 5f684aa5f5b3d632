// The structs that Python builds (NumPy structured arrays) and kernels read.
// mgg_hpc/plan/layout.py declares the same fields; the sizes are compared when the extension is imported.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mgg {

// A run of source rows that becomes readable together.
struct Chunk {
  enum Kind : int32_t { owned = 0, direct = 1, halo = 2, streamed = 3 };
  int32_t kind;
  int32_t pe;             // whose memory the rows are read from
  int64_t first_row;      // the chunk's row 0 is this row of that memory (halo: of the staging; streamed: of the store)
  int64_t rows;           // valid indices into the chunk are 0 .. rows - 1
  int64_t first_segment;  // its segments are contiguous, ordered by destination
  int64_t segments;
};

// Edges of one destination into one chunk: all of them in a plan, and in a schedule as many as one worker takes.
struct Segment {
  int64_t first_edge;   // into the plan's indices and weights
  int32_t destination;  // local row of the output
  int32_t count;        // edges; 0 for a destination without any
  int32_t chunk;
  int32_t flags;  // of the schedule that holds it
};

// A chunk of a store that streams past, in the order in which kernels want them.
struct Step {
  int64_t first_row;  // of the store
  int64_t rows;
  int32_t slot;   // where the rows lie
  int32_t loads;  // 1: they are brought there; 0: they are there since an earlier step
};

static_assert(sizeof(Step) == 24 && offsetof(Step, loads) == 20, "Step is shared with Python");
static_assert(sizeof(Chunk) == 40 && offsetof(Chunk, segments) == 32, "Chunk is shared with Python");
static_assert(sizeof(Segment) == 24 && offsetof(Segment, chunk) == 16, "Segment is shared with Python");

// Rows are stored padded to 16 bytes, so that vector loads work at any width.
constexpr int64_t row_alignment = 16;

constexpr int64_t padded_stride(int64_t dim, int64_t item_bytes) {
  return (dim * item_bytes + row_alignment - 1) / row_alignment * row_alignment / item_bytes;
}

}  // namespace mgg
