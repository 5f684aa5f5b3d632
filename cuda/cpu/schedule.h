// Builds the schedule of a plan: stages, segments by destination, blocks of about wpb * ps edges, hubs split.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/aggregate.h"

namespace mgg {

// How work is cut: into blocks of this many edges at least, of whole destinations; those with more than `part_edges`
// are hubs, summed in parts of so many.
struct BlockSizes {
  int64_t block_edges, part_edges;
};

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

// Whether a chunk's rows are there only once an exchange has brought them.
inline bool arrives(const Chunk& chunk) { return chunk.kind == Chunk::halo || chunk.kind == Chunk::streamed; }

// A stage is the set of chunks that become readable together. Each round of a halo is a stage of its own, and each
// streamed chunk.
inline int32_t stage_of(const Schedule& s, const Segment& segment) {
  return arrives(s.chunks[segment.chunk]) ? segment.chunk : 0;
}

// Sorts by destination; stable, so that chunks and edges keep their order.
inline std::vector<Segment> by_destination(const Schedule& s, const std::vector<Segment>& segments) {
  std::vector<int64_t> next(s.destinations + 1, 0);
  for (const Segment& segment : segments) ++next[segment.destination + 1];
  for (int64_t v = 0; v < s.destinations; ++v) {
    if (next[v + 1] == 0) throw std::invalid_argument("plan: destination " + std::to_string(v) + " has no segment");
    next[v + 1] += next[v];
  }
  std::vector<Segment> sorted(segments.size());
  for (const Segment& segment : segments) sorted[next[segment.destination]++] = segment;
  return sorted;
}

// Returns true if there is one stage, and segments are sorted by destination, each of which has some (as in sampled
// blocks).
inline bool lies_in_order(const Schedule& s, const std::vector<Segment>& segments) {
  for (const Chunk& chunk : s.chunks)
    if (arrives(chunk)) return false;
  int64_t next = 0;
  for (const Segment& segment : segments) {
    if (segment.destination != next && segment.destination != next - 1) return false;
    next = segment.destination + 1;
  }
  return next == s.destinations;
}

// Sorts by stage, then destination.
inline std::vector<Segment> in_order(const Schedule& s, std::vector<Segment> segments) {
  if (lies_in_order(s, segments)) return segments;
  std::vector<Segment> sorted = by_destination(s, segments);
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Segment& a, const Segment& b) {
    return stage_of(s, a) < stage_of(s, b);
  });
  return sorted;
}

// Cuts segments into pieces of `most` edges: a hub's parts, which threads share, begin and end with a piece.
inline std::vector<Segment> cut(std::vector<Segment> segments, int64_t most) {
  const auto fits = [most](const Segment& segment) { return segment.count <= most; };
  if (std::all_of(segments.begin(), segments.end(), fits)) return segments;
  std::vector<Segment> pieces;
  pieces.reserve(segments.size());
  for (const Segment& segment : segments) {
    Segment piece = segment;
    for (int64_t left = segment.count; left > most; left -= most) {
      piece.count = static_cast<int32_t>(most);
      pieces.push_back(piece);
      piece.first_edge += most;
    }
    piece.count = static_cast<int32_t>(segment.first_edge + segment.count - piece.first_edge);
    pieces.push_back(piece);
  }
  return pieces;
}

// Marks where a destination's sum begins and ends, and counts its edges, in the only stage that there is.
inline void mark_one_stage(Schedule& s) {
  s.degree.assign(s.destinations, 0);
  int64_t last = -1;
  for (Segment& segment : s.segments) {
    segment.flags = segment.destination != last ? first_stage | last_stage : 0;
    s.degree[segment.destination] += segment.count;
    last = segment.destination;
  }
}

// The same in any number of stages.
inline void mark(Schedule& s) {
  constexpr int32_t never = -1;
  std::vector<int32_t> last(s.destinations, never);
  s.degree.assign(s.destinations, 0);
  for (const Segment& segment : s.segments) last[segment.destination] = stage_of(s, segment);
  std::vector<char> open(s.destinations, 0);
  for (size_t at = 0, end = 0; at < s.segments.size(); at = end) {
    Segment& head = s.segments[at];
    const int32_t stage = stage_of(s, head);
    for (; end < s.segments.size() && s.segments[end].destination == head.destination &&
           stage_of(s, s.segments[end]) == stage;
         ++end)
      s.degree[head.destination] += s.segments[end].count;
    head.flags = (open[head.destination] ? 0 : first_stage) | (last[head.destination] == stage ? last_stage : 0);
    open[head.destination] = 1;
  }
}

inline void add_hub(Schedule& s, int64_t first, int64_t last, int64_t edges, int64_t part_edges) {
  if (first > INT32_MAX || s.slots > INT32_MAX - (last - first))
    throw std::invalid_argument("plan: parts of " + std::to_string(part_edges) +
                                " edges are too small; raise wpb or ps");
  Hub hub{static_cast<int32_t>(first), s.slots, 0, edges};
  for (int64_t at = first; at < last;) {
    int64_t end = at, taken = 0;
    while (end < last && (end == at || taken + s.segments[end].count <= part_edges)) taken += s.segments[end++].count;
    s.blocks.push_back({at, end, static_cast<int32_t>(s.hubs.size()), s.slots + hub.slots++});
    at = end;
  }
  s.slots += hub.slots;
  s.hubs.push_back(hub);
}

// The blocks of one stage, whose segments are first .. last - 1.
inline void make_blocks(Schedule& s, int64_t first, int64_t last, const BlockSizes& sizes) {
  const int64_t first_block = static_cast<int64_t>(s.blocks.size());
  int64_t open = first, open_edges = 0;  // the block being filled
  const auto close = [&](int64_t at) {
    if (at > open) s.blocks.push_back({open, at, -1, 0});
    open = at, open_edges = 0;
  };
  for (int64_t at = first; at < last;) {
    int64_t end = at, edges = 0;
    for (; end < last && s.segments[end].destination == s.segments[at].destination; ++end)
      edges += s.segments[end].count;
    if (edges > sizes.part_edges) {
      close(at);
      add_hub(s, at, end, edges, sizes.part_edges);
      open = end;
    } else {
      open_edges += edges + (end - at);  // a destination costs something even without edges
      if (open_edges >= sizes.block_edges) close(end);
    }
    at = end;
  }
  close(last);
  s.stages.push_back({first_block, static_cast<int64_t>(s.blocks.size())});
}

// Remote rows that are fetched lie one after another, in the order of their block's edges.
inline void make_places(Schedule& s) {
  s.place.assign(s.indices, s.indices + s.edges);
  for (const Block& block : s.blocks) {
    int32_t taken = 0;
    for (int64_t i = block.first; i < block.last; ++i) {
      const Segment& segment = s.segments[i];
      if (s.chunks[segment.chunk].kind == Chunk::owned) continue;
      for (int64_t e = segment.first_edge; e < segment.first_edge + segment.count; ++e) s.place[e] = taken++;
    }
    s.most_remote = std::max<int64_t>(s.most_remote, taken);
  }
}

inline void make_schedule(Schedule& s, std::vector<Segment> segments, const BlockSizes& sizes, bool gets) {
  check_plan(s, segments);
  s.segments = cut(in_order(s, std::move(segments)), sizes.part_edges);
  int32_t stages = 1;
  for (size_t chunk = 0; chunk < s.chunks.size(); ++chunk)
    if (arrives(s.chunks[chunk])) stages = static_cast<int32_t>(chunk) + 1;
  stages == 1 ? mark_one_stage(s) : mark(s);
  int64_t first = 0;
  for (int32_t stage = 0; stage < stages; ++stage) {
    int64_t last = first;
    while (last < static_cast<int64_t>(s.segments.size()) && stage_of(s, s.segments[last]) == stage) ++last;
    make_blocks(s, first, last, sizes);
    first = last;
  }
  s.pending = std::make_unique<std::atomic<int32_t>[]>(s.hubs.size());
  for (size_t i = 0; i < s.hubs.size(); ++i) s.pending[i] = s.hubs[i].slots;
  if (gets) make_places(s);
}

}  // namespace mgg
