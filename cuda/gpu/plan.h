// A plan on a GPU: its tasks, segments and edges in device memory, and memory that its calls reuse.
#pragma once
#include <map>
#include <vector>

#include "gpu/arguments.h"
#include "runtime/runtime_cuda.h"
#include "gpu/schedule.h"

namespace mgg {

// Tasks, and the segments that they take, in device memory.
class DeviceTasks {
 public:
  DeviceTasks() = default;
  explicit DeviceTasks(const DeviceSchedule& made)
      : count_(static_cast<int64_t>(made.tasks.size())),
        tasks_(gpu::uploaded(made.tasks)),
        segments_(gpu::uploaded(made.segments)),
        hubs_(gpu::uploaded(made.hubs)) {}
  int64_t count() const { return count_; }
  template <class Call>
  void fill(Call& call) const {
    call.tasks = tasks_.as<Block>(), call.count = count_, call.segments = segments_.as<Segment>();
  }
  const Hub* hubs() const { return hubs_.as<Hub>(); }

 private:
  int64_t count_ = 0;
  gpu::Memory tasks_, segments_, hubs_;
};

class DevicePlan {
 public:
  // `indices` is read here only. A destination of more than `part_edges` edges is a hub, shared by several workers.
  // Raises std::invalid_argument for a plan that names what is not there.
  DevicePlan(std::vector<Chunk> chunks, const std::vector<Segment>& segments, const int32_t* indices, int64_t edges,
             int64_t destinations, int64_t part_edges, int rank)
      : chunks_(std::move(chunks)), rank_(rank) {
    Schedule plan;
    plan.chunks = chunks_, plan.indices = indices, plan.edges = edges, plan.destinations = destinations;
    schedule_ = make_device_schedule(plan, segments, part_edges);
    tasks_ = DeviceTasks(schedule_);
    degree_ = gpu::uploaded(schedule_.degree);
    indices_ = gpu::Memory(edges * sizeof(int32_t));
    indices_.upload(indices, edges * sizeof(int32_t));
    for (const Chunk& chunk : chunks_) owners_.push_back(chunk.pe);
    owners_table_ = gpu::uploaded(owners_);
  }

  // How calls reach the rows of each chunk, on the device.
  struct Sources {
    gpu::Memory rows, links;
    bool near = false, far = false;  // whether there are any such
  };

  int64_t tasks() const { return tasks_.count(); }
  int64_t counters() const { return schedule_.counters; }
  int64_t slots() const { return schedule_.slots; }
  int rank() const { return rank_; }
  const DeviceSchedule& schedule() const { return schedule_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const DeviceTasks& device_tasks() const { return tasks_; }
  const int32_t* degree() const { return degree_.as<int32_t>(); }
  const int32_t* indices() const { return indices_.as<int32_t>(); }
  const int32_t* owners() const { return owners_table_.as<int32_t>(); }

  // Returns the arguments that all kernels over the plan take.
  template <class Call>
  Call call() const {
    Call call{};
    tasks_.fill(call);
    return call;
  }

  // `addresses` of each PE's row 0; 0: no pointer reaches it. Raises std::invalid_argument for a plan whose remote rows
  // arrive in rounds.
  const Sources& sources(const uint64_t* addresses, int64_t pes, int64_t row_bytes) {
    std::vector<uint64_t> key;
    std::vector<int32_t> links;
    Sources made;
    for (const Chunk& chunk : chunks_) {
      if (chunk.pe < 0 || chunk.pe >= pes) throw std::invalid_argument("plan: names a PE that is not there");
      if (chunk.kind == Chunk::halo && chunk.segments > 0)
        throw std::invalid_argument("plan: its remote rows arrive in rounds (halo), and are read on their owners here");
      const uint64_t base = addresses[chunk.pe];
      links.push_back(chunk.pe == rank_ ? local_link : base ? near_link : far_link);
      made.near |= links.back() == near_link, made.far |= links.back() == far_link;
      key.push_back(base ? base + chunk.first_row * row_bytes : 0);
    }
    auto found = sources_.find(key);
    if (found == sources_.end()) {
      if (sources_.size() >= most_kept) sources_.clear();
      made.rows = gpu::uploaded(key), made.links = gpu::uploaded(links);
      found = sources_.emplace(std::move(key), std::move(made)).first;
    }
    return found->second;
  }
  // The same for kernels that read through pointers. Raises std::invalid_argument for a PE that none reaches.
  const Sources& reachable_sources(const uint64_t* addresses, int64_t pes, int64_t row_bytes) {
    const Sources& found = sources(addresses, pes, row_bytes);
    for (const int32_t pe : owners_)
      if (!addresses[pe] && pe != rank_)
        throw std::invalid_argument("rows of PE " + std::to_string(pe) + " are not reachable by pointer from PE " +
                                    std::to_string(rank_) + ", as the transfer direct needs");
    return found;
  }

  // Partial sums of hubs' parts, and counters of what has not arrived for each pass.
  float* partials(int64_t values_per_slot) {
    const size_t bytes = slots() * values_per_slot * sizeof(float);
    if (bytes > partials_.bytes()) partials_ = gpu::Memory(bytes);
    return partials_.as<float>();
  }
  int32_t* pending(int64_t passes) {
    if (passes * counters() * sizeof(int32_t) > pending_.bytes()) {
      std::vector<int32_t> starts;
      for (int64_t pass = 0; pass < passes; ++pass)
        for (const Hub& hub : schedule_.hubs)
          for (int32_t at = 0; at < hub_counters(hub.slots); ++at) starts.push_back(counter_start(hub.slots, at));
      pending_ = gpu::uploaded(starts);
    }
    return pending_.as<int32_t>();
  }
  // Allocates the memory of a call in advance: an allocation may wait for running kernels, and these for this rank's.
  void make_room(int64_t passes, int64_t values_per_slot) { pending(passes), partials(values_per_slot); }

 private:
  static constexpr size_t most_kept = 64;  // tables of sources: one for each pair of plan and rows

  std::vector<Chunk> chunks_;
  int rank_;
  DeviceSchedule schedule_;
  DeviceTasks tasks_;
  std::vector<int32_t> owners_;
  gpu::Memory degree_, indices_, owners_table_, partials_, pending_;
  std::map<std::vector<uint64_t>, Sources> sources_;
};

}  // namespace mgg
