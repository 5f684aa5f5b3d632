// Runs a schedule's blocks on the cores of one host, whatever is computed: stage by stage as rows arrive, or with
// gets that fetch a block's remote rows while the block before is worked on.
//
// Work, for rows of S, has: `call` with schedule, sources, stride, threads, exchange, transport, calling, streams;
// sweeps(), the number of passes over the blocks of a stage; worker(), a thread's state. worker.block(block, sweep)
// computes a block from the rows at the addresses of the last worker.read_from(sources). This file is compiled once for
// each instruction set (MGG_ISA).
#pragma once
#include <omp.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/aggregate.h"
#include "cpu/work_queue.h"
#include "cpu/tile.h"

namespace mgg {
namespace MGG_ISA {
namespace {

// Stage by stage. With halo, threads first pack the rows that other ranks wait for; then owned rows are worked on,
// then each round, or streamed chunk, as it arrives, in the same order in every run. The first thread keeps transfers
// going.
template <class Work>
void run_stages(const Work& work) {
  const auto& call = work.call;
  const Schedule& schedule = *call.schedule;
  Exchange* exchange = call.exchange;
  const int64_t packets = exchange ? exchange->packets() : 0;
  const int64_t sweeps = work.sweeps();
  std::deque<WorkQueue> queues;  // of each stage's sweeps
  for (const Stage& stage : schedule.stages)
    for (int64_t sweep = 0; sweep < sweeps; ++sweep)
      queues.emplace_back(stage.last_block - stage.first_block, call.threads);
#pragma omp parallel num_threads(call.threads) if (call.threads > 1)
  {
    auto worker = work.worker();  // a thread-local copy avoids false sharing
    const bool moves = exchange && omp_get_thread_num() == 0;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < packets; ++i) exchange->push(i);
    auto queue = queues.begin();
    for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
      if (stage > 0 && exchange) {
#pragma omp single
        exchange->wait(static_cast<int>(stage) - 1);
      }
      const Block* blocks = schedule.blocks.data() + schedule.stages[stage].first_block;
      for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
        (queue++)->each([&](int64_t i) {
          worker.block(blocks[i], sweep);
          if (moves) exchange->progress();
        });
#pragma omp barrier
      }
    }
    if (call.streams) end_streams();
  }
}

// Fetches the remote rows of a block into `box`, in the order of its edges.
template <class Call, class S>
void fetch(const Call& call, const Block& block, S* box, int channel) {
  const Schedule& schedule = *call.schedule;
  const std::lock_guard<std::mutex> lock(*call.calling);
  for (int64_t i = block.first; i < block.last; ++i) {
    const Segment& segment = schedule.segments[i];
    const Chunk& chunk = schedule.chunks[segment.chunk];
    if (chunk.kind == Chunk::owned) continue;
    for (int64_t e = segment.first_edge; e < segment.first_edge + segment.count; ++e)
      call.transport->get_nbi(box + schedule.place[e] * call.stride,
                              call.sources[segment.chunk] + schedule.indices[e] * call.stride,
                              call.stride * sizeof(S), chunk.pe, channel);
  }
}

// A row a get: while a thread works on one block, the remote rows of its next one are on their way.
template <class S, class Work>
void run_gets(const Work& work) {
  const auto& call = work.call;
  const Schedule& schedule = *call.schedule;
  const int64_t count = static_cast<int64_t>(schedule.blocks.size());
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(call.threads) if (call.threads > 1)
  {
    const size_t room = schedule.most_remote * call.stride + 64 / sizeof(S);
    const std::unique_ptr<S[]> memory(new S[2 * room]);
    S* boxes[2];
    for (int i = 0; i < 2; ++i)
      boxes[i] = reinterpret_cast<S*>((reinterpret_cast<uintptr_t>(memory.get() + i * room) + 63) / 64 * 64);
    std::vector<const S*> sources(call.sources, call.sources + schedule.chunks.size());
    auto worker = work.worker();
    worker.read_from(sources.data());
    int turn = 0;
    int64_t at = next.fetch_add(1);
    if (at < count) fetch(call, schedule.blocks[at], boxes[0], 0);
    while (at < count) {
      const int64_t after = next.fetch_add(1);
      if (after < count) fetch(call, schedule.blocks[after], boxes[1 - turn], 1 - turn);
      {
        const std::lock_guard<std::mutex> lock(*call.calling);
        call.transport->quiet(turn);
      }
      for (size_t i = 0; i < sources.size(); ++i)
        if (schedule.chunks[i].kind != Chunk::owned) sources[i] = boxes[turn];
      for (int64_t sweep = 0; sweep < work.sweeps(); ++sweep) worker.block(schedule.blocks[at], sweep);
      // Drives progress: peers' gets may need this CPU.
      if (omp_get_thread_num() == 0 && call.calling->try_lock()) {
        call.transport->progress();
        call.calling->unlock();
      }
      at = after, turn = 1 - turn;
    }
    if (call.streams) end_streams();
  }
}

template <class S, class Work>
void run_schedule(const Work& work) {
  if (work.call.transport)
    run_gets<S>(work);
  else
    run_stages(work);
}

// Returns true if this part of a hub is the last one to arrive, so that its parts are to be added.
inline bool last_of_hub(Schedule& schedule, const Block& block) {
  auto& pending = schedule.pending[block.hub];
  if (pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  pending.store(schedule.hubs[block.hub].slots, std::memory_order_relaxed);  // for the next call
  return true;
}

}  // namespace
}  // namespace MGG_ISA
}  // namespace mgg
