// Sums the rows of each destination's neighbours on a GPU: the transfer `halo`, where each distinct remote row crosses
// once. One kernel, whose blocks are all resident.
//
// The first blocks pack this PE's rows and push them to the PEs that need them, in chunks, with a signal each; then
// they join the others, which sum. A worker takes destinations, or parts of hubs, adds their local rows, and whatever
// remote rows are there by then. A destination that has to wait is deferred: its partial sum is stored, and resumed
// once more has come. So no worker waits while there is something to sum, and where rows come fast enough nothing
// is stored at all.
//
// The workers of a warp go on together, a task each at a time, and are handed neighbouring tasks, which are about as
// long (gpu/schedule.h). Most tasks are shared out among the blocks that do not push; a warp claims the others, so many
// at once. One warp of a block at a time polls the signals, fences once, and tells the others through shared memory.
//
// Calls are numbered, and a signal's value is the number of the call whose rows are there: nothing is ever reset. Two
// stagings are used in turn; call n is pushed when the receiver has given its credit for call n - 2, which the last of
// its blocks to end does. tests/protocol has this as a model, and how arrivals are handed over within a block as another;
// both are checked exhaustively.
//
// Whatever comes when, a destination's rows are added in the plan's order, as `direct` does: the bits are the same.
#pragma once
#include "runtime/transport_device.h"
#include "gpu/row_worker.cuh"

namespace mgg {

// FAR: whether some PEs are reached by the transport only.
template <bool FAR>
struct HaloProtocol {
  const DeviceHalo& halo;
  uint64_t call;  // the number of this one
  MGG_DEVICE explicit HaloProtocol(const DeviceHalo& halo) : halo(halo), call(halo.state->calls + 1) {}

  // A fence must follow before what the signal announces is read.
  MGG_DEVICE bool raised(int32_t signal, uint64_t value) const {
    if constexpr (FAR) return device::test_signal(halo.signal + signal, value);
    return device::peek_signal(halo.signal + signal) >= value;
  }
  MGG_DEVICE void await(int32_t signal, uint64_t value) const {
    while (!raised(signal, value)) device::rest();
    device::fence();
  }
  MGG_DEVICE int64_t staging_offset() const { return (call & 1) * halo.staging_bytes; }
  MGG_DEVICE void raise(int32_t signal, uint64_t value, int32_t pe) const {
    if (halo.signals[pe]) {
      device::store_signal(halo.signals[pe] + signal, value);
      return;
    }
    if constexpr (FAR) device::raise_signal(halo.signal + signal, value, pe);
  }

  // The rows of a push side by side: the whole block, LANES threads a row, four rows of each under way. Beyond the last
  // row that one is read again, and not written.
  template <int LANES>
  MGG_DEVICE void pack(const Push& push, const char* rows, char* to) const {
    constexpr int ahead = 4;
    const int32_t* numbers = halo.send_rows + push.first;
    const int packs = static_cast<int>(halo.row_bytes / 16), workers = device::threads() / LANES;
    const auto last = static_cast<int32_t>(push.rows - 1);
    for (int32_t row = device::thread() / LANES; row <= last; row += ahead * workers) {
      const char* from[ahead];
#pragma unroll
      for (int u = 0; u < ahead; ++u) {
        const int32_t mine = row + u * workers < last ? row + u * workers : last;
        from[u] = rows + device::load_constant(numbers + mine) * halo.row_bytes;
      }
      for (int at = device::thread() % LANES; at < packs; at += LANES) {
        device::Pack held[ahead];
#pragma unroll
        for (int u = 0; u < ahead; ++u) held[u] = device::load_pack_fresh(from[u] + 16 * at);
#pragma unroll
        for (int u = 0; u < ahead; ++u)
          if (row + u * workers <= last)
            device::store_pack(to + (row + u * workers) * halo.row_bytes + 16 * at, held[u]);
      }
    }
  }

  // This block's part of what this PE sends.
  template <int LANES>
  MGG_DEVICE void push_all() const {
    [[maybe_unused]] bool asked = false;
    for (int32_t at = device::block(); at < halo.push_count; at += halo.pushers) {
      const Push& push = halo.pushes[at];
      if (device::thread() == 0) {
        if (halo.stamps.pushes) halo.stamps.pushes[2 * at] = device::clock();
        if (call > 2) await(halo.credits + push.pe, call - 2);
      }
      device::sync_block();
      const int64_t place = staging_offset() + push.place * halo.row_bytes;
      const bool near = !FAR || halo.signals[push.pe];
      pack<LANES>(push, halo.rows,
                  near ? halo.stagings[push.pe] + place : halo.outbox + push.box * halo.row_bytes);
      device::sync_block();
      if (device::thread() == 0) {
        device::add(&halo.state->rows_pushed, push.rows);
        if (halo.stamps.pushes) halo.stamps.pushes[2 * at + 1] = device::clock();
        if (near)
          device::store_signal(halo.signals[push.pe] + push.signal, call);
        else if constexpr (FAR) {
          device::put_signal_nbi(halo.staging + place, halo.outbox + push.box * halo.row_bytes,
                                 push.rows * halo.row_bytes, halo.signal + push.signal, call, push.pe);
          asked = true;
        }
      }
    }
    if constexpr (FAR) {
      if (asked) device::quiet_puts();  // or the next call might pack into an outbox that is still being sent
    }
  }

  // The last block to leave gives the owners of what this PE has read their credit. By the whole block.
  MGG_DEVICE void leave() const {
    device::sync_block();
    if (device::thread() != 0) return;
    HaloState& state = *halo.state;
    const uint64_t before = state.left_before, blocks = device::blocks();
    if (device::add_in_order(&state.left, 1) + 1 - before != blocks) return;
    state.left_before = before + blocks;
    state.claimed_before = device::add(&state.claimed, 0);
    state.calls = call;
    if (!halo.holds) give_credits(call);
  }
  // By one thread: the staging of a call may be written again.
  MGG_DEVICE void give_credits(uint64_t ended) const {
    for (int32_t i = 0; i < halo.owner_count; ++i) raise(halo.credits + halo.me, ended, halo.owners[i]);
    if constexpr (FAR) device::quiet_puts();
  }
};

// Words in shared memory by which the warps of a CUDA block tell each other of arrivals.
struct HaloArrivals {
  int32_t here;     // arrivals that one of them has seen, without a gap
  int32_t polling;  // 1: one of them polls
};
// And what each of them keeps there, since registers are few; only its first lane writes it.
struct HaloBatch {
  int64_t next;  // the next task
  int32_t left;  // tasks that are left of the batch
  int32_t turn;  // batches of the warp's share before this one, or -1: the share is used up
};
static_assert(sizeof(HaloArrivals) <= 16 && sizeof(HaloBatch) == 16, "halo_bytes says how they lie");

template <class S, class R, int LANES, int PACKS, class EXCHANGE>
struct HaloWorker : RowWorker<S, R, LANES, PACKS> {
  using Base = RowWorker<S, R, LANES, PACKS>;
  using Base::call, Base::worker;
  using Sums = BlockedSum<S, R, PACKS>;
  static constexpr int values = Columns<S, PACKS>::values, held = 2 * LANES * PACKS * values;
  static constexpr int32_t fresh = -1;
  static constexpr uint32_t warp = 0xFFFFFFFFu;
  static constexpr int64_t none = -1;

  const DeviceHalo& halo;
  const EXCHANGE& exchange;
  int32_t here = 0;               // arrivals that are there, without a gap: the same for the whole warp
  int32_t deferred = 0;           // number of deferred tasks
  int32_t scanned_arrivals = -1;  // arrivals seen at the last scan of the deferred tasks
  int32_t unscanned = 0;          // deferred tasks of this scan that are still to be checked
  uint32_t ready = 0;             // those that can go on, from `unscanned` on, a bit each
  uint32_t asked = 0;             // by lane 0: the batch that was claimed ahead
  DeferredTask* const deferred_tasks;  // this worker's
  float* const partial_sums;

  MGG_DEVICE HaloWorker(const DeviceAggregation<S>& call, const EXCHANGE& exchange)
      : Base(call),
        halo(exchange.halo),
        exchange(exchange),
        deferred_tasks(halo.deferred + Base::worker.number() * halo.slots),
        partial_sums(halo.partial_sums + Base::worker.number() * halo.slots * held) {}

  MGG_DEVICE static int lane() { return device::thread() % 32; }  // of the warp
  MGG_DEVICE static bool any(bool yes) { return device::vote(warp, yes) != 0; }
  MGG_DEVICE uint32_t vote(bool yes) const {
    return device::vote(worker.mask, yes) >> (lane() - worker.lane) & Worker<LANES>::all;
  }

  // ---- arrivals, by the whole warp

  MGG_DEVICE static HaloBatch& batch() {
    return reinterpret_cast<HaloBatch*>(device::shared() + 16)[device::thread() / 32];
  }
  MGG_DEVICE static HaloArrivals& arrivals() { return *reinterpret_cast<HaloArrivals*>(device::shared()); }

  // Updates `here` from the arrivals that another warp of the CUDA block has seen, else, if none polls now, from the
  // signals themselves. Returns true if there are more than before.
  MGG_DEVICE bool look() {
    const int32_t before = here;
    if (before == halo.arrival_count) return false;
    int32_t found = 0;  // by others; -1 - that where this warp polls
    if (lane() == 0) {
      found = device::load_in_block(&arrivals().here);
      if (found == before && device::lock_in_block(&arrivals().polling))
        found = -1 - device::load_in_block(&arrivals().here);
    }
    found = device::from_lane(warp, found, 0);
    here = found < 0 ? -1 - found : found;
    if (found < 0) poll();
    device::sync_lanes(warp);  // what lane 0 has seen to be there, the others may read
    return here != before;
  }
  // A signal each lane, which fences where it is raised.
  MGG_DEVICE void poll() {
    const int32_t before = here;
    for (bool more = here < halo.arrival_count; more;) {
      const int32_t mine = here + lane();
      const bool there = mine < halo.arrival_count && exchange.raised(halo.arrivals[mine], exchange.call);
      const uint32_t missing = ~device::vote(warp, there);
      const int32_t found = missing ? device::lowest(missing) : 32;
      if (lane() < found) device::fence();
      here += found;
      more = found == 32 && here < halo.arrival_count;
    }
    device::sync_lanes(warp);  // the fences come before what lane 0 tells
    if (lane() != 0) return;
    if (halo.stamps.arrivals)
      for (int32_t at = before; at < here; ++at) device::lower(halo.stamps.arrivals + at, device::clock());
    if (here != before) device::store_in_block(&arrivals().here, here);
    device::store_in_block(&arrivals().polling, 0);
  }

  // Row 0 of this call's staging: a register less than a member.
  MGG_DEVICE const S* staged() const {
    return reinterpret_cast<const S*>(halo.staging + exchange.staging_offset());
  }
  // Adds what is there, from segment `at` on; returns the first segment that is not.
  MGG_DEVICE int64_t add_from(int64_t at, const Block& task, Sums& sums) const {
    for (; at != task.last; ++at) {
      const Segment segment = call.segments[at];
      if (segment.chunk > here) return at;
      if (segment.chunk == 0)
        Base::template add_segment<false>(segment, reinterpret_cast<const S*>(halo.rows), sums);
      else
        Base::template add_segment<true>(segment, staged(), sums);
    }
    return at;
  }

  // A worker's partial sums lie side by side, four values of each lane.
  MGG_DEVICE float* column(int32_t slot, int which, int p, int i) const {
    return partial_sums + slot * int64_t(held) +
           (((which * PACKS + p) * (values / 4) + i / 4) * LANES + worker.lane) * int64_t(4);
  }
  MGG_DEVICE void store(int32_t slot, int which, const Columns<S, PACKS>& sum) const {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < values; i += 4) {
        device::Pack four;
        memcpy(&four, &sum.value[p][i], sizeof four);
        device::store_pack(column(slot, which, p, i), four);
      }
  }
  MGG_DEVICE void load(int32_t slot, int which, Columns<S, PACKS>& sum) const {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
      for (int i = 0; i < values; i += 4) {
        const device::Pack four = device::load_pack(column(slot, which, p, i));
        memcpy(&sum.value[p][i], &four, sizeof four);
      }
  }

  // ---- deferred tasks: a list of this worker's

  MGG_DEVICE void load(const DeferredTask& was, Sums& sums) const {
    load(was.slot, 0, sums.sum);
    load(was.slot, 1, sums.total);
    sums.left = was.left;
  }
  // It goes on when all of its rows are there: each time costs storing and loading two sums.
  MGG_DEVICE void keep(int32_t place, const Block& task, int64_t number, int64_t at, const Sums& sums) const {
    const int32_t slot = deferred_tasks[place].slot;
    store(slot, 0, sums.sum);
    store(slot, 1, sums.total);
    worker.sync();  // all have read what is written now
    if (worker.lane == 0) {
      deferred_tasks[place].number = number, deferred_tasks[place].at = at;
      deferred_tasks[place].left = sums.left, deferred_tasks[place].chunk = call.segments[task.last - 1].chunk;
    }
    worker.sync();
  }
  // The last of the list takes its place.
  MGG_DEVICE void remove(int32_t place) {
    --deferred;
    worker.sync();
    if (worker.lane == 0 && place != deferred) {
      const int32_t slot = deferred_tasks[place].slot;
      deferred_tasks[place] = deferred_tasks[deferred];
      deferred_tasks[deferred].slot = slot;
    }
    worker.sync();
  }

  // ---- what to do next

  // A bit for each deferred task from `first` on: whether it can go on.
  MGG_DEVICE uint32_t ready_from(int32_t first) const {
    const int32_t mine = first + worker.lane;
    return vote(mine < deferred && deferred_tasks[mine].chunk <= here);
  }
  // Before this worker scans its deferred tasks, from the last to the first: the last has been checked when
  // it takes another's place. Nothing can go on that could not before, until more arrives.
  MGG_DEVICE void begin_scan() {
    if (scanned_arrivals == here) return;
    scanned_arrivals = here;
    unscanned = (deferred + LANES - 1) / LANES * LANES, ready = 0;
  }
  // Returns the next task of the scan; `fresh` where there is none.
  MGG_DEVICE int32_t next_of_scan() {
    while (!ready && unscanned > 0) {
      unscanned -= LANES;
      ready = ready_from(unscanned);
    }
    if (!ready) return fresh;
    const int32_t at = device::highest(ready);
    ready ^= 1u << at;
    return unscanned + at;
  }
  // Before anything is shared. By the whole block.
  MGG_DEVICE void begin() const {
    if (device::thread() == 0) arrivals() = {0, 0};
    if (lane() == 0) batch() = {0, 0, device::block() < halo.pushers ? -1 : 0};
    device::sync_block();
  }
  // Claims a batch of the tasks that are not assigned in advance, before it is needed.
  MGG_DEVICE void ask() {
    if (lane() == 0) asked = static_cast<uint32_t>(device::add(&halo.state->claimed, 1) - halo.state->claimed_before);
  }
  // The warp's next batch of tasks; none of them is left where there is no more.
  MGG_DEVICE HaloBatch next_batch(int32_t turn) {
    int64_t next = 0, end = halo.fixed;
    if (turn >= 0) {  // its share: batches in turn with the other warps that do not push
      const int warps = device::threads() / 32;
      const int64_t mine = int64_t(device::block() - halo.pushers) * warps + device::thread() / 32;
      next = (turn++ * int64_t(device::blocks() - halo.pushers) * warps + mine) * halo.claim;
      if (next >= end) turn = -1;
    }
    if (turn < 0) {
      next = halo.fixed + int64_t(device::from_lane(warp, asked, 0)) * halo.claim;
      end = this->items();
      if (next < end) ask();
    }
    return {next, static_cast<int32_t>(next + halo.claim < end ? halo.claim : next < end ? end - next : 0), turn};
  }
  // The number of the next task, to each worker of the warp that wants one; `none` where none is left.
  MGG_DEVICE int64_t hand_out(bool wants, bool& more) {
    const uint32_t wanting = device::vote(warp, wants && worker.lane == 0);
    if (!more || !wanting) return none;
    const int32_t before = device::count(wanting & ((1u << (lane() - worker.lane)) - 1));  // workers, ahead of this one
    HaloBatch now = batch();
    int64_t mine = none;
    for (int32_t given = 0, all = device::count(wanting); more && given < all;) {
      if (now.left == 0) {
        now = next_batch(now.turn);
        more = now.left > 0;
        if (!more) stamp(HaloStamps::claimed);
        look();  // here, where no sums take registers
        continue;
      }
      const int32_t count = all - given < now.left ? all - given : now.left;
      if (wants && before >= given && before < given + count) mine = now.next + (before - given);
      given += count, now.next += count, now.left -= count;
    }
    device::sync_lanes(warp);  // all have read it
    if (lane() == 0) batch() = now;
    return mine;
  }

  MGG_DEVICE void sum_all() {
    if (halo.holds)
      while (here < halo.arrival_count)
        if (!look()) device::rest();
    ask();
    for (bool more = true;;) {
      const int32_t place = next_of_scan();
      const int64_t number = hand_out(place == fresh && deferred < halo.slots, more);
      const bool idle = place == fresh && number == none;
      if (!any(!idle)) {
        if (!any(deferred > 0)) return;
        while (!any(deferred > 0 && scanned_arrivals != here))
          if (!look()) device::rest();
      } else if (any(idle && deferred > 0)) {
        look();
      }
      if (idle)
        begin_scan();
      else
        sum_one(place, number);
      device::sync_lanes(warp);
    }
  }
  // A deferred task, or a fresh one: as far as its rows are there.
  MGG_DEVICE void sum_one(int32_t place, int64_t number) {
    const DeferredTask was = place == fresh ? DeferredTask{number, 0, 0, 0, 0, 0} : deferred_tasks[place];
    const Block& task = this->take(was.number);
    if (place == fresh) this->prefetch(number + 32 / LANES);  // about where the warp's next tasks are
    Sums sums(Base::edges_of(task));
    if (place != fresh) load(was, sums);
    const int64_t at = add_from(place == fresh ? task.first : was.at, task, sums);
    if (at == task.last) {
      Base::complete(task, sums.result());
      if (place != fresh) remove(place);
    } else {
      keep(place == fresh ? deferred++ : place, task, was.number, at, sums);
    }
  }
  MGG_DEVICE void stamp(HaloStamps::Event event) const {
    if (halo.stamps.blocks && device::thread() == 0)
      halo.stamps.blocks[device::block() * HaloStamps::events + event] = device::clock();
  }
};

// Registers of a thread, at most: as few as are possible without spills, for as many blocks as possible at once.
template <class S, int PACKS, bool FAR>
constexpr int halo_registers() {
  constexpr int three_blocks = 80, two_blocks = 128, any = 255;  // blocks of 256 threads
  constexpr bool float32 = sizeof(S) == 4, sm_90 = device::bulk_copies;
  if (!sm_90 || (PACKS > 1 && !float32)) return any;
  return float32 && PACKS == 1 && !FAR ? three_blocks : two_blocks;
}

template <class S, class R, int LANES, int PACKS, class EXCHANGE>
MGG_DEVICE void push_and_sum(const DeviceAggregation<S>& sum, const EXCHANGE& exchange) {
  HaloWorker<S, R, LANES, PACKS, EXCHANGE> worker(sum, exchange);
  worker.stamp(HaloStamps::began);
  worker.begin();
  if (device::block() < exchange.halo.pushers) exchange.template push_all<LANES>();
  worker.stamp(HaloStamps::pushed);
  worker.sum_all();
  exchange.leave();
  worker.stamp(HaloStamps::ended);
}

// All blocks are resident, on this PE and on those that it exchanges rows with: they wait for each other.
template <class S, class R, int LANES, int PACKS, bool FAR>
MGG_KERNEL_OF((halo_registers<S, PACKS, FAR>())) void aggregate_halo(DeviceHaloCall<S> call) {
  push_and_sum<S, R, LANES, PACKS>(call.sum, HaloProtocol<FAR>(call.halo));
}

// After a call that holds its staging, and all that has read it.
template <bool FAR>
MGG_KERNEL void give_credits(DeviceHalo halo) {
  if (device::thread() == 0) HaloProtocol<FAR>(halo).give_credits(halo.state->calls);
}

}  // namespace mgg
