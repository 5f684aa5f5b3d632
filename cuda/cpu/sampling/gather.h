// Rows by their numbers: of a table in several kinds of memory, and of a CSR matrix.
#pragma once
#include <cstdint>

#include "runtime/transport_host.h"

namespace mgg {

// Slots first .. end - 1 of a table, which lie on PEs in turn: slot s is row (s - first) / count of
// pes[(s - first) % count].
struct Tier {
  int64_t first, end;
  int64_t count;              // of PEs; times end - first, it is less than 2^63
  const uint64_t* addresses;  // [count], of each PE's row 0; 0 where no pointer reaches it
  const int64_t* pes;         // [count]
  int64_t row_bytes;          // from one row to the next
  const char* mine;           // this PE's counterpart of the rows that are got, or null
};

// Slots first .. end - 1 in a file, one after another from `offset` on.
struct FileTier {
  int64_t first, end;
  int descriptor;
  int64_t offset;
};

// Rows in several kinds of memory, by slots 0 .. file.end - 1: row r is in slot slots[r], or in r where there are no
// slots.
struct Table {
  int64_t rows, bytes;        // number of rows, and bytes of each
  const int32_t* slots;       // [rows], or null
  const int64_t* wide_slots;  // the same, or null
  const Tier* tiers;          // [tier_count], one after another
  int64_t tier_count;
  FileTier file;  // after all tiers
  int rank;
  Transport* transport;  // gets rows that no pointer reaches, or null
};

// out[i] = row ids[i].
struct RowGather {
  const Table& table;
  const int64_t* ids;  // [count]
  int64_t count;
  char* out;
  int64_t out_bytes;  // from one row of `out` to the next
  int threads;
};

// A call of the file that failed: errno, 0 where it ends before the row; and the first slot of those, or -1.
struct FileFault {
  int64_t slot;
  int error;
};

// Numbers of rows that were read from this PE's own memory, and of those that were got.
struct RowsRead {
  int64_t own, got;
  FileFault fault;
};

struct RowCopies;

// Sets read[t] [tier_count + 1] to the number of rows of each tier, the file's last. copy: the copy_rows (copy_rows.h)
// of an instruction set. Rows of the file are read by threads of their own, in order and joined, while others are
// copied. Throws std::out_of_range for a number that is no row, before anything is written, and std::invalid_argument
// for rows out of reach, and slots that are not there.
RowsRead gather_rows(const RowGather& call, void (*copy)(const RowCopies&), int64_t* read);

// Row ids[i] = rows [count], row_bytes apart; of equal numbers the last. Writes in place where a pointer reaches, and to
// the file by threads; returns the first row of it that could not be written. Throws std::out_of_range for a number that
// is no row, before anything is written, and std::invalid_argument for rows that no pointer reaches.
FileFault update_rows(const Table& table, const int64_t* ids, int64_t count, const char* rows, int64_t row_bytes);

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
