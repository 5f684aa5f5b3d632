// Dropout and uniform draws on the cores of one host. The draws depend on (seed, epoch, stream, node, column) alone.
#pragma once
#include <algorithm>

#include "mgg/semantics.h"

namespace mgg {

struct Stream {
  uint64_t seed;
  uint32_t epoch, stream;
};

// out[i, c] = x[i, c] / (1 - p) where the draw of (node[i], c) keeps it, else 0. May work in place.
template <class T>
void dropout_rows(const T* x, int64_t x_stride, T* out, int64_t out_stride, const int64_t* node, int64_t rows,
                  int64_t columns, double p, Stream s, int threads) {
  const uint32_t threshold = dropout_threshold(p);
  const T scale = static_cast<T>(1.0 / (1.0 - p));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t quad = 0; quad * 4 < columns; ++quad) {
      const Philox words = draw(s.seed, s.epoch, s.stream, static_cast<uint64_t>(node[i]), quad);
      const int64_t last = std::min<int64_t>(4, columns - quad * 4);
      for (int64_t k = 0; k < last; ++k) {
        const int64_t c = quad * 4 + k;
        out[i * out_stride + c] = words.word[k] >= threshold ? x[i * x_stride + c] * scale : T(0);
      }
    }
}

// The same for the stored values of CSR rows: out[e] for value[e] in column index[e] of its row.
template <class T>
void dropout_csr(const int64_t* indptr, const int32_t* index, const T* value, T* out, const int64_t* node,
                 int64_t rows, double p, Stream s, int threads) {
  const uint32_t threshold = dropout_threshold(p);
  const T scale = static_cast<T>(1.0 / (1.0 - p));
#pragma omp parallel for schedule(dynamic, 256) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t e = indptr[i]; e < indptr[i + 1]; ++e) {
      const Philox words = draw(s.seed, s.epoch, s.stream, static_cast<uint64_t>(node[i]), index[e] >> 2);
      out[e] = words.word[index[e] & 3] >= threshold ? value[e] * scale : T(0);
    }
}

template <class T>
void uniform_rows(T* out, int64_t rows, int64_t columns, double low, double high, Stream s) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < columns; ++c) {
      const Philox words = draw(s.seed, s.epoch, s.stream, i, c >> 2);
      out[i * columns + c] = static_cast<T>(low + (high - low) * unit_interval(words.word[c & 3]));
    }
}

}  // namespace mgg
