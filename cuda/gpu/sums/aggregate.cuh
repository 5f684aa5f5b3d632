// Sums the rows of each destination's neighbours on a GPU: the transfer `direct`.
//
// A worker is a group of LANES lanes: a warp, or a part of one where rows are narrow. It takes a destination, or a part
// of a hub, and walks its columns PACKS packs of 16 bytes a lane at a time. Rows of other PEs are read through their
// pointers into a ring in shared memory, asynchronously: the first few are asked for before local rows are summed, so
// that they travel meanwhile (MGG, OSDI '23, section 5.1). From sm_90 on one lane asks for a row by a bulk copy, and
// all wait at its barrier; before, every lane copies what it reads itself, and none waits for another. Local rows go to
// registers, `unroll` independent loads at a time.
//
// Sums are taken in the order of the plan, local rows first, in blocks (summation_block), and a hub's parts are added
// in the order of their slots by the last one to arrive: the same input gives the same bits.
#pragma once
#include "gpu/row_worker.cuh"

namespace mgg {

// Walks the remote edges of a task: first to copy rows into the ring, and once more to sum them.
struct RemoteEdges {
  const Segment *at, *end;
  int64_t edge;
  MGG_DEVICE bool next(const int32_t* link, int32_t& chunk, int64_t& found) {
    while (at != end && (link[at->chunk] == local_link || edge >= at->count)) ++at, edge = 0;
    if (at == end) return false;
    chunk = at->chunk, found = at->first_edge + edge++;
    return true;
  }
};

template <class S, class R, int LANES, int PACKS, bool REMOTE>
struct DirectWorker : RowWorker<S, R, LANES, PACKS> {
  using Base = RowWorker<S, R, LANES, PACKS>;
  using Base::Base, Base::call, Base::worker, Base::has, Base::items, Base::pack_of, Base::task_of, Base::weight_at;
  uint32_t parities = 0;  // of the phases of this worker's barriers, a bit each

  // Where this thread's p-th pack of a row of the ring lies, a worker's packs side by side; and this row's barrier.
  MGG_DEVICE static char* slot(int row, int p) {
    const int worker = device::thread() / LANES, lane = device::thread() % LANES;
    return device::shared() + 16 * (((worker * ring_rows + row) * PACKS + p) * LANES + lane);
  }
  MGG_DEVICE static uint64_t* barrier(int row) {
    char* first = device::shared() + 16 * PACKS * ring_rows * device::threads();
    return reinterpret_cast<uint64_t*>(first) + device::thread() / LANES * ring_rows + row;
  }
  MGG_DEVICE const S* row_at(int32_t chunk, int64_t edge) const {
    return call.sources[chunk] + device::load_constant(call.indices + edge) * call.stride;
  }

  // A worker's packs lie side by side, in rows as in the ring: its first lane copies those of all.
  MGG_DEVICE void ask_bulk(const S* from, int row) const {
    const int bytes = this->bytes_of(this->pass);
    device::expect_bulk(barrier(row), bytes);
    device::copy_bulk(slot(row, 0), pack_of(from, 0), bytes, barrier(row));
  }

  MGG_DEVICE void ask(RemoteEdges& ahead, int row) {
    int32_t chunk;
    int64_t edge;
    const bool found = ahead.next(call.link, chunk, edge);
    if constexpr (device::bulk_copies) {
      if (found && worker.lane == 0) ask_bulk(row_at(chunk, edge), row);
    } else {
      if (found) {
        const S* from = row_at(chunk, edge);
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
          if (has(p)) device::copy_pack(slot(row, p), pack_of(from, p));
      }
      device::commit_copies();  // one group a turn, with or without copies, so that waits can count them
    }
  }
  MGG_DEVICE void await(int row) {
    if constexpr (device::bulk_copies) {
      device::wait_barrier(barrier(row), parities >> row & 1);
      parities ^= 1u << row;
    } else {
      device::wait_copies<ring_rows - 1>();
    }
  }
  // After reading a row of the ring, before it is asked for again.
  MGG_DEVICE void have_read() const {
    if constexpr (device::bulk_copies) device::sync_lanes(worker.mask);
  }

  MGG_DEVICE void sum(int64_t number) {
    const Block& task = this->take(number);
    const Segment *first = call.segments + task.first, *last = call.segments + task.last;
    BlockedSum<S, R, PACKS> sums(Base::edges_of(task));
    RemoteEdges ahead{first, last, 0};
    for (int row = 0; row < ring_rows; ++row) ask(ahead, row);
    for (const Segment* at = first; at != last; ++at) {
      const Segment segment = *at;
      if (call.link[segment.chunk] == local_link)
        Base::template add_segment<false>(segment, call.sources[segment.chunk], sums);
    }
    add_remote({first, last, 0}, ahead, sums);
    Base::complete(task, sums.result());
  }

  // Where no rows are remote. A plan whose tasks have one segment each is read by segments alone, 24 bytes of a
  // destination and a load less before its edges; only parts of hubs read their task, too.
  MGG_DEVICE void sum_local(int64_t number) {
    const int64_t at = this->start(number);
    const Segment* next = call.segments + (call.single ? at : call.tasks[at].first);
    Segment segment = *next;
    const bool part = call.single ? segment.flags != 0 : call.tasks[at].hub >= 0;
    int64_t edges = segment.count;
    if (part)
      edges = call.hubs[call.tasks[at].hub].edges;
    else if (!call.single)
      edges = call.degree[segment.destination];
    BlockedSum<S, R, PACKS> sums(edges);
    for (;;) {
      Base::template add_segment<false>(segment, call.sources[segment.chunk], sums);
      if (call.single || ++next == call.segments + call.tasks[at].last) break;
      segment = *next;
    }
    if (part)
      Base::part_of_hub(call.tasks[at], sums.result(), nullptr);
    else
      Base::finish(segment.destination, sums.result());
  }
  // What this worker reads first of its next task.
  MGG_DEVICE void prefetch(int64_t number) const {
    if (worker.lane != 0 || number >= items()) return;
    if (!REMOTE && call.single)
      device::prefetch(call.segments + task_of(number));
    else
      device::prefetch(call.tasks + task_of(number));
  }

  MGG_DEVICE void add_remote(RemoteEdges behind, RemoteEdges& ahead, BlockedSum<S, R, PACKS>& sums) {
    int32_t chunk;
    int64_t edge;
    for (int row = 0; behind.next(call.link, chunk, edge); row = (row + 1) % ring_rows) {
      await(row);
      const float weight = weight_at(edge);
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
        if (has(p)) sums.sum.template combine<R>(p, device::load_pack(slot(row, p)), weight);
      sums.took_one();
      have_read();
      ask(ahead, row);
    }
    if constexpr (!device::bulk_copies) device::wait_copies<0>();
  }
};

// REMOTE: whether the plan has remote rows at all; where it has none, neither ring nor shared memory is needed.
template <class S, class R, int LANES, int PACKS, bool REMOTE>
MGG_KERNEL void aggregate_direct(DeviceAggregation<S> call) {
  DirectWorker<S, R, LANES, PACKS, REMOTE> self(call);
  if constexpr (REMOTE && device::bulk_copies) {
    if (self.worker.lane == 0)
      for (int row = 0; row < ring_rows; ++row) device::start_barrier(self.barrier(row), 1);
    self.worker.sync();
  }
  for (int64_t number = self.worker.number(); number < self.items(); number += self.worker.workers()) {
    self.prefetch(number + self.worker.workers());
    if constexpr (REMOTE)
      self.sum(number);
    else
      self.sum_local(number);
  }
}

}  // namespace mgg
