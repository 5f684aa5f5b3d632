// The kernels that compute edge by edge over rows of one type, MGG_ROWS: compiled once for each type.
#include "gpu/edges/attention.cuh"
#include "gpu/edges/edge_ops.cuh"
#include "gpu/kernels.h"

namespace mgg {
namespace {

using Rows = MGG_ROWS;

// The Op, with heads that begin on multiples of 16 bytes or without.
template <template <class, bool> class Op, class Call>
void run(const Call& call, const gpu::Launch& launch) {
  const bool packed = call.edges.channels % lane_columns<Rows>(true) == 0;
  packed ? gpu::launch(over_edges<Op<Rows, true>>, call, launch) : gpu::launch(over_edges<Op<Rows, false>>, call, launch);
}

template <class S, bool PACKED>
using Additive = Attend<S, PACKED, true>;
template <class S, bool PACKED>
using Scored = Attend<S, PACKED, true, true>;
template <class S, bool PACKED>
using Dot = Attend<S, PACKED, false>;
template <class S, bool PACKED>
using AdditiveSource = AttendBack<S, PACKED, true, true>;
template <class S, bool PACKED>
using ScoredSource = AttendBack<S, PACKED, true, true, true>;
template <class S, bool PACKED>
using DotSource = AttendBack<S, PACKED, false, true>;
template <class S, bool PACKED>
using DotTarget = AttendBack<S, PACKED, false, false>;

}  // namespace

void over(const DeviceAttend<Rows>& call, const gpu::Launch& launch) {
  if (call.edge_score) return run<Scored>(call, launch);
  call.score.rows ? run<Additive>(call, launch) : run<Dot>(call, launch);
}
void over(const DeviceAttendBack<Rows>& call, const gpu::Launch& launch) {
  if (call.edge_score) return run<ScoredSource>(call, launch);
  if (call.score.rows) return run<AdditiveSource>(call, launch);
  call.gradient.rows ? run<DotTarget>(call, launch) : run<DotSource>(call, launch);
}
void over(const DeviceMaxTies<Rows>& call, const gpu::Launch& launch) { run<MaxTies>(call, launch); }
void over(const DeviceMaxBack<Rows>& call, const gpu::Launch& launch) { run<MaxBack>(call, launch); }
void over(const DeviceWeighted<Rows>& call, const gpu::Launch& launch) { run<Weighted>(call, launch); }
void over(const DeviceSddmm<Rows>& call, const gpu::Launch& launch) { run<Sddmm>(call, launch); }

}  // namespace mgg
