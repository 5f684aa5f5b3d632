// State of a plan's halo on a GPU: its exchange with other PEs, and the schedule for rows of one size.
#pragma once
#include "gpu/plan.h"

namespace mgg {

// Stagings, signals and the count of calls of one plan. Buffers are Python's.
class DeviceExchange {
 public:
  // stagings, signals: each PE's, 0 where no pointer reaches it.
  DeviceExchange(int rank, const std::vector<uint64_t>& stagings, const std::vector<uint64_t>& signals,
                 uint64_t staging, int64_t staging_bytes, uint64_t signal, uint64_t outbox)
      : rank_(rank),
        far_(false),
        staging_(staging),
        signal_(signal),
        outbox_(outbox),
        staging_bytes_(staging_bytes),
        stagings_(gpu::uploaded(stagings)),
        signals_(gpu::uploaded(signals)),
        state_(gpu::uploaded(std::vector<HaloState>(1))) {
    if (stagings.size() != signals.size()) throw std::invalid_argument("halo: a staging and a signal for each PE");
    for (const uint64_t each : signals) far_ |= each == 0;  // a staging of no rows has no address either
  }

  bool far() const { return far_; }  // whether some PEs are reached by the transport only
  int rank() const { return rank_; }

  // Room for tasks that workers defer, of `values` columns each, twice. Kept for each size: layers of several widths
  // take turns, and making it anew would wait for the kernels that run.
  void make_room(int64_t workers, int64_t slots, int64_t values) {
    if (rooms_.size() >= most_kept && !rooms_.count({workers, slots})) rooms_.clear();  // of a search's settings
    gpu::Memory& room = rooms_[{workers, slots}];
    if (room.bytes() == 0) {
      std::vector<DeferredTask> empty(workers * slots);
      for (int64_t at = 0; at < workers * slots; ++at) empty[at].slot = static_cast<int32_t>(at % slots);
      room = gpu::uploaded(empty);
    }
    deferred_ = room.as<DeferredTask>(), slots_ = slots;
    const size_t bytes = workers * slots * 2 * values * sizeof(float);
    if (bytes > partial_sums_.bytes()) partial_sums_ = gpu::Memory(bytes);
  }

  void fill(DeviceHalo& halo) const {
    halo.me = rank_, halo.stagings = stagings_.as<char*>(), halo.signals = signals_.as<uint64_t*>();
    halo.staging = reinterpret_cast<char*>(staging_), halo.signal = reinterpret_cast<uint64_t*>(signal_);
    halo.outbox = reinterpret_cast<char*>(outbox_), halo.staging_bytes = staging_bytes_;
    halo.state = state_.as<HaloState>(), halo.deferred = deferred_, halo.partial_sums = partial_sums_.as<float>();
    halo.slots = static_cast<int32_t>(slots_);
  }

  // Waits for the kernels that run.
  HaloState state() const {
    HaloState found;
    state_.download(&found, sizeof found);
    return found;
  }

 private:
  static constexpr size_t most_kept = 8;  // rooms: one for each width of rows and kind of sum

  int rank_;
  bool far_;
  uint64_t staging_, signal_, outbox_;
  int64_t staging_bytes_, slots_ = 0;
  DeferredTask* deferred_ = nullptr;
  std::map<std::pair<int64_t, int64_t>, gpu::Memory> rooms_;
  gpu::Memory stagings_, signals_, state_, partial_sums_;
};

// The rows that cross in a call over rows of one size, and the plan's tasks cut accordingly.
class DeviceHaloSchedule {
 public:
  // arrivals: rows of the staging that come together, in the order of the plan's edges. credits: the first credit among
  // the signals. `indices`: the plan's.
  struct Arrival {
    int64_t first, rows;
    int32_t signal, padding;
  };

  DeviceHaloSchedule(const DevicePlan& plan, const int32_t* indices, const std::vector<Push>& pushes,
                 const std::vector<Arrival>& arrivals, const std::vector<int32_t>& send_rows,
                 const std::vector<int32_t>& owners, int32_t credits)
      : credits_(credits),
        push_count_(static_cast<int32_t>(pushes.size())),
        owner_count_(static_cast<int32_t>(owners.size())),
        arrival_count_(static_cast<int32_t>(arrivals.size())) {
    const std::vector<Chunk>& chunks = plan.chunks();
    if (chunks.size() != 2 || chunks[1].kind != Chunk::halo)
      throw std::invalid_argument("halo: a plan of its owned rows and one round");
    std::vector<int32_t> arrival_of(chunks[1].rows, -1), signals;
    for (size_t at = 0; at < arrivals.size(); ++at) {
      const Arrival& arrival = arrivals[at];
      if (arrival.first < 0 || arrival.rows < 0 || arrival.first + arrival.rows > chunks[1].rows)
        throw std::invalid_argument("halo: an arrival outside the staging");
      std::fill_n(arrival_of.begin() + arrival.first, arrival.rows, static_cast<int32_t>(at));
      signals.push_back(arrival.signal);
    }
    for (const int32_t arrival : arrival_of)
      if (arrival < 0) throw std::invalid_argument("halo: a row that never arrives");
    tasks_ = DeviceTasks(cut_by_arrival(plan.schedule(), indices, arrival_of));
    pushes_ = gpu::uploaded(pushes), arrivals_ = gpu::uploaded(signals);
    send_rows_ = gpu::uploaded(send_rows), owners_ = gpu::uploaded(owners);
  }

  const DeviceTasks& tasks() const { return tasks_; }
  // Nothing crosses, in either direction.
  bool empty() const { return push_count_ == 0 && arrival_count_ == 0; }

  void fill(DeviceHalo& halo) const {
    halo.pushes = pushes_.as<Push>(), halo.push_count = push_count_;
    halo.arrivals = arrivals_.as<int32_t>(), halo.arrival_count = arrival_count_;
    halo.send_rows = send_rows_.as<int32_t>();
    halo.owners = owners_.as<int32_t>(), halo.owner_count = owner_count_, halo.credits = credits_;
  }

 private:
  int32_t credits_, push_count_, owner_count_, arrival_count_;
  DeviceTasks tasks_;
  gpu::Memory pushes_, arrivals_, send_rows_, owners_;
};
static_assert(sizeof(DeviceHaloSchedule::Arrival) == 24, "Arrival is shared with Python");

}  // namespace mgg
