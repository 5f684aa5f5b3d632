// Arguments of the GPU kernels' bindings.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "gpu/halo_plan.h"
#include "gpu/kernels.h"
#include "python/bindings.h"

// Parts of the module _cuda.
void bind_device(nanobind::module_& module);
void bind_nvshmem(nanobind::module_& module);
void bind_edges(nanobind::module_& module, nanobind::class_<mgg::DevicePlan>& plan);
void bind_traversal(nanobind::module_& module);

namespace mgg {
namespace python {

// A launch may wait: for memory, or for a kernel that waits for another PE. Meanwhile other Python threads run, such as
// a watchdog's.
using Released = nanobind::call_guard<nanobind::gil_scoped_release>;

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// Which kernel, and how it is launched.
struct LaunchShape {
  Shape shape;
  int blocks, threads;
  int64_t shared_bytes;
  uint64_t stream;
  gpu::Launch configuration(gpu::Blocks together = gpu::Blocks::in_turn) const {
    return {blocks, threads, shared_bytes, at<void>(stream), together};
  }
};

struct Rows {
  Flat<const uint64_t> addresses;  // row 0 on each PE; 0: no pointer reaches it
  int64_t dim;
};

// The reduction of rows and its epilogue. Arrays are addresses, 0 for those that are left out.
struct Sum {
  std::string reduce;
  uint64_t weight, out, scale, bias;
  bool relu;
};

struct Get {
  int near_ps, far_ps, dist;
  uint64_t mine, staging, channels;
  int channel_count;
};

struct Halo {
  int pushers, claim, slots;
  int64_t fixed;
  bool alone, holds;
  HaloStamps stamps;
  gpu::Launch configuration(const LaunchShape& launch) const {
    gpu::Launch made = launch.configuration(alone ? gpu::Blocks::cooperative : gpu::Blocks::resident);
    made.shared_bytes = halo_bytes(launch.threads);
    return made;
  }
  template <class S>
  void make_room(DeviceExchange& exchange, const LaunchShape& launch) const {
    const Shape& shape = launch.shape;
    exchange.make_room(int64_t(launch.blocks) * launch.threads / shape.lanes, slots,
                       int64_t(shape.lanes) * shape.packs * 16 / int64_t(sizeof(S)));
  }
};

template <class S>
int64_t row_bytes(int64_t dim) {
  return padded_stride(dim, sizeof(S)) * static_cast<int64_t>(sizeof(S));
}
template <class S>
const S* const* typed(const void* const* sources) {
  return reinterpret_cast<const S* const*>(sources);
}

inline int64_t passes(int64_t row_bytes, const Shape& shape) {
  const int64_t held = int64_t(shape.lanes) * shape.packs * 16;
  return (row_bytes + held - 1) / held;
}

// All but the tasks, and where rows are.
template <class S>
void fill(DeviceAggregation<S>& call, DevicePlan& plan, int64_t dim, const Sum& sum, const Shape& shape) {
  const int64_t stride = padded_stride(dim, sizeof(S));
  call.hubs = plan.device_tasks().hubs(), call.counters = plan.counters();
  call.pending = plan.pending(passes(row_bytes<S>(dim), shape)), call.partials = plan.partials(stride);
  call.degree = plan.degree(), call.indices = plan.indices();
  call.weight = at<float>(sum.weight), call.out = at<S>(sum.out), call.scale = at<float>(sum.scale);
  call.bias = at<float>(sum.bias), call.dim = dim, call.stride = stride;
  call.mean = sum.reduce == "mean", call.relu = sum.relu;
}

template <class S>
DeviceGetCall<S> get_call(DevicePlan& plan, int64_t dim, const Sum& sum, const Get& get,
                          const DevicePlan::Sources& sources, const Shape& shape) {
  DeviceGetCall<S> call{plan.call<DeviceAggregation<S>>(), {}};
  fill(call.sum, plan, dim, sum, shape);
  call.sum.sources = typed<S>(sources.rows.as<const void*>()), call.sum.link = sources.links.as<int32_t>();
  call.get = {{0, get.near_ps, get.far_ps}, get.dist, plan.owners(), at<char>(get.mine), at<char>(get.staging),
              at<int32_t>(get.channels), get.channel_count};
  return call;
}

template <class S>
DeviceHaloCall<S> halo_call(DevicePlan& plan, uint64_t rows, int64_t dim, const Sum& sum, DeviceExchange& exchange,
                            const DeviceHaloSchedule& schedule, const Halo& halo, const LaunchShape& launch) {
  DeviceHaloCall<S> call{};
  schedule.tasks().fill(call.sum);
  fill(call.sum, plan, dim, sum, launch.shape);
  call.sum.hubs = schedule.tasks().hubs();
  halo.make_room<S>(exchange, launch);
  exchange.fill(call.halo);
  schedule.fill(call.halo);
  call.halo.rows = at<char>(rows), call.halo.row_bytes = row_bytes<S>(dim);
  call.halo.pushers = halo.pushers, call.halo.claim = halo.claim, call.halo.fixed = halo.fixed;
  call.halo.stamps = halo.stamps, call.halo.holds = halo.holds;
  return call;
}

}  // namespace python
}  // namespace mgg
