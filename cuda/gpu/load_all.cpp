// Loads every kernel of the module. CUDA loads a kernel when it is first named, and may wait for the kernels that run to
// do so: one that waits for another PE's would then wait for ever for the one that is to be loaded.
#include "gpu/kernels.h"

namespace mgg {
namespace {

char not_null[16];  // the dispatch looks only at whether a pointer is null

constexpr Shape shapes[] = {{4, 1}, {8, 1}, {16, 1}, {32, 1}, {32, 2}};

template <class S>
void load_sums() {
  for (const Shape& shape : shapes)
    for (const bool max : {false, true}) {
      for (const Transfer transfer : {Transfer::none, Transfer::direct})
        aggregate(DeviceAggregation<S>{}, {{max, transfer, false}, shape}, {});
      for (const bool far : {false, true}) {
        aggregate(DeviceGetCall<S>{}, {{max, Transfer::get, far}, shape}, {});
        aggregate(DeviceHaloCall<S>{}, {{max, Transfer::halo, far}, shape}, {});
      }
    }
}

template <class S, class Call>
void load_packed_and_not(Call call) {
  for (const int32_t channels : {lane_columns<S>(true), 1}) {
    call.edges.channels = channels;
    over(call, gpu::Launch{});
  }
}
template <class S>
void load_edges() {
  const auto score = reinterpret_cast<const float*>(not_null);
  const auto gradient = reinterpret_cast<const S*>(not_null);
  DeviceAttend<S> attend{};
  DeviceAttendBack<S> back{};
  load_packed_and_not<S>(attend), load_packed_and_not<S>(back);
  back.gradient.rows = gradient;
  load_packed_and_not<S>(back);
  attend.score.rows = score, back.score.rows = score;
  load_packed_and_not<S>(attend), load_packed_and_not<S>(back);
  attend.edge_score = score, back.edge_score = score;
  load_packed_and_not<S>(attend), load_packed_and_not<S>(back);
  load_packed_and_not<S>(DeviceMaxTies<S>{}), load_packed_and_not<S>(DeviceMaxBack<S>{});
  load_packed_and_not<S>(DeviceWeighted<S>{}), load_packed_and_not<S>(DeviceSddmm<S>{});
}

template <class S>
void load_rows() {
  load_sums<S>();
  load_edges<S>();
  for (const Shape& shape : shapes) dropout(DeviceDropout<S>{}, shape, {});
}

}  // namespace

int load_all() {
  const gpu::OnlyLoading loading;
  load_rows<float>(), load_rows<Float16>(), load_rows<BFloat16>();
  for (const Shape& shape : shapes) {
    gather_floor({}, shape, {});
    for (const bool gets : {false, true}) gather({}, gets, shape, {});
  }
  dropout(DeviceDropoutCsr{}, {});
  for (const bool bottom_up : {false, true}) traverse(DeviceBfs{}, bottom_up, {});
  traverse(DeviceSssp{}, {}), traverse(DeviceComponents{}, {}), traverse(DevicePageRank{}, {});
  traverse(DeviceFrontier{}, {});
  traverse(DevicePack<uint32_t>{}, {}), traverse(DevicePack<uint64_t>{}, {});
  traverse(DeviceArrive<uint32_t>{}, {}), traverse(DeviceArrive<uint64_t>{}, {});
  for (int stage = 0; stage < sample_stages; ++stage) sample(static_cast<SampleStage>(stage), {}, {});
  for (const bool far : {false, true}) let_go({}, far, {});
  return loading.kernels();
}

}  // namespace mgg
