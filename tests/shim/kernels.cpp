// The GPU kernels under the shim, as C functions for test_direct.py. They return 0, or -1 and say why.
#include <cstdio>
#include <cstring>
#include <exception>

#include "aggregate.cuh"
#include "schedule_host.h"

namespace {

struct Call {
  const mgg::Chunk* chunks;
  const mgg::Segment* segments;
  const int32_t* indices;
  int64_t chunk_count, segment_count, edges, destinations, part_edges, rank;
  const void* const* rows;  // of each PE
  const float *weight, *scale, *bias;
  void* out;
  int64_t dim;
  int32_t type, reduce, relu;  // float32, float16, bfloat16; as mgg::Reduce
  int32_t lanes, packs, blocks, threads;
  uint64_t seed;
};

template <class S, class R, int LANES, int PACKS>
void run_as(const mgg::DeviceAggregation<S>& call, const Call& asked) {
  mgg::shim::run({asked.blocks, asked.threads, int(mgg::ring_bytes(asked.threads, PACKS)), asked.seed},
                 [&] { mgg::aggregate_direct<S, R, LANES, PACKS>(call); });
}

template <class S, class R>
void run_with(const mgg::DeviceAggregation<S>& call, const Call& asked) {
  if (asked.packs == 1 && asked.lanes == 4) return run_as<S, R, 4, 1>(call, asked);
  if (asked.packs == 1 && asked.lanes == 8) return run_as<S, R, 8, 1>(call, asked);
  if (asked.packs == 1 && asked.lanes == 16) return run_as<S, R, 16, 1>(call, asked);
  if (asked.packs == 1 && asked.lanes == 32) return run_as<S, R, 32, 1>(call, asked);
  if (asked.packs == 2 && asked.lanes == 32) return run_as<S, R, 32, 2>(call, asked);
  throw std::invalid_argument("no kernel of these lanes and packs");
}

template <class S>
void run(const Call& asked) {
  mgg::Schedule schedule;
  schedule.chunks.assign(asked.chunks, asked.chunks + asked.chunk_count);
  schedule.indices = asked.indices, schedule.edges = asked.edges, schedule.destinations = asked.destinations;
  mgg::make_schedule(schedule, {asked.segments, asked.segments + asked.segment_count}, {0, asked.part_edges}, false);
  const int64_t stride = mgg::padded_stride(asked.dim, sizeof(S));
  const int64_t passes = (stride * sizeof(S) / 16 + asked.lanes * asked.packs - 1) / (asked.lanes * asked.packs);
  std::vector<const S*> sources;
  std::vector<int32_t> remote, pending;
  for (const mgg::Chunk& chunk : schedule.chunks) {
    sources.push_back(static_cast<const S*>(asked.rows[chunk.pe]) + chunk.first_row * stride);
    remote.push_back(chunk.pe != asked.rank);
  }
  for (int64_t pass = 0; pass < passes; ++pass)
    for (const mgg::Hub& hub : schedule.hubs) pending.push_back(hub.slots);
  const std::vector<int32_t> before = pending;
  std::vector<float> partials(schedule.slots * stride), bias(stride);
  if (asked.bias) std::memcpy(bias.data(), asked.bias, asked.dim * sizeof(float));
  std::memset(partials.data(), 0xFF, partials.size() * sizeof(float));
  mgg::DeviceAggregation<S> call{};
  call.tasks = schedule.blocks.data(), call.count = schedule.blocks.size();
  call.segments = schedule.segments.data();
  call.hubs = schedule.hubs.data(), call.hub_count = schedule.hubs.size(), call.pending = pending.data();
  call.degree = schedule.degree.data();
  call.sources = sources.data(), call.remote = remote.data(), call.indices = asked.indices;
  call.weight = asked.weight, call.scale = asked.scale, call.bias = asked.bias ? bias.data() : nullptr;
  call.out = static_cast<S*>(asked.out), call.partials = partials.data(), call.stride = stride;
  call.mean = asked.reduce == int(mgg::Reduce::mean), call.relu = asked.relu;
  if (asked.reduce == int(mgg::Reduce::max))
    run_with<S, mgg::DeviceMax>(call, asked);
  else
    run_with<S, mgg::DeviceSum>(call, asked);
  if (pending != before) throw std::runtime_error("a hub's parts are not counted as before");
}

}  // namespace

extern "C" int direct(const Call* call, char* said, int room) {
  try {
    if (call->type == 0) run<float>(*call);
    if (call->type == 1) run<mgg::Float16>(*call);
    if (call->type == 2) run<mgg::BFloat16>(*call);
  } catch (const std::exception& error) {
    std::snprintf(said, room, "%s", error.what());
    return -1;
  }
  return 0;
}
