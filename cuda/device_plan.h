// A plan on a GPU: its tasks, segments and edges in device memory, and what calls over it keep between them.
#pragma once
#include <map>
#include <vector>

#include "runtime_cuda.h"
#include "schedule_host.h"

namespace mgg {

class DevicePlan {
 public:
  // `indices` is read here only. A destination of more than `part_edges` edges is a hub, shared by several workers.
  // Raises std::invalid_argument for a plan that names what is not there.
  DevicePlan(std::vector<Chunk> chunks, const std::vector<Segment>& segments, const int32_t* indices, int64_t edges,
             int64_t destinations, int64_t part_edges, int rank)
      : rank_(rank) {
    schedule_.chunks = std::move(chunks);
    schedule_.indices = indices, schedule_.edges = edges, schedule_.destinations = destinations;
    make_schedule(schedule_, segments, {0, part_edges}, false);
    schedule_.indices = nullptr;
    tasks_ = gpu::uploaded(schedule_.blocks);
    segments_ = gpu::uploaded(schedule_.segments);
    hubs_ = gpu::uploaded(schedule_.hubs);
    degree_ = gpu::uploaded(schedule_.degree);
    indices_ = gpu::Memory(edges * sizeof(int32_t));
    indices_.upload(indices, edges * sizeof(int32_t));
    std::vector<int32_t> remote;
    for (const Chunk& chunk : schedule_.chunks) {
      if (chunk.kind == Chunk::halo)
        throw std::invalid_argument("plan: the GPU's kernels read rows on their owners (direct), and have no halo yet");
      remote.push_back(chunk.pe != rank);
      has_remote_rows_ |= chunk.pe != rank;
    }
    remote_ = gpu::uploaded(remote);
  }

  int64_t tasks() const { return static_cast<int64_t>(schedule_.blocks.size()); }
  int64_t edges() const { return schedule_.edges; }
  int64_t destinations() const { return schedule_.destinations; }
  int64_t hubs() const { return static_cast<int64_t>(schedule_.hubs.size()); }
  int64_t slots() const { return schedule_.slots; }
  bool has_remote_rows() const { return has_remote_rows_; }

  // What all kernels over the plan take.
  template <class Call>
  Call call() const {
    Call call{};
    call.tasks = tasks_.as<Block>(), call.count = tasks(), call.segments = segments_.as<Segment>();
    return call;
  }
  const Hub* hub_table() const { return hubs_.as<Hub>(); }
  const int32_t* degree() const { return degree_.as<int32_t>(); }
  const int32_t* indices() const { return indices_.as<int32_t>(); }
  const int32_t* remote() const { return remote_.as<int32_t>(); }

  // Row 0 of each chunk, on the device; `addresses` of each PE's row 0. Raises std::invalid_argument for a PE that no
  // pointer reaches.
  const void* const* sources(const uint64_t* addresses, int64_t pes, int64_t row_bytes) {
    std::vector<uint64_t> key;
    for (const Chunk& chunk : schedule_.chunks) {
      if (chunk.pe < 0 || chunk.pe >= pes) throw std::invalid_argument("plan: names a PE that is not there");
      const uint64_t base = addresses[chunk.pe];
      if (!base && chunk.rows)
        throw std::invalid_argument("rows of PE " + std::to_string(chunk.pe) +
                                    " are not reachable by pointer from PE " + std::to_string(rank_) +
                                    ", as the transfer direct needs");
      key.push_back(base + chunk.first_row * row_bytes);
    }
    auto found = sources_.find(key);
    if (found == sources_.end()) {
      if (sources_.size() >= most_kept) sources_.clear();
      found = sources_.emplace(key, gpu::uploaded(key)).first;
    }
    return found->second.as<const void*>();
  }

  // Partial sums of hubs' parts, and counters of parts that have not arrived for each pass.
  float* partials(int64_t values_per_slot) {
    const size_t bytes = slots() * values_per_slot * sizeof(float);
    if (bytes > partials_.bytes()) partials_ = gpu::Memory(bytes);
    return partials_.as<float>();
  }
  int32_t* pending(int64_t passes) {
    if (passes * hubs() * sizeof(int32_t) > pending_.bytes()) {
      std::vector<int32_t> parts;
      for (int64_t pass = 0; pass < passes; ++pass)
        for (const Hub& hub : schedule_.hubs) parts.push_back(hub.slots);
      pending_ = gpu::uploaded(parts);
    }
    return pending_.as<int32_t>();
  }
  float* maximum() { return statistic(maximum_); }
  float* total() { return statistic(total_); }

 private:
  static constexpr size_t most_kept = 64;  // tables of sources: one for each pair of plan and rows
  float* statistic(gpu::Memory& memory) const {
    if (memory.bytes() == 0) memory = gpu::Memory(destinations() * sizeof(float));
    return memory.as<float>();
  }

  Schedule schedule_;
  int rank_;
  bool has_remote_rows_ = false;
  gpu::Memory tasks_, segments_, hubs_, degree_, indices_, remote_, partials_, pending_, maximum_, total_;
  std::map<std::vector<uint64_t>, gpu::Memory> sources_;
};

}  // namespace mgg
