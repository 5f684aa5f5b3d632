// Rows by their numbers: of all ranks' features, and of a CSR matrix.
#pragma once
#include <cstdint>

#include "runtime/transport_host.h"

namespace mgg {

// out[i] = row ids[i], where PE p's rows are numbered bounds[p] .. bounds[p + 1] - 1.
struct RowGather {
  const int64_t* ids;  // [count]
  int64_t count;
  const int64_t* bounds;      // [pes + 1]
  const uint64_t* addresses;  // [pes], of each PE's row 0; 0 where no pointer reaches it
  int pes, rank;
  int64_t row_bytes;  // from one row to the next, here and in `out`; a multiple of 16
  char* out;
  Transport* transport;  // gets rows that no pointer reaches; they lie on their PE at this PE's own address
  int threads;
};

// Numbers of rows that were read from this PE and from others, and of those that were got.
struct RowsRead {
  int64_t local, remote, got;
};

// Throws std::invalid_argument for a number outside the bounds, before anything is written.
RowsRead gather_rows(const RowGather& call);

// Rows that lie in several kinds of memory, by slots 0 .. end - 1; slots first .. end - 1 of a tier are alternately on its
// PEs, one after another: slot s is row (s - first) / pes of PE (s - first) % pes.
struct Tier {
  int64_t first, end;
  const uint64_t* addresses;  // [pes], of each PE's row 0
  int64_t pes;
  int64_t row_bytes;  // from one row to the next
};

// Slots first .. end - 1 in a file, one after another from `offset` on.
struct FileTier {
  int64_t first, end;
  int descriptor;
  int64_t offset;
};

// out[i] = row ids[i] in slot slots[ids[i]], or ids[i] where there are no slots.
struct TieredGather {
  const int64_t* ids;  // [count]
  int64_t count, rows;
  const int32_t* slots;  // [rows], or null
  const int64_t* wide_slots;  // the same, or null
  const Tier* tiers;
  int64_t tier_count;
  FileTier file;       // after all tiers
  int64_t bytes;       // of a row
  char* out;
  int64_t out_bytes;   // from one row of `out` to the next
  int threads;
};

// A read that failed: errno, 0 where the file ends before the row; and the first slot that was not read, or -1.
struct FileFault {
  int64_t slot;
  int error;
};

// Sets read[t] [tier_count + 1] to the number of rows of each tier, the file's last. Rows of the file are read by
// threads of their own, in order and joined, while others are copied. Throws std::out_of_range for a number that is no row,
// before anything is written.
FileFault gather_tiers(const TieredGather& call, int64_t* read);

// A CSR matrix: row r's values are indptr[r] .. indptr[r + 1] - 1.
template <class T>
struct Csr {
  const int64_t* indptr;  // [rows + 1]
  int64_t rows, stored;
  const int32_t* indices;  // [stored]
  const T* values;
};

// Sets out_indptr [count + 1] to the first positions of the rows `rows` [count] when they are concatenated. Throws
// std::invalid_argument for a row that is not there, and for an indptr that does not ascend within the stored values.
void csr_offsets(const int64_t* indptr, int64_t all_rows, int64_t stored, const int64_t* rows, int64_t count,
                 int64_t* out_indptr);

// Copies indices and values of the rows `rows` [count] to where out_indptr says, `room` values in all. Throws
// std::invalid_argument if out_indptr is not the result of csr_offsets.
template <class T>
void gather_csr(const Csr<T>& matrix, const int64_t* rows, int64_t count, const int64_t* out_indptr, int64_t room,
                int32_t* out_indices, T* out_values, int threads);

}  // namespace mgg
