#include "bench/studies.h"

#include "gpu/shapes.h"
#include "gpu/sums/get.cuh"
#include "gpu/sums/halo.cuh"

namespace mgg {
namespace studies {
namespace {

template <int LANES, int PACKS, bool LATE>
MGG_KERNEL void study_get(DeviceGetCall<float> call) {
  GetWorker<float, DeviceSum, LANES, PACKS, false, LATE> worker(call);
  worker.start();
  worker.sum_all();
}

// Own rows leave first, and then each chunk that has arrived, in the order in which they arrive. All chunks have as
// many rows as the first one, but the last of each partition.
struct RingRows {
  int64_t own_rows;
  template <class Exchange>
  MGG_DEVICE bool own(const Exchange& exchange, int32_t at) const {
    return exchange.halo.pushes[at].first < own_rows;
  }
  // By one thread: until the chunk is there, whose signal is numbered as it arrives.
  template <class Exchange>
  MGG_DEVICE void await(const Exchange& exchange, int32_t at) const {
    if (own(exchange, at)) return;
    const int64_t most = exchange.halo.pushes[0].rows;
    exchange.await(at - static_cast<int32_t>((own_rows + most - 1) / most), exchange.call);
  }
  template <class Exchange>
  MGG_DEVICE const char* of(const Exchange& exchange, int32_t at) const {
    return own(exchange, at) ? exchange.halo.rows : exchange.halo.staging + exchange.staging_offset();
  }
};

struct RingCall {
  DeviceHaloCall<float> halo;
  RingRows rows;
};

template <int LANES, int PACKS>
MGG_KERNEL_OF((halo_registers<float, PACKS, false>())) void study_ring(RingCall call) {
  using Exchange = HaloProtocol<false, RingRows>;
  push_and_sum<float, DeviceSum, LANES, PACKS>(call.halo.sum, Exchange(call.halo.halo, call.rows));
}

template <bool LATE>
void (*get_of(const Shape& shape))(DeviceGetCall<float>) {
  if (shape.lanes == 1 && shape.packs == 1) return study_get<1, 1, LATE>;
  if (shape.lanes == 256 && shape.packs == 1) return study_get<256, 1, LATE>;
  return of_shape(shape, [](auto size) -> void (*)(DeviceGetCall<float>) {
    return study_get<decltype(size)::lanes, decltype(size)::packs, LATE>;
  });
}
void (*get_of(bool late, const Shape& shape))(DeviceGetCall<float>) {
  return late ? get_of<true>(shape) : get_of<false>(shape);
}
void (*ring_of(const Shape& shape))(RingCall) {
  return of_shape(shape, [](auto size) -> void (*)(RingCall) {
    return study_ring<decltype(size)::lanes, decltype(size)::packs>;
  });
}

}  // namespace

void get(const DeviceGetCall<float>& call, bool late, const Shape& shape, const gpu::Launch& launch) {
  gpu::launch(get_of(late, shape), call, launch);
}
gpu::Occupancy get_occupancy(bool late, const Shape& shape, int threads, int64_t shared_bytes) {
  return gpu::occupancy(get_of(late, shape), threads, shared_bytes);
}

void ring(const DeviceHaloCall<float>& call, int64_t own_rows, const Shape& shape, const gpu::Launch& launch) {
  gpu::launch(ring_of(shape), RingCall{call, {own_rows}}, launch);
}
gpu::Occupancy ring_occupancy(const Shape& shape, int threads, int64_t shared_bytes) {
  return gpu::occupancy(ring_of(shape), threads, shared_bytes);
}

}  // namespace studies
}  // namespace mgg
