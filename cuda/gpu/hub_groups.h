// How the partial sums of a hub's parts are merged: a tree of two levels, whose shape depends on their number alone.
// Slots are merged in groups by the last part of each to arrive, and the groups by the last group, both in the order of
// their slots. So no worker walks thousands of slots while the others have ended, and the same input gives the same bits.
#pragma once
#include <cstdint>

#include "mgg/host_device.h"

namespace mgg {

constexpr int32_t group_slots = 32;

MGG_BOTH constexpr int32_t hub_groups(int32_t slots) { return (slots + group_slots - 1) / group_slots; }
// Parts of a group.
MGG_BOTH constexpr int32_t slots_of_group(int32_t slots, int32_t group) {
  return slots - group * group_slots < group_slots ? slots - group * group_slots : group_slots;
}
// Counters of what has not arrived: the parts of each group, and behind them the groups where there are several.
MGG_BOTH constexpr int32_t hub_counters(int32_t slots) {
  return hub_groups(slots) > 1 ? hub_groups(slots) + 1 : 1;
}
// Returns the value of a counter between calls.
MGG_BOTH constexpr int32_t counter_start(int32_t slots, int32_t counter) {
  return counter < hub_groups(slots) ? slots_of_group(slots, counter) : hub_groups(slots);
}

}  // namespace mgg
