// Sums the rows of each destination's neighbours on a GPU: the transfer `get`, MGG's own pipeline (OSDI '23, 3.3).
//
// A worker alternates between local neighbour partitions, which it sums from registers, and remote ones, which have
// been asked for `dist` stages before: while it sums a destination's local rows, this one's remote rows and those of
// the next are under way. A stage is up to ps rows of one remote partition. Where a pointer reaches them, they are
// copied into a ring in shared memory, a row each lane, and count towards the stage's one barrier; else one lane gets
// them into a symmetric ring, and a channel tells when they are there, not a quiet over everything. (Stages share
// channels where there are fewer of these, and wait for each other then; before NVSHMEM 3.5 there is one for all.)
//
// Rows are added in the plan's order, as `direct` does: the bits are the same, whatever ps, dist and wpb are for
// destinations that are not split.
#pragma once
#include "runtime/transport_device.h"
#include "gpu/row_worker.cuh"

namespace mgg {

// The remote partitions of a worker's tasks, a stage at a time.
struct Stages {
  int64_t number;  // the task's, of the work
  const Segment *at = nullptr, *end = nullptr;
  int64_t edge = 0;  // of *at

  // Goes to the next stage of the task, if there is one. The stage is `count` rows of *at, from `edge` on.
  MGG_DEVICE bool next(const int32_t* link, const DeviceGet& get, int32_t& count) {
    while (at != end && (link[at->chunk] == local_link || edge == at->count)) ++at, edge = 0;
    if (at == end) return false;
    const int64_t left = at->count - edge, most = get.ps[link[at->chunk]];
    count = static_cast<int32_t>(left < most ? left : most);
    return true;
  }
};

template <class S, class R, int LANES, int PACKS, bool FAR>
struct GetWorker : RowWorker<S, R, LANES, PACKS> {
  using Base = RowWorker<S, R, LANES, PACKS>;
  using Base::call, Base::worker, Base::has;
  using Sums = BlockedSum<S, R, PACKS>;
  static constexpr int slot_bytes = LANES * PACKS * 16;

  const DeviceGet& get;
  const int32_t most_rows;  // of a stage
  Stages ahead;             // what is asked for next
  bool any_ahead = true;    // whether there is anything left to ask for
  uint32_t parities = 0;    // of the stages' barriers, a bit each

  MGG_DEVICE explicit GetWorker(const DeviceGetCall<S>& of)
      : Base(of.sum),
        get(of.get),
        most_rows(of.get.ps[near_link]),
        ahead{Base::worker.number()} {
    enter(ahead);
  }

  // ---- the rings

  MGG_DEVICE int in_block() const { return device::thread() / LANES; }
  // A row in shared memory, and this lane's first pack of it; a worker's packs lie side by side.
  MGG_DEVICE char* row_of(int stage, int row) const {
    return device::shared() + (int64_t(in_block() * get.dist + stage) * most_rows + row) * slot_bytes;
  }
  MGG_DEVICE char* slot(int stage, int row) const { return row_of(stage, row) + 16 * worker.lane; }
  MGG_DEVICE char* behind_slots() const {
    return device::shared() + int64_t(device::threads() / LANES) * get.dist * most_rows * slot_bytes;
  }
  MGG_DEVICE uint64_t* barrier(int stage) const {
    return reinterpret_cast<uint64_t*>(behind_slots()) + in_block() * get.dist + stage;
  }
  MGG_DEVICE int32_t* word() const {
    return reinterpret_cast<int32_t*>(behind_slots() + int64_t(device::threads() / LANES) * get.dist * 8);
  }
  MGG_DEVICE char* far_slot(int stage, int row) const {
    return get.staging + ((worker.number() * get.dist + stage) * get.ps[far_link] + row) * slot_bytes;
  }
  MGG_DEVICE int32_t channel(int stage) const {
    return get.channels[(worker.number() * get.dist + stage) % get.channel_count];
  }

  MGG_DEVICE void start() const {
    if (worker.lane == 0)
      for (int stage = 0; stage < get.dist; ++stage)
        device::start_barrier(barrier(stage), device::bulk_copies ? 1 : LANES);
    worker.sync();
  }

  // ---- asking

  // The segments of the task that `stages` names.
  MGG_DEVICE void enter(Stages& stages) const {
    if (stages.number >= this->items()) return;
    const Block& task = call.tasks[this->task_of(stages.number)];
    stages.at = call.segments + task.first, stages.end = call.segments + task.last, stages.edge = 0;
  }

  // Asks for the next stage of this worker's tasks, whichever that is of.
  MGG_DEVICE void ask(int stage) {
    int32_t count = 0;
    while (any_ahead && !(ahead.number < this->items() && ahead.next(call.link, get, count))) {
      ahead.number += worker.workers();
      any_ahead = ahead.number < this->items();
      enter(ahead);
    }
    if (!any_ahead) return;
    const Segment& segment = *ahead.at;
    const int64_t edge = segment.first_edge + ahead.edge;
    ahead.edge += count;
    // The columns of the task that is asked for, which may be another pass than the one that is summed.
    const auto pass = static_cast<int32_t>(ahead.number - this->task_of(ahead.number) * this->passes);
    const int64_t offset = int64_t(pass) * slot_bytes;
    const int bytes = this->bytes_of(pass);
    if (!FAR || call.link[segment.chunk] == near_link)
      ask_near(segment, edge, count, stage, offset, bytes);
    else if constexpr (FAR)
      ask_far(segment, edge, count, stage, offset, bytes);
  }
  MGG_DEVICE const char* row_at(const char* rows, int64_t edge) const {
    return rows + int64_t(device::load_constant(call.indices + edge)) * this->row_packs * 16;
  }
  MGG_DEVICE void ask_near(const Segment& segment, int64_t edge, int count, int stage, int64_t offset,
                            int bytes) const {
    const char* rows = reinterpret_cast<const char*>(call.sources[segment.chunk]) + offset;
    if constexpr (device::bulk_copies) {
      if (worker.lane == 0) device::expect_bulk(barrier(stage), count * bytes);
      worker.sync();  // the barrier must expect them before they land
      for (int row = worker.lane; row < count; row += LANES)  // indices of all rows are under way at once
        device::copy_bulk(row_of(stage, row), row_at(rows, edge + row), bytes, barrier(stage));
    } else {
      for (int row = 0; row < count; ++row) {
        const char* from = row_at(rows, edge + row) + 16 * worker.lane;
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
          if (16 * (worker.lane + p * LANES) < bytes)
            device::copy_pack(slot(stage, row) + 16 * p * LANES, from + 16 * p * LANES);
      }
      device::arrive_after_copies(barrier(stage));
    }
  }
  MGG_DEVICE void ask_far(const Segment& segment, int64_t edge, int count, int stage, int64_t offset,
                            int bytes) const {
    if (worker.lane != 0) return;
    for (int row = 0; row < count; ++row)
      device::get_nbi(far_slot(stage, row), row_at(get.mine, edge + row) + offset, bytes, get.owner[segment.chunk],
                      channel(stage));
  }

  // ---- summing

  MGG_DEVICE void await_near(int stage) {
    device::wait_barrier(barrier(stage), parities >> stage & 1);
    parities ^= 1u << stage;
  }
  MGG_DEVICE void await_far(int stage) const {
    if (worker.lane == 0) device::quiet(channel(stage));
    worker.sync();
  }
  template <bool SHARED>
  MGG_DEVICE static device::Pack load_arrived(const char* from) {
    if constexpr (SHARED) return device::load_pack(from);
    return device::load_pack_fresh(from);
  }
  // Several rows are under way to registers; beyond `count` the last one is read again, and not added.
  template <bool SHARED>
  MGG_DEVICE void add_stage(int64_t edge, int count, int stage, Sums& sums) const {
    for (int first = 0; first < count; first += unroll) {
      float weight[unroll];
      device::Pack packs[unroll][PACKS];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        const int row = first + u < count ? first + u : count - 1;
        weight[u] = call.weight ? device::load_constant(call.weight + edge + row) : 1.0f;
        const char* mine = SHARED ? slot(stage, row) : far_slot(stage, row) + 16 * worker.lane;
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
          if (has(p)) packs[u][p] = load_arrived<SHARED>(mine + 16 * p * LANES);
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        if (first + u >= count) break;
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
          if (has(p)) sums.sum.template combine<R>(p, packs[u][p], weight[u]);
        sums.took_one();
      }
    }
  }

  MGG_DEVICE void sum_all() {
    int stage = 0;
    for (int first = 0; first < get.dist; ++first) ask(first);
    for (int64_t number = worker.number(); number < this->items(); number += worker.workers()) {
      const Block& task = this->take(number);
      Sums sums(Base::edges_of(task));
      for (int64_t at = task.first; at != task.last; ++at) {
        const Segment segment = call.segments[at];
        if (call.link[segment.chunk] == local_link)
          Base::template add_segment<false>(segment, call.sources[segment.chunk], sums);
      }
      Stages behind{number, call.segments + task.first, call.segments + task.last};
      int32_t count;
      while (behind.next(call.link, get, count)) {
        const int64_t edge = behind.at->first_edge + behind.edge;
        if (!FAR || call.link[behind.at->chunk] == near_link) {
          await_near(stage);
          add_stage<true>(edge, count, stage, sums);
        } else if constexpr (FAR) {
          await_far(stage);
          add_stage<false>(edge, count, stage, sums);
        }
        behind.edge += count;
        worker.sync();  // all have read the stage before it is asked for again
        ask(stage);
        stage = stage + 1 == get.dist ? 0 : stage + 1;
      }
      this->complete(task, sums.result(), word());
    }
  }
};

template <class S, class R, int LANES, int PACKS, bool FAR>
MGG_KERNEL void aggregate_get(DeviceGetCall<S> call) {
  GetWorker<S, R, LANES, PACKS, FAR> worker(call);
  worker.start();
  worker.sum_all();
}

}  // namespace mgg
