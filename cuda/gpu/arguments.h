// The arguments of each GPU kernel. All pointers are the device's.
#pragma once
#include <cstdint>

#include "mgg/layout.h"
#include "mgg/schedule.h"

namespace mgg {

// How a kernel reaches rows: in this PE's memory, through a pointer to another PE's, or by the transport.
enum Link : int32_t { local_link = 0, near_link = 1, far_link = 2 };

// Sums of neighbours' rows.
template <class S>
struct DeviceAggregation {
  const Block* tasks;  // a destination each, or a part of a hub
  int64_t count;
  const Segment* segments;
  const Hub* hubs;
  int64_t counters;  // number of hub counters of a pass
  int32_t* pending;  // passes x counters of hubs: what has not arrived (hub_groups.h)
  const int32_t* degree;
  const S* const* sources;  // row 0 of each chunk
  const int32_t* link;      // how a chunk's rows are reached: a Link each
  const int32_t* indices;
  const float* weight;  // an edge each, or null
  S* out;
  const float* scale;  // a destination each, or null
  const float* bias;   // dim values, or null
  float* partials;     // slots x stride
  int64_t dim, stride;  // values of a row, and between rows: a multiple of 16 bytes
  bool mean, relu;
  bool single;  // each task has one segment, of the same number (gpu/schedule.h); used by `direct`
};

constexpr int ring_rows = 4;  // remote rows under way, of each worker

// Bytes of shared memory of a CUDA block of `threads`: a ring for each thread's packs, and behind all of them a barrier
// for each of a worker's rows (bulk copies), of four lanes at least.
constexpr int64_t ring_bytes(int64_t threads, int packs) {
  return threads * packs * ring_rows * 16 + threads / 4 * ring_rows * 8;
}

// Remote rows fetched in stages, several ahead (get.cuh). A stage is a neighbour partition's rows, or fewer.
struct DeviceGet {
  int32_t ps[3];   // by Link: most rows of a stage
  int32_t dist;    // stages under way, of each worker; at most `most_stages`
  // For rows that no pointer reaches:
  const int32_t* owner;       // of each chunk, its PE; its rows begin at `mine` there
  const char* mine;           // this PE's rows, symmetric
  char* staging;              // symmetric: workers x dist x ps[far_link] x lanes x packs x 16 bytes
  const int32_t* channels;    // of the transport
  int32_t channel_count;
};
constexpr int most_stages = 32;

// Bytes of shared memory of a CUDA block of `threads` in `halo`: HaloArrivals, and a HaloBatch for each warp.
constexpr int64_t halo_bytes(int64_t threads) { return 16 + threads / 32 * 16; }

template <class S>
struct DeviceGetCall {
  DeviceAggregation<S> sum;
  DeviceGet get;
};

// Bytes of shared memory for them of a CUDA block of `threads`: a ring of `rows` rows and `dist` barriers for each
// worker, and a word of its own.
constexpr int64_t stage_bytes(int64_t threads, int lanes, int packs, int64_t rows, int64_t dist) {
  return threads / lanes * dist * (rows * lanes * packs * 16 + 8) + 16;
}

// A run of rows that a PE packs and pushes into another's staging (halo.cuh). Rows are counted from `first` on.
struct Push {
  int64_t first, rows;  // among the plan's rows to send
  int64_t place;        // the first one's in the receiver's staging
  int64_t box;          // and in this PE's outbox, where no pointer reaches the receiver
  int32_t pe;
  int32_t signal;  // the receiver's
};
static_assert(sizeof(Push) == 40, "Push is shared with Python");

// State that a plan's halo keeps on its PE from call to call. Everything only grows.
struct HaloState {
  uint64_t calls;                  // that have ended
  uint64_t claimed, claimed_before;  // batches of work that warps have claimed; before this call
  uint64_t left, left_before;        // blocks that have ended; before this call
  uint64_t rows_pushed;
};

// A task that is deferred until more rows have arrived.
struct DeferredTask {
  int64_t number;  // of the work
  int64_t at;      // its next segment
  int32_t left;    // terms until the block of its sum ends
  int32_t chunk;   // the last segment's
  int32_t slot;    // index of its partial sums
  int32_t padding;
};
static_assert(sizeof(DeferredTask) == 32, "DeferredTask is shared with Python");

// Time stamps of each CUDA block, in nanoseconds of the GPU's clock; and of each push.
struct HaloStamps {
  enum Event { began, pushed, claimed, ended, events };
  uint64_t* blocks;    // [blocks, events]
  uint64_t* pushes;    // [pushes, 2]: began, packed
  uint64_t* arrivals;  // [arrivals]: when the first worker saw them; UINT64_MAX before the call
};

// The rows that cross in one call, and their order. Chunk 0 of the plan is this PE's rows; chunk 1 + a is arrival a, in
// staging.
struct DeviceHalo {
  const Push* pushes;
  const int32_t* send_rows;  // this PE's
  const char* rows;
  int64_t row_bytes;
  const int32_t* arrivals;   // the signal of each, in the order in which they are summed
  const int32_t* owners;     // PEs that push to this one, which get a credit when all is read
  int32_t push_count, arrival_count, owner_count;
  int32_t pushers;           // blocks that push before they sum
  int32_t me, credits;       // the first credit among the signals: one for each PE
  char* const* stagings;     // each PE's, null where no pointer reaches it
  uint64_t* const* signals;  // the same
  char* staging;             // this PE's, symmetric: two of staging_bytes, for odd and even calls
  uint64_t* signal;          // this PE's, symmetric
  char* outbox;              // symmetric
  int64_t staging_bytes;
  HaloState* state;
  DeferredTask* deferred;  // workers x slots
  float* partial_sums;  // workers x slots x 2 x lanes x packs x values of 16 bytes
  int32_t slots;   // tasks that a worker can defer
  int32_t claim;   // work that a warp takes at once
  int64_t fixed;   // work that is shared out before: of the warps that do not push, so much at once in turn
  bool holds;      // nothing is summed before all has arrived, and it stays there until `let_go` gives the credits
  HaloStamps stamps;  // or null
};

template <class S>
struct DeviceHaloCall {
  DeviceAggregation<S> sum;
  DeviceHalo halo;
};

// The key of dropout's draws, the threshold below which a value is dropped, and the scale of those that are kept
// (semantics.h).
struct RngKey {
  uint64_t seed;
  uint32_t epoch, stream, threshold;
  float scale;
  const int32_t* epoch_at;  // the epoch in device memory, or null: then it is `epoch`
};

// out[i, c] = x[i, c] * scale where the draw of (node[i], c) keeps it, else 0. May work in place.
template <class S>
struct DeviceDropout {
  const S* x;
  S* out;
  int64_t x_stride, out_stride;  // values between rows
  const int64_t* node;           // a row each
  int64_t rows, columns;
  RngKey key;
  bool packs;  // whether all rows begin on multiples of 16 bytes
};

// The same for the stored values of CSR rows.
struct DeviceDropoutCsr {
  const int64_t* indptr;
  const int32_t* index;
  const float* value;
  float* out;
  const int64_t* node;
  int64_t rows;
  RngKey key;
};

// Slots that lie on PEs in turn: slot s of the tier is row s / count of the PE at first + s % count of a table's lists.
struct DeviceTier {
  int64_t row_bytes;  // from one row to the next
  const char* mine;   // this PE's counterpart of rows that are got, which are symmetric
  int64_t first, count;
  int64_t unit;  // bytes that a lane reads at once: 16, 4 or 2; rows begin at multiples of it
};
static_assert(sizeof(DeviceTier) == 40, "DeviceTier is shared with Python");

// out[i] = the row in slot ids[i]; it stays as it is where that is negative.
struct DeviceGather {
  const int64_t* ids;
  int64_t count;
  const int64_t* firsts;  // of each tier, its first slot
  const DeviceTier* tiers;
  const char* const* rows;  // row 0 on each tier's PEs; null where no pointer reaches it, and `out` must be symmetric then
  const int64_t* pes;
  char* out;
  int64_t row_bytes, value_bytes;  // of a row of `out`, a multiple of 16; and without padding
  int32_t tier_count;
};

// Reads the rows of `indices` in their order and stores nothing, unless `seen` is there: the exclusive or of all words
// that a thread has read. No compiler knows that it is not, so all of them are read.
struct DeviceFloor {
  const int32_t* indices;
  int64_t edges;
  const char* rows;
  int64_t row_bytes;
  uint32_t* seen;  // a thread each, or null
};

}  // namespace mgg
