// Kernels that try out the shim itself.
#pragma once
#include <cstdint>
#include <string>

namespace mgg {

// "ring" (puts with signals) or "fetch" (gets, double-buffered) over so many PEs, or "counted", three blocks of two
// warps on one PE that do a known number of what the shim counts. Throws std::runtime_error where a
// value is wrong or the shim finds a fault.
void exercise(const std::string& name, int pes, uint64_t seed);

}  // namespace mgg
