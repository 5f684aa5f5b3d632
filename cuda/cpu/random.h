// Dropout on the cores of one host. Draws depend on (seed, epoch, stream, node, column) alone.
#pragma once
#include <cstdint>

#include "mgg/half.h"

namespace mgg {

struct Stream {
  uint64_t seed;
  uint32_t epoch, stream;
};

// out[i, c] = x[i, c] / (1 - p) where the draw of (node[i], c) keeps it, else 0. May work in place. Halves are scaled
// as float32.
template <class T>
struct DropoutRows {
  const T* x;
  T* out;
  int64_t x_stride, out_stride;  // values between rows
  const int64_t* node;
  int64_t rows, columns;
  double p;
  Stream stream;
  int threads;
};

// The same for the stored values of CSR rows: out[e] for value[e], in column index[e] of its row.
template <class T>
struct DropoutCsr {
  const int64_t* indptr;
  const int32_t* index;
  const T* value;
  T* out;
  const int64_t* node;
  int64_t rows;
  double p;
  Stream stream;
  int threads;
};

#define MGG_DECLARE(isa)                      \
  namespace isa {                             \
  void dropout(const DropoutRows<float>&);    \
  void dropout(const DropoutRows<double>&);   \
  void dropout(const DropoutRows<Float16>&);  \
  void dropout(const DropoutRows<BFloat16>&); \
  void dropout(const DropoutCsr<float>&);     \
  void dropout(const DropoutCsr<double>&);    \
  }
MGG_DECLARE(baseline)
MGG_DECLARE(avx2)
MGG_DECLARE(avx512)
#undef MGG_DECLARE

}  // namespace mgg
