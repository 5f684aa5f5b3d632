// Dropout, several Philox counters at a time: the loops over lanes become vector instructions. This file is compiled
// once for each instruction set (MGG_ISA).
#include "cpu/random.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/philox.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int lanes = 32;

// Calls body(first, count, row, quad) for each run of draws first .. first + count - 1 that are of one row, from its
// quad on; the first draw is number `at` of all rows'.
template <class Body>
inline void each_run(int64_t at, int total, int64_t quads, Body body) {
  int64_t row = at / quads, quad = at % quads;
  for (int first = 0, count; first < total; first += count, quad = 0, ++row) {
    count = static_cast<int>(std::min<int64_t>(total - first, quads - quad));
    body(first, count, row, quad);
  }
}

// Returns word >= threshold ? scaled : 0, by a mask: a branch cannot be predicted, and would take four times as long as
// all the rest.
template <class T>
inline T kept_or_zero(uint32_t word, uint32_t threshold, T scaled) {
  using Whole = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  Whole bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  bits &= Whole(0) - Whole(word >= threshold);
  std::memcpy(&scaled, &bits, sizeof bits);
  return scaled;
}

template <class T>
void rows_between(const DropoutRows<T>& call, int64_t first, int64_t last) {
  const uint32_t threshold = dropout_threshold(call.p);
  const auto scale = static_cast<Accumulator<T>>(1.0 / (1.0 - call.p));
  const int64_t quads = (call.columns + 3) / 4;
  const uint32_t epoch = call.stream.epoch, stream = call.stream.stream;
  Counters<lanes> batch;
  for (int64_t at = first * quads, end = last * quads; at < end; at += lanes) {
    const int total = static_cast<int>(std::min<int64_t>(lanes, end - at));
    each_run(at, total, quads, [&](int draw, int count, int64_t row, int64_t quad) {
      const auto node = static_cast<uint64_t>(call.node[row]);
#pragma omp simd
      for (int i = 0; i < count; ++i) batch.set(draw + i, node_counter(epoch, stream, node, quad + i));
    });
    batch.draw(total, call.stream.seed);
    each_run(at, total, quads, [&](int draw, int count, int64_t row, int64_t quad) {
      const T* x = call.x + row * call.x_stride + quad * 4;
      T* out = call.out + row * call.out_stride + quad * 4;
      const uint32_t* word = batch.word + 4 * draw;
      const int width = static_cast<int>(std::min<int64_t>(4 * count, call.columns - quad * 4));
#pragma omp simd
      for (int k = 0; k < width; ++k) narrow(kept_or_zero(word[k], threshold, widen(x[k]) * scale), out[k]);
    });
  }
}

template <class T>
void values_of_rows(const DropoutCsr<T>& call, int64_t first, int64_t last) {
  const uint32_t threshold = dropout_threshold(call.p);
  const T scale = static_cast<T>(1.0 / (1.0 - call.p));
  const uint32_t epoch = call.stream.epoch, stream = call.stream.stream;
  Counters<lanes> batch;
  int64_t row = first;
  for (int64_t at = call.indptr[first], end = call.indptr[last]; at < end; at += lanes) {
    const int count = static_cast<int>(std::min<int64_t>(lanes, end - at));
    for (int i = 0; i < count; ++i) {
      while (at + i >= call.indptr[row + 1]) ++row;
      batch.set(i, node_counter(epoch, stream, static_cast<uint64_t>(call.node[row]), call.index[at + i] >> 2));
    }
    batch.draw(count, call.stream.seed);
    for (int i = 0; i < count; ++i) {
      const uint32_t word = batch.word[4 * i + (call.index[at + i] & 3)];
      call.out[at + i] = kept_or_zero(word, threshold, call.value[at + i] * scale);
    }
  }
}

// Divides rows evenly among threads; values do not depend on the thread that computes them.
template <class Call, class Body>
void in_parts(const Call& call, Body body) {
  const int64_t part = std::max<int64_t>(64, (call.rows + 8 * call.threads - 1) / (8 * call.threads));
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads) if (call.threads > 1)
  for (int64_t first = 0; first < call.rows; first += part) body(call, first, std::min(first + part, call.rows));
}

}  // namespace

void dropout(const DropoutRows<float>& call) { in_parts(call, rows_between<float>); }
void dropout(const DropoutRows<double>& call) { in_parts(call, rows_between<double>); }
void dropout(const DropoutRows<Float16>& call) { in_parts(call, rows_between<Float16>); }
void dropout(const DropoutRows<BFloat16>& call) { in_parts(call, rows_between<BFloat16>); }
void dropout(const DropoutCsr<float>& call) { in_parts(call, values_of_rows<float>); }
void dropout(const DropoutCsr<double>& call) { in_parts(call, values_of_rows<double>); }

}  // namespace MGG_ISA
}  // namespace mgg
