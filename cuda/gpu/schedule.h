// Builds the schedule of a plan, or of a CSR, for a GPU: a task for each destination, or for each part of a hub.
//
// A destination's terms and their order are the same for every transfer: the plan's order, a hub cut after every
// `part_edges` edges whatever chunks they are in. So are the bits of its sum.
#pragma once
#include <algorithm>

#include "cpu/schedule.h"
#include "gpu/hub_groups.h"

namespace mgg {

struct DeviceSchedule {
  std::vector<Segment> segments;
  std::vector<Block> tasks;
  std::vector<Hub> hubs;
  std::vector<int32_t> degree;
  int32_t slots = 0, counters = 0;
  bool single = false;  // each task has one segment, of the same number; its flags say whether it is a part of a hub
};

// The segments of a hub, first .. last - 1, cut so that each part has just `part_edges` edges, but the last.
inline void add_device_hub(DeviceSchedule& made, const std::vector<Segment>& segments, size_t first, size_t last,
                           int64_t edges, int64_t part_edges) {
  const int64_t parts = (edges + part_edges - 1) / part_edges;
  if (made.segments.size() > INT32_MAX || made.slots > INT32_MAX - parts)
    throw std::invalid_argument("plan: parts of " + std::to_string(part_edges) +
                                " edges are too small; raise ps or dist");
  const int32_t hub = static_cast<int32_t>(made.hubs.size());
  made.hubs.push_back({static_cast<int32_t>(made.segments.size()), made.slots, static_cast<int32_t>(parts), edges,
                       made.counters});
  made.counters += hub_counters(static_cast<int32_t>(parts));
  int64_t open = static_cast<int64_t>(made.segments.size()), room = part_edges;
  const auto close = [&] {
    const int64_t end = static_cast<int64_t>(made.segments.size());
    if (end > open) made.tasks.push_back({open, end, hub, made.slots++});
    open = end, room = part_edges;
  };
  for (size_t at = first; at < last; ++at)
    for (Segment rest = segments[at]; rest.count > 0;) {
      Segment piece = rest;
      piece.count = static_cast<int32_t>(std::min<int64_t>(rest.count, room));
      rest.first_edge += piece.count, rest.count -= piece.count, room -= piece.count;
      made.segments.push_back(piece);
      if (room == 0) close();
    }
  close();
}

// Tasks that a large GPU runs at once, about. Which of these comes first costs no locality.
constexpr size_t order_window = size_t(1) << 14;

// Puts the longest of each window first, so that neighbours in a warp, which runs as long as its longest worker, end
// together (SELL-C-sigma sorts rows for the same reason: Kreutzer et al., SIAM J. Sci. Comput. 36(5), 2014). Segments
// lie in the order of tasks. What a task sums, and in which order, stays.
inline void order_tasks(DeviceSchedule& made) {
  std::vector<Segment> segments;  // of a window
  std::vector<Block> tasks;
  std::vector<int64_t> edges, next;
  for (size_t begin = 0, end = 0; begin < made.tasks.size(); begin = end) {
    end = std::min(begin + order_window, made.tasks.size());
    const int64_t first_segment = made.tasks[begin].first;
    tasks.assign(made.tasks.begin() + static_cast<std::ptrdiff_t>(begin),
                 made.tasks.begin() + static_cast<std::ptrdiff_t>(end));
    segments.assign(made.segments.begin() + static_cast<std::ptrdiff_t>(first_segment),
                    made.segments.begin() + static_cast<std::ptrdiff_t>(tasks.back().last));
    edges.clear();
    for (const Block& task : tasks) {
      edges.push_back(0);
      for (int64_t at = task.first; at < task.last; ++at) edges.back() += segments[at - first_segment].count;
    }
    // A counting sort, stable: a task has at most `part_edges` edges.
    const int64_t most = *std::max_element(edges.begin(), edges.end());
    next.assign(most + 2, 0);
    for (const int64_t each : edges) ++next[most - each + 1];
    for (int64_t at = 0; at <= most; ++at) next[at + 1] += next[at];
    for (size_t at = 0; at < tasks.size(); ++at)
      made.tasks[begin + static_cast<size_t>(next[most - edges[at]]++)] = tasks[at];
    int64_t to = first_segment;
    for (size_t at = begin; at < end; ++at) {
      Block& task = made.tasks[at];
      const int64_t from = task.first - first_segment, count = task.last - task.first;
      std::copy_n(segments.begin() + static_cast<std::ptrdiff_t>(from), count,
                  made.segments.begin() + static_cast<std::ptrdiff_t>(to));
      task.first = to, task.last = to += count;
      if (task.hub >= 0 && task.slot == made.hubs[task.hub].first_slot)
        made.hubs[task.hub].first_segment = static_cast<int32_t>(task.first);
    }
  }
  made.single = made.segments.size() == made.tasks.size();
  if (made.single)
    for (size_t at = 0; at < made.tasks.size(); ++at) made.segments[at].flags = made.tasks[at].hub >= 0;
}

// `plan`: chunks, indices, edges and destinations. Raises std::invalid_argument for one that names what is not there.
inline DeviceSchedule make_device_schedule(const Schedule& plan, const std::vector<Segment>& segments,
                                           int64_t part_edges) {
  check_plan(plan, segments);
  const std::vector<Segment> sorted = by_destination(plan, segments);
  DeviceSchedule made;
  made.degree.assign(plan.destinations, 0);
  for (size_t first = 0, last = 0; first < sorted.size(); first = last) {
    int64_t edges = 0;
    for (; last < sorted.size() && sorted[last].destination == sorted[first].destination; ++last)
      edges += sorted[last].count;
    if (edges > INT32_MAX) throw std::invalid_argument("plan: a destination of more than 2^31 - 1 edges");
    made.degree[sorted[first].destination] = static_cast<int32_t>(edges);
    if (edges > part_edges) {
      add_device_hub(made, sorted, first, last, edges, part_edges);
      continue;
    }
    const int64_t begin = static_cast<int64_t>(made.segments.size());
    made.segments.insert(made.segments.end(), sorted.begin() + static_cast<std::ptrdiff_t>(first),
                         sorted.begin() + static_cast<std::ptrdiff_t>(last));
    made.tasks.push_back({begin, static_cast<int64_t>(made.segments.size()), -1, 0});
  }
  order_tasks(made);
  return made;
}

// A schedule with the segments of chunk 1, a halo, cut wherever their edges go on to rows that arrive with others.
// arrival_of: of each row of the staging. Arrival a is chunk 1 + a afterwards.
inline DeviceSchedule cut_by_arrival(const DeviceSchedule& made, const int32_t* indices,
                                     const std::vector<int32_t>& arrival_of) {
  DeviceSchedule cut = made;
  cut.segments.clear();
  std::vector<int64_t> begins;  // where each segment's pieces are
  begins.reserve(made.segments.size() + 1);
  for (const Segment& segment : made.segments) {
    begins.push_back(static_cast<int64_t>(cut.segments.size()));
    if (segment.chunk == 0) {
      cut.segments.push_back(segment);
      continue;
    }
    const int64_t end = segment.first_edge + segment.count;
    for (int64_t edge = segment.first_edge; edge < end;) {
      Segment piece = segment;
      const int32_t arrival = arrival_of[indices[edge]];
      piece.first_edge = edge, piece.chunk = 1 + arrival;
      while (edge < end && arrival_of[indices[edge]] == arrival) ++edge;
      piece.count = static_cast<int32_t>(edge - piece.first_edge);
      cut.segments.push_back(piece);
    }
  }
  begins.push_back(static_cast<int64_t>(cut.segments.size()));
  if (cut.segments.size() > INT32_MAX && !cut.hubs.empty())
    throw std::invalid_argument("plan: more than 2^31 - 1 segments; raise the size of a chunk");
  for (Block& task : cut.tasks) task.first = begins[task.first], task.last = begins[task.last];
  for (Hub& hub : cut.hubs) hub.first_segment = static_cast<int32_t>(begins[hub.first_segment]);
  return cut;
}

}  // namespace mgg
