"""The parts of a compiled tape's source that are the same for all tapes.

It stands alone: NVRTC finds no header. What it does is what cuda/gpu/edges does (edges.cuh, propagate.cuh, and
hub_groups.h beside them), and its structs are those of cuda/include/mgg and cuda/gpu/edge_arguments.h. Where a host
plays the GPU (MGG_SHIM), the functions of the device are the shim's.
"""

from __future__ import annotations

DEVICE = r"""
#if defined(MGG_SHIM)
#include <cmath>
#include "mgg/half.h"
#include "runtime/device.h"
#define MGG_ENTRY(run) \
  extern "C" __attribute__((visibility("default"))) void mgg_tape(const void* call) { \
    run(*static_cast<const Call*>(call)); \
  }
namespace device = mgg::device;
using mgg::widen;
using Half16 = mgg::Float16;
using BHalf16 = mgg::BFloat16;
inline float infinity() { return mgg::float_of_bits(0x7F800000u); }
#else
#define MGG_DEVICE __device__ __forceinline__
#define MGG_ENTRY(run) \
  extern "C" __global__ void __launch_bounds__(256, 1) mgg_tape(const __grid_constant__ Call call) { run(call); }
struct Half16 {
  unsigned short bits;
};
struct BHalf16 {
  unsigned short bits;
};
MGG_DEVICE float infinity() { return __uint_as_float(0x7F800000u); }
MGG_DEVICE float widen(float value) { return value; }
MGG_DEVICE float widen(BHalf16 value) { return __uint_as_float(unsigned(value.bits) << 16); }
MGG_DEVICE float widen(Half16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
namespace device {
MGG_DEVICE int thread() { return threadIdx.x; }
MGG_DEVICE int threads() { return blockDim.x; }
MGG_DEVICE int block() { return blockIdx.x; }
MGG_DEVICE int blocks() { return gridDim.x; }
MGG_DEVICE void sync_lanes(unsigned mask) { __syncwarp(mask); }
template <class T>
MGG_DEVICE T from_lane(unsigned mask, T value, int lane) { return __shfl_sync(mask, value, lane); }
template <class T>
MGG_DEVICE T from_lane_xor(unsigned mask, T value, int other) { return __shfl_xor_sync(mask, value, other); }
MGG_DEVICE float load_fresh(const float* from) { return __ldcg(from); }
MGG_DEVICE int load_constant(const int* from) { return __ldg(from); }
// Orders what this thread wrote, and has seen, against the others that add.
MGG_DEVICE int add_in_order(int* counter, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before) : "l"(__cvta_generic_to_global(counter)), "r"(value) : "memory");
  return before;
}
}  // namespace device
#endif

namespace {

using i32 = int;
using i64 = long long;
using u64 = unsigned long long;

struct Block {
  i64 first, last;
  i32 hub, slot;
};
struct Segment {
  i64 first_edge;
  i32 destination, count, chunk, flags;
};
struct Hub {
  i32 first_segment, first_slot, slots;
  i64 edges;
  i32 first_counter;
};
static_assert(sizeof(Block) == 24 && sizeof(Segment) == 24 && sizeof(Hub) == 32, "as in mgg/layout.h, mgg/schedule.h");

#define MGG_UNROLL _Pragma("unroll")

// Operators, as in mgg/semantics.h.
MGG_DEVICE float magnitude(float x) { return x < 0 ? -x : x; }
MGG_DEVICE float logistic(float falling) { return 1 / (1 + falling); }
MGG_DEVICE float leaky_relu(float x, float slope) { return x > 0 ? x : x * slope; }
MGG_DEVICE float larger_of(float x, float y) { return x != x ? x : x < y || y != y ? y : x; }
MGG_DEVICE float smaller_of(float x, float y) { return x != x ? x : x > y || y != y ? y : x; }
MGG_DEVICE float where_positive(float x, float y, float slope) { return y > 0 ? x : x * slope; }
MGG_DEVICE float times_sign(float x, float y) { return y > 0 ? x : y < 0 ? -x : 0.0f; }
MGG_DEVICE float above(float x, float y) { return x > y ? 1.0f : x == y ? 0.5f : 0.0f; }
MGG_DEVICE float equal(float x, float y) { return x == y ? 1.0f : 0.0f; }
"""

# After the constants, `Call` and the tables of outputs.
WORKER = r"""
// A worker's lanes, a pass over the columns, and a destination or a part of a hub.
struct Worker {
  i32 lane, pass, destination, slot;
  unsigned mask;
};
MGG_DEVICE i32 column(const Worker& at, i32 pass, int i) { return (pass * MINE + i) * LANES + at.lane; }
MGG_DEVICE bool has(const Worker& at, i32 pass, int i) { return column(at, pass, i) < COLUMNS; }
MGG_DEVICE float over_lanes(const Worker& at, float value) {
  MGG_UNROLL
  for (int other = LANES / 2; other > 0; other /= 2) value += device::from_lane_xor(at.mask, value, other);
  return value;
}
// An output's columns: of the destination, or of a part of a hub.
MGG_DEVICE float* row(const Call& call, const Worker& at, i32 slot, int o) {
  if (slot >= 0) return call.partials + i64(slot) * STATE + place_of(o);
  return out_of(call, o) + at.destination * out_stride(call, o);
}
"""

KERNEL = r"""
// A lane's outputs so far, but for typed ones, which lie in memory: of the destination, or of a part of a hub.
struct State {
  float of[OUTPUTS][MINE];
  i32 slot;
};

// Calls body(o, i, column) for what this lane keeps of each output without types, and body(o, i, place) for typed ones.
template <class Body>
MGG_DEVICE void each_untyped(const Worker& at, Body&& body) {
  MGG_UNROLL
  for (int o = 0; o < OUTPUTS; ++o) {
    if (types_of(o)) continue;
    if (width_of(o) == 1) {
      if (at.lane == 0 && at.pass == 0) body(o, 0, 0);
      continue;
    }
    MGG_UNROLL
    for (int i = 0; i < MINE; ++i)
      if (has(at, at.pass, i)) body(o, i, column(at, at.pass, i));
  }
}
template <class Body>
MGG_DEVICE void each_typed(const Worker& at, Body&& body) {
  MGG_UNROLL
  for (int o = 0; o < OUTPUTS; ++o)
    for (i64 type = 0; type < types_of(o); ++type)
      MGG_UNROLL
      for (int i = 0; i < MINE; ++i)
        if (has(at, at.pass, i)) body(o, i, type * COLUMNS + column(at, at.pass, i));
}

MGG_DEVICE void begin(State& state) {
  MGG_UNROLL
  for (int o = 0; o < OUTPUTS; ++o)
    MGG_UNROLL
    for (int i = 0; i < MINE; ++i) state.of[o][i] = MAX && o == 0 ? -infinity() : 0.0f;
}
// Takes a larger first output with what belongs to it, and adds what belongs to an equal one. NaN stays NaN.
template <class Value>
MGG_DEVICE void raise(State& state, int i, Value&& value) {
  const float most = state.of[0][i], first = value(0);
  const bool larger = most == most && !(first <= most), same = first == most;
  MGG_UNROLL
  for (int o = 1; o < OUTPUTS; ++o) {
    float& to = state.of[o][i];
    to = larger ? value(o) : same ? to + value(o) : to;
  }
  if (larger) state.of[0][i] = first;
}

// Adds up to four edges; beyond `count` the last one is there again.
MGG_DEVICE void take(const Call& call, const Worker& at, const Near& near, const Row* const (&rows)[4],
                     const i64 (&edges)[4], int count, State& state) {
  State added;
  begin(added);
  MGG_UNROLL
  for (int first = 0; first < 4; first += AHEAD) {
    if (first >= count) break;
    Far far[AHEAD];
    MGG_UNROLL
    for (int u = 0; u < AHEAD; ++u) far[u] = load_far(call, at, at.pass, rows[first + u], edges[first + u]);
    MGG_UNROLL
    for (int u = 0; u < AHEAD; ++u) {
      if (first + u >= count) break;
      float out[OUTPUTS][MINE];
      compute(call, at, rows[first + u], edges[first + u], near, far[u], out);
      if (MAX) {
        MGG_UNROLL
        for (int i = 0; i < MINE; ++i) raise(state, i, [&](int o) { return out[o][i]; });
        continue;
      }
      MGG_UNROLL
      for (int o = 0; o < OUTPUTS; ++o) {
        float* to = types_of(o) ? row(call, at, state.slot, o) + typed(call, type_of(o), edges[first + u]) : nullptr;
        MGG_UNROLL
        for (int i = 0; i < MINE; ++i)
          if (!types_of(o))
            added.of[o][i] += out[o][i];
          else if (has(at, at.pass, i))
            to[column(at, at.pass, i)] += out[o][i];
      }
    }
  }
  if (MAX) return;
  MGG_UNROLL
  for (int o = 0; o < OUTPUTS; ++o)
    MGG_UNROLL
    for (int i = 0; i < MINE; ++i) state.of[o][i] += added.of[o][i];
}

MGG_DEVICE const Row* chunk(const Call& call, i32 number) {
  if (call.sources) return call.sources[number];
  if (number == 0) return call.own;
  return reinterpret_cast<const Row*>(call.staging + (*call.calls & 1) * call.staging_bytes);
}

MGG_DEVICE void add_task(const Call& call, const Worker& at, const Block& task, State& state) {
  const Near near = load_near(call, at, at.pass);
  const Row *rows[4] = {}, *base = nullptr;
  i64 edges[4] = {}, edge = 0, end = 0, segment = task.first;
  for (;;) {
    int count = 0;
    MGG_UNROLL
    for (int u = 0; u < 4; ++u) {
      for (; edge == end && segment < task.last; ++segment) {
        const Segment& next = call.segments[segment];
        base = chunk(call, next.chunk), edge = next.first_edge, end = edge + next.count;
      }
      if (edge < end) {
        count = u + 1;
        edges[u] = edge, rows[u] = base + i64(device::load_constant(call.indices + edge)) * call.stride, ++edge;
      } else if (u > 0) {
        edges[u] = edges[u - 1], rows[u] = rows[u - 1];
      }
    }
    if (count == 0) return;
    take(call, at, near, rows, edges, count, state);
  }
}

MGG_DEVICE void keep(const Call& call, const Worker& at, const State& state, i32 slot) {
  each_untyped(at, [&](int o, int i, i32 c) { row(call, at, slot, o)[c] = state.of[o][i]; });
}
// Merges `count` parts of a hub, `step` slots apart: typed outputs into the first slot.
MGG_DEVICE void merge(const Call& call, const Worker& at, State& state, i32 slot, i32 count, i32 step) {
  const auto part = [&](i32 k, int o, i64 c) { return device::load_fresh(row(call, at, slot + k * step, o) + c); };
  const auto total = [&](int o, i64 c) {
    float sum = part(0, o, c);
    for (i32 k = 1; k < count; ++k) sum += part(k, o, c);
    return sum;
  };
  state.slot = slot;
  begin(state);
  if (MAX) {
    for (i32 k = 0; k < count; ++k)
      MGG_UNROLL
      for (int i = 0; i < MINE; ++i)
        if (has(at, at.pass, i)) raise(state, i, [&](int o) { return part(k, o, column(at, at.pass, i)); });
    return;
  }
  each_typed(at, [&](int o, int, i64 c) { row(call, at, slot, o)[c] = total(o, c); });
  each_untyped(at, [&](int o, int i, i32 c) { state.of[o][i] = total(o, c); });
}
MGG_DEVICE void finish(const Call& call, const Worker& at, const State& state) {
  const i32 degree = call.degree[at.destination];
  const float divisor = MEAN && degree > 0 ? float(degree) : 1.0f;
  each_typed(at, [&](int o, int, i64 c) { row(call, at, -1, o)[c] = row(call, at, state.slot, o)[c] / divisor; });
  each_untyped(at, [&](int o, int i, i32 c) {
    row(call, at, -1, o)[c] = degree > 0 ? state.of[o][i] / divisor : 0.0f;
  });
}

// Parts of hubs are merged in groups of 32 by the last part of each to arrive, and the groups by the last of them.
constexpr i32 group_slots = 32;
MGG_DEVICE i32 slots_of(i32 slots, i32 group) {
  return slots - group * group_slots < group_slots ? slots - group * group_slots : group_slots;
}
// Whether this worker is the last that a counter waits for; `before`: the counter's value between calls.
MGG_DEVICE bool is_last(const Worker& at, i32* counter, i32 start) {
  device::sync_lanes(at.mask);
  i32 before = 0;
  if (at.lane == 0) before = device::add_in_order(counter, -1);
  before = device::from_lane(at.mask, before, device::thread() % 32 - at.lane);
  device::sync_lanes(at.mask);
  if (before != 1) return false;
  if (at.lane == 0) *counter = start;
  return true;
}
MGG_DEVICE void part_of_hub(const Call& call, const Worker& at, const Block& task, State& state) {
  const Hub& hub = call.hubs[task.hub];
  i32* counters = call.pending + at.pass * call.counters + hub.first_counter;
  const i32 groups = (hub.slots + group_slots - 1) / group_slots, group = (task.slot - hub.first_slot) / group_slots;
  const i32 first = hub.first_slot + group * group_slots, slots = slots_of(hub.slots, group);
  keep(call, at, state, task.slot);
  if (!is_last(at, counters + group, slots)) return;
  merge(call, at, state, first, slots, 1);
  if (groups > 1) {
    keep(call, at, state, first);
    if (!is_last(at, counters + groups, groups)) return;
    merge(call, at, state, hub.first_slot, groups, group_slots);
  }
  finish(call, at, state);
}

MGG_DEVICE void run(const Call& call) {
  const int in_warp = device::thread() % 32;
  Worker at{};
  at.lane = device::thread() & (LANES - 1);
  at.mask = (LANES == 32 ? 0xFFFFFFFFu : (1u << LANES % 32) - 1) << (in_warp - at.lane);
  const i64 workers = i64(device::blocks()) * device::threads() / LANES;
  const i64 mine = (i64(device::block()) * device::threads() + device::thread()) / LANES;
  for (i64 number = mine; number < call.count * PASSES; number += workers) {
    const Block& task = call.tasks[number / PASSES];
    at.pass = static_cast<i32>(number % PASSES), at.slot = task.hub >= 0 ? task.slot : -1;
    at.destination = call.segments[task.first].destination;
    State state;
    begin(state);
    state.slot = at.slot;
    each_typed(at, [&](int o, int, i64 c) { row(call, at, at.slot, o)[c] = 0.0f; });
    add_task(call, at, task, state);
    task.hub >= 0 ? part_of_hub(call, at, task, state) : finish(call, at, state);
  }
}

}  // namespace

MGG_ENTRY(run)
"""
