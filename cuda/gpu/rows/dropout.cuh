// Dropout by the same draws as on the host (cpu/random.cpp): a lane takes the columns of 16 bytes, and draws four
// columns at a time.
#pragma once
#include <cstring>

#include "gpu/rows/rng_key.cuh"
#include "mgg/half.h"
#include "mgg/semantics.h"
#include "gpu/worker.cuh"

namespace mgg {

template <class S>
MGG_DEVICE S kept_or_zero(uint32_t word, const RngKey& key, S value) {
  narrow(word >= key.threshold ? widen(value) * key.scale : 0.0f, value);
  return value;
}

template <class S, int LANES>
MGG_KERNEL void dropout_rows(DeviceDropout<S> call) {
  constexpr int values = 16 / static_cast<int>(sizeof(S));
  const Worker<LANES> worker;
  const RngKey& key = call.key;
  const uint32_t epoch = epoch_of(key);
  for (int64_t row = worker.number(); row < call.rows; row += worker.workers()) {
    const uint64_t node = static_cast<uint64_t>(call.node[row]);
    for (int64_t first = worker.lane * values; first < call.columns; first += LANES * values) {
      uint32_t word[values];
#pragma unroll
      for (int q = 0; q < values / 4; ++q) {
        const Philox four = draw(key.seed, epoch, key.stream, node, static_cast<uint64_t>(first / 4 + q));
#pragma unroll
        for (int i = 0; i < 4; ++i) word[4 * q + i] = four.word[i];
      }
      const S* x = call.x + row * call.x_stride + first;
      S* out = call.out + row * call.out_stride + first;
      if (call.packs && first + values <= call.columns) {
        device::Pack pack = device::load_pack(x);
        S held[values];
        memcpy(held, &pack, sizeof held);
#pragma unroll
        for (int i = 0; i < values; ++i) held[i] = kept_or_zero(word[i], key, held[i]);
        memcpy(&pack, held, sizeof held);
        device::store_pack(out, pack);
      } else {
#pragma unroll
        for (int i = 0; i < values; ++i)
          if (first + i < call.columns) out[i] = kept_or_zero(word[i], key, x[i]);
      }
    }
  }
}

constexpr int dropout_csr_lanes = 8;

MGG_KERNEL void dropout_csr(DeviceDropoutCsr call) {
  const Worker<dropout_csr_lanes> worker;
  const RngKey& key = call.key;
  const uint32_t epoch = epoch_of(key);
  for (int64_t row = worker.number(); row < call.rows; row += worker.workers()) {
    const uint64_t node = static_cast<uint64_t>(call.node[row]);
    for (int64_t at = call.indptr[row] + worker.lane; at < call.indptr[row + 1]; at += dropout_csr_lanes) {
      const int32_t column = call.index[at];
      const Philox four = draw(key.seed, epoch, key.stream, node, static_cast<uint64_t>(column >> 2));
      // Chosen one by one: an array that is indexed by a variable would take a stack.
      const uint32_t low = column & 1 ? four.word[1] : four.word[0], high = column & 1 ? four.word[3] : four.word[2];
      call.out[at] = kept_or_zero(column & 2 ? high : low, key, call.value[at]);
    }
  }
}

}  // namespace mgg
