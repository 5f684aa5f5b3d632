// Dropout, several Philox counters at a time: the loops over lanes become vector instructions. This file is compiled
// once for each instruction set (MGG_ISA).
#include "random_host.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "mgg/semantics.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int lanes = 16;

// Counters of the next draws, and what they gave.
struct Batch {
  uint32_t quad[lanes], low[lanes], high[lanes];
  uint32_t word[4][lanes];

  void set(int lane, uint64_t node, int64_t column_quad) {
    quad[lane] = static_cast<uint32_t>(column_quad);
    low[lane] = static_cast<uint32_t>(node);
    high[lane] = static_cast<uint32_t>(node >> 32);
  }
  void draw_all(const Stream& s) {
#pragma omp simd
    for (int i = 0; i < lanes; ++i) {
      const Philox words = draw(s.seed, s.epoch, s.stream, uint64_t(high[i]) << 32 | low[i], quad[i]);
      word[0][i] = words.word[0], word[1][i] = words.word[1];
      word[2][i] = words.word[2], word[3][i] = words.word[3];
    }
  }
};

// word >= threshold ? scaled : 0, by a mask: what is dropped cannot be predicted, and a branch costs four times all
// the rest.
template <class T>
inline T kept_or_zero(uint32_t word, uint32_t threshold, T scaled) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  Bits bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  bits &= Bits(0) - Bits(word >= threshold);
  std::memcpy(&scaled, &bits, sizeof bits);
  return scaled;
}

template <class T>
void rows_between(const DropoutRows<T>& call, int64_t first, int64_t last) {
  const uint32_t threshold = dropout_threshold(call.p);
  const T scale = static_cast<T>(1.0 / (1.0 - call.p));
  const int64_t quads = (call.columns + 3) / 4;
  Batch batch{};
  for (int64_t at = first * quads, end = last * quads; at < end; at += lanes) {
    const int count = static_cast<int>(std::min<int64_t>(lanes, end - at));
    int64_t row = at / quads, quad = at % quads;
    const int64_t first_row = row, first_quad = quad;
    for (int i = 0; i < count; ++i) {
      batch.set(i, static_cast<uint64_t>(call.node[row]), quad);
      if (++quad == quads) quad = 0, ++row;
    }
    batch.draw_all(call.stream);
    row = first_row, quad = first_quad;
    for (int i = 0; i < count; ++i) {
      const T* x = call.x + row * call.x_stride + quad * 4;
      T* out = call.out + row * call.out_stride + quad * 4;
      const int width = static_cast<int>(std::min<int64_t>(4, call.columns - quad * 4));
      if (width == 4) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) out[k] = kept_or_zero(batch.word[k][i], threshold, x[k] * scale);
      } else {
        for (int k = 0; k < width; ++k) out[k] = kept_or_zero(batch.word[k][i], threshold, x[k] * scale);
      }
      if (++quad == quads) quad = 0, ++row;
    }
  }
}

template <class T>
void values_of_rows(const DropoutCsr<T>& call, int64_t first, int64_t last) {
  const uint32_t threshold = dropout_threshold(call.p);
  const T scale = static_cast<T>(1.0 / (1.0 - call.p));
  Batch batch{};
  int64_t row = first;
  for (int64_t at = call.indptr[first], end = call.indptr[last]; at < end; at += lanes) {
    const int count = static_cast<int>(std::min<int64_t>(lanes, end - at));
    for (int i = 0; i < count; ++i) {
      while (at + i >= call.indptr[row + 1]) ++row;
      batch.set(i, static_cast<uint64_t>(call.node[row]), call.index[at + i] >> 2);
    }
    batch.draw_all(call.stream);
    for (int i = 0; i < count; ++i) {
      const uint32_t word = batch.word[call.index[at + i] & 3][i];
      call.out[at + i] = kept_or_zero(word, threshold, call.value[at + i] * scale);
    }
  }
}

// Rows are divided evenly: what a value becomes does not depend on who computes it.
template <class Call, class Body>
void in_parts(const Call& call, Body body) {
  const int64_t part = std::max<int64_t>(64, (call.rows + 8 * call.threads - 1) / (8 * call.threads));
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads) if (call.threads > 1)
  for (int64_t first = 0; first < call.rows; first += part) body(call, first, std::min(first + part, call.rows));
}

}  // namespace

void dropout(const DropoutRows<float>& call) { in_parts(call, rows_between<float>); }
void dropout(const DropoutRows<double>& call) { in_parts(call, rows_between<double>); }
void dropout(const DropoutCsr<float>& call) { in_parts(call, values_of_rows<float>); }
void dropout(const DropoutCsr<double>& call) { in_parts(call, values_of_rows<double>); }

}  // namespace MGG_ISA
}  // namespace mgg
