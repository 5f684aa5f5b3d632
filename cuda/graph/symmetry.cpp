// The sum of hashes by which a graph is found to have each edge's reverse (mgg_hpc/data/symmetry.py says how).
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bind.h"

namespace {

using mgg::Flat;
using mgg::require;

// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA '14).
uint64_t mix(uint64_t h) {
  h += 0x9E3779B97F4A7C15u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

template <class Id>
uint64_t imbalance(Flat<const int64_t> destinations, Flat<const Id> sources, Flat<const float> weight) {
  const int64_t count = static_cast<int64_t>(destinations.size());
  require(sources.size() == destinations.size() && (weight.size() == 0 || weight.size() == destinations.size()),
          "imbalance: an edge has a destination, a source and, in all or none, a weight");
  const bool weighted = weight.size() != 0;
  const int64_t* to = destinations.data();
  const Id* from = sources.data();
  const float* values = weight.data();
  uint64_t sum = 0;
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (count > 1 << 15)
  for (int64_t e = 0; e < count; ++e) {
    const uint64_t v = static_cast<uint64_t>(to[e]), u = static_cast<uint64_t>(from[e]);
    uint64_t key = mix(mix(std::min(u, v)) + std::max(u, v));
    if (weighted) {
      const float value = values[e] + 0.0f;  // -0.0 is the same as 0.0
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      key = mix(key + bits);
    }
    sum += u < v ? key : u > v ? 0 - key : 0;
  }
  return sum;
}

}  // namespace

void bind_symmetry(nb::module_& m) {
  const char* help = R"(Return these edges' part of the sum that is 0 (mod 2**64) if every edge has its reverse.

destinations int64 [k], sources int32 or int64 [k], weight float32 [k], or [0] without weights.)";
  m.def("imbalance", &imbalance<int32_t>, "destinations"_a.noconvert(), "sources"_a.noconvert(),
        "weight"_a.noconvert(), help);
  m.def("imbalance", &imbalance<int64_t>, "destinations"_a.noconvert(), "sources"_a.noconvert(),
        "weight"_a.noconvert(), help);
}
