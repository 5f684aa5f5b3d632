// The calls of cuSPARSE that the benchmark makes, with its signatures, over host memory: float32 and half rows.
#include <cstdint>
#include <vector>

#include "mgg/half.h"

namespace {

struct Csr {
  int64_t rows, columns, edges;
  const int32_t *offsets, *indices;
  const void* values;
  int type;
};
struct Dense {
  int64_t rows, columns, stride;
  void* values;
  int type;
};
constexpr int float32 = 0, float16 = 2, bfloat16 = 14, index32 = 2, row_order = 2, csr_alg2 = 6;
int prepared = 0;

float load(const void* from, int64_t at, int type) {
  if (type == float32) return static_cast<const float*>(from)[at];
  if (type == float16) return mgg::widen(static_cast<const mgg::Float16*>(from)[at]);
  return mgg::widen(static_cast<const mgg::BFloat16*>(from)[at]);
}
void store(void* to, int64_t at, int type, float value) {
  if (type == float32) static_cast<float*>(to)[at] = value;
  if (type == float16) mgg::narrow(value, static_cast<mgg::Float16*>(to)[at]);
  if (type == bfloat16) mgg::narrow(value, static_cast<mgg::BFloat16*>(to)[at]);
}

bool sound(int a, int b, const void* one, const void* zero, int compute, int algorithm) {
  return a == 0 && b == 0 && *static_cast<const float*>(one) == 1 && *static_cast<const float*>(zero) == 0 &&
         compute == float32 && algorithm == csr_alg2;
}

}  // namespace

extern "C" {

int cusparseCreate(void** handle) { return *handle = &prepared, 0; }
int cusparseSetStream(void* handle, void*) { return handle != &prepared; }
int cusparseCreateCsr(void** made, int64_t rows, int64_t columns, int64_t edges, void* offsets, void* indices,
                      void* values, int offsets_type, int indices_type, int base, int type) {
  *made = new Csr{rows, columns, edges, static_cast<int32_t*>(offsets), static_cast<int32_t*>(indices), values, type};
  return offsets_type != index32 || indices_type != index32 || base != 0;
}
int cusparseCreateDnMat(void** made, int64_t rows, int64_t columns, int64_t stride, void* values, int type,
                        int order) {
  *made = new Dense{rows, columns, stride, values, type};
  return order != row_order || stride < columns;
}
int cusparseSpMM_bufferSize(void*, int a, int b, const void* one, const Csr*, const Dense*, const void* zero,
                            const Dense*, int compute, int algorithm, size_t* bytes) {
  *bytes = 64;
  return !sound(a, b, one, zero, compute, algorithm);
}
int cusparseSpMM_preprocess(void*, int a, int b, const void* one, const Csr*, const Dense*, const void* zero,
                            const Dense*, int compute, int algorithm, void* buffer) {
  ++prepared;
  return !buffer || !sound(a, b, one, zero, compute, algorithm);
}
int cusparseSpMM(void*, int a, int b, const void* one, const Csr* m, const Dense* x, const void* zero, const Dense* out,
                 int compute, int algorithm, void* buffer) {
  if (!prepared || !buffer || !sound(a, b, one, zero, compute, algorithm)) return 3;
  for (int64_t row = 0; row < m->rows; ++row) {
    std::vector<float> sum(x->columns);
    for (int32_t e = m->offsets[row]; e < m->offsets[row + 1]; ++e)
      for (int64_t c = 0; c < x->columns; ++c)
        sum[c] += load(m->values, e, m->type) * load(x->values, m->indices[e] * x->stride + c, x->type);
    for (int64_t c = 0; c < x->columns; ++c) store(out->values, row * out->stride + c, out->type, sum[c]);
  }
  return 0;
}
}
