// Builds the schedule of a plan: segments by destination, blocks of about wpb * ps edges, hubs split.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "aggregate_host.h"

namespace mgg {

inline void check_plan(const Schedule& s, const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) {
    if (segment.destination < 0 || segment.destination >= s.destinations || segment.chunk < 0 ||
        segment.chunk >= static_cast<int32_t>(s.chunks.size()) || segment.count < 0 || segment.first_edge < 0 ||
        segment.first_edge + segment.count > s.edges)
      throw std::invalid_argument("plan: a segment lies outside the destinations, chunks or edges");
    const int64_t rows = s.chunks[segment.chunk].rows;
    for (int64_t e = segment.first_edge; e < segment.first_edge + segment.count; ++e)
      if (s.indices[e] < 0 || s.indices[e] >= rows)
        throw std::invalid_argument("plan: edge " + std::to_string(e) + " names row " +
                                    std::to_string(s.indices[e]) + " of a chunk of " + std::to_string(rows));
  }
}

// Stable: within a destination, chunks keep their order and edges theirs.
inline std::vector<Segment> by_destination(const std::vector<Segment>& segments, int64_t destinations) {
  std::vector<int64_t> next(destinations + 1, 0);
  for (const Segment& segment : segments) ++next[segment.destination + 1];
  for (int64_t v = 0; v < destinations; ++v) {
    if (next[v + 1] == 0) throw std::invalid_argument("plan: destination " + std::to_string(v) + " has no segment");
    next[v + 1] += next[v];
  }
  std::vector<Segment> sorted(segments.size());
  for (const Segment& segment : segments) sorted[next[segment.destination]++] = segment;
  return sorted;
}

inline void add_hub(Schedule& s, int64_t first, int64_t last, int64_t edges, int64_t block_edges) {
  if (s.slots > INT32_MAX - (last - first))
    throw std::invalid_argument("plan: blocks of " + std::to_string(block_edges) + " edges are too small; raise wpb or ps");
  Hub hub{s.segments[first].destination, s.slots, 0, edges};
  for (int64_t at = first; at < last;) {
    int64_t end = at, taken = 0;
    while (end < last && (end == at || taken + s.segments[end].count <= block_edges)) taken += s.segments[end++].count;
    s.blocks.push_back({at, end, static_cast<int32_t>(s.hubs.size()), s.slots + hub.slots++});
    at = end;
  }
  s.slots += hub.slots;
  s.hubs.push_back(hub);
}

inline void make_blocks(Schedule& s, int64_t block_edges) {
  const int64_t count = static_cast<int64_t>(s.segments.size());
  int64_t open = 0, open_edges = 0;  // the block being filled
  const auto close = [&](int64_t at) {
    if (at > open) s.blocks.push_back({open, at, -1, 0});
    open = at, open_edges = 0;
  };
  for (int64_t at = 0; at < count;) {
    int64_t end = at, edges = 0;
    for (; end < count && s.segments[end].destination == s.segments[at].destination; ++end)
      edges += s.segments[end].count;
    if (edges > block_edges) {
      close(at);
      add_hub(s, at, end, edges, block_edges);
      open = end;
    } else {
      open_edges += edges + (end - at);  // a destination costs something even without edges
      if (open_edges >= block_edges) close(end);
    }
    at = end;
  }
  close(count);
}

inline void make_schedule(Schedule& s, std::vector<Segment> segments, int ps, int dist, int wpb) {
  check_plan(s, segments);
  s.chunk_end.assign(s.chunks.size(), 0);
  for (const Segment& segment : segments)
    s.chunk_end[segment.chunk] = std::max(s.chunk_end[segment.chunk], segment.first_edge + segment.count);
  s.segments = by_destination(segments, s.destinations);
  make_blocks(s, int64_t(ps) * wpb);
  s.prefetch = dist;
  s.pending = std::make_unique<std::atomic<int32_t>[]>(s.hubs.size());
  for (size_t i = 0; i < s.hubs.size(); ++i) s.pending[i] = s.hubs[i].slots;
}

}  // namespace mgg
