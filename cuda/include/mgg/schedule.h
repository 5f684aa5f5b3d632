// Tasks of a schedule. The host makes them for its own threads (cpu/schedule.h) and for a GPU (gpu/schedule.h).
#pragma once
#include <cstdint>

namespace mgg {

// A block of segments, which one worker (a thread; on a GPU a group of lanes) claims at once: whole destinations, or a
// part of a hub.
struct Block {
  int64_t first, last;  // positions in Schedule::segments
  int32_t hub;          // -1: whole destinations
  int32_t slot;         // where a part of a hub leaves its partial sum
};

// A destination with so many edges (BlockSizes::part_edges) that several share it: its parts are summed by several
// workers, and the last to arrive adds the partial sums in the order of their slots.
struct Hub {
  int32_t first_segment;  // whose flags mark the first and last stage of its destination
  int32_t first_slot, slots;
  int64_t edges;
  int32_t first_counter = 0;  // on a GPU, of its parts that have not arrived (gpu/hub_groups.h)
};

}  // namespace mgg
