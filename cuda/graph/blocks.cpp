// Plans of sampled blocks: their edges by destination, as sampled, and by source, for the backward.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "bind.h"
#include "mgg/layout.h"

namespace {

using mgg::array_of;
using mgg::Flat;
using mgg::Made;
using mgg::require;
using mgg::Segment;

Made<uint8_t> bytes_of(std::unique_ptr<Segment[]> segments, int64_t count) {
  Segment* data = segments.release();
  nb::capsule owner(data, [](void* held) noexcept { delete[] static_cast<Segment*>(held); });
  return Made<uint8_t>(reinterpret_cast<uint8_t*>(data), {static_cast<size_t>(count) * sizeof(Segment)}, owner);
}

enum class Loops { none, missing, one };

struct Block {
  const int64_t* indptr;
  const int32_t* indices;
  int64_t destinations, sources;
  Loops loops;
  const uint8_t* has_loop;

  bool adds_loop(int64_t row) const { return loops == Loops::one || (loops == Loops::missing && !has_loop[row]); }
  int64_t edges() const { return indptr[destinations]; }
};

struct Plans {
  std::unique_ptr<Segment[]> forward, backward;
  std::unique_ptr<int32_t[]> forward_index, backward_index;
  std::unique_ptr<int64_t[]> places, order;
  int64_t edges = 0;
};

// Lists the edges by destination, with self loops behind a row's others, and counts those of each source.
void list(const Block& block, Plans& made, int64_t* count) {
  int64_t at = 0;
  for (int64_t v = 0; v < block.destinations; ++v) {
    const int64_t first = at;
    for (int64_t e = block.indptr[v]; e < block.indptr[v + 1]; ++e) {
      const int32_t u = block.indices[e];
      if (u < 0 || u >= block.sources)
        throw std::invalid_argument("block: source " + std::to_string(u) + " is none of " +
                                    std::to_string(block.sources) + " rows");
      if (block.loops == Loops::one && u == v) continue;
      made.forward_index[at] = u;
      if (made.places) made.places[at] = e;
      ++count[u], ++at;
    }
    if (block.adds_loop(v)) {
      made.forward_index[at] = static_cast<int32_t>(v);
      made.places[at] = block.edges() + v;
      ++count[v], ++at;
    }
    if (at - first > INT32_MAX) throw std::invalid_argument("block: a row has more than 2^31 - 1 edges");
    made.forward[v] = {first, static_cast<int32_t>(v), static_cast<int32_t>(at - first), 0, 0};
  }
  made.edges = at;
}

// Lists them by source, in the order of destinations. count: edges of each source, replaced by where its next one goes.
void transpose(const Block& block, Plans& made, int64_t* count) {
  int64_t first = 0;
  for (int64_t u = 0; u < block.sources; ++u) {
    const int64_t edges = count[u];
    if (edges > INT32_MAX) throw std::invalid_argument("block: a source has more than 2^31 - 1 edges");
    made.backward[u] = {first, static_cast<int32_t>(u), static_cast<int32_t>(edges), 0, 0};
    count[u] = first, first += edges;
  }
  for (int64_t v = 0; v < block.destinations; ++v) {
    const Segment& segment = made.forward[v];
    for (int64_t e = segment.first_edge; e < segment.first_edge + segment.count; ++e) {
      const int64_t place = count[made.forward_index[e]]++;
      made.backward_index[place] = static_cast<int32_t>(v);
      made.order[place] = e;
    }
  }
}

using Result = std::tuple<Made<uint8_t>, Made<int32_t>, nb::object, Made<uint8_t>, Made<int32_t>, Made<int64_t>>;

Result plan_block(Flat<const int64_t> indptr, Flat<const int32_t> indices, int64_t sources, int loops,
                  std::optional<Flat<const uint8_t>> has_loop) {
  require(indptr.size() > 0 && indptr.data()[0] == 0, "indptr: begins with 0");
  const auto destinations = static_cast<int64_t>(indptr.size()) - 1;
  require(loops >= 0 && loops <= 2, "loops: none, missing or one");
  const Block block{indptr.data(),  indices.data(), destinations, sources, static_cast<Loops>(loops),
                    has_loop ? has_loop->data() : nullptr};
  require(std::is_sorted(block.indptr, block.indptr + destinations + 1) &&
              block.edges() == static_cast<int64_t>(indices.size()),
          "indptr: not ascending to the number of edges");
  require(destinations <= INT32_MAX && sources >= 0 && sources <= INT32_MAX, "block: 2^31 rows or more");
  require(block.loops == Loops::none || destinations <= sources, "block: destinations are the first of its sources");
  require(block.loops != Loops::missing || (has_loop && static_cast<int64_t>(has_loop->size()) == destinations),
          "has_loop: one for each destination");
  Plans made;
  {
    nb::gil_scoped_release release;
    const int64_t room = block.edges() + (block.loops == Loops::none ? 0 : destinations);
    made.forward.reset(new Segment[destinations]), made.backward.reset(new Segment[sources]);
    made.forward_index.reset(new int32_t[room]), made.backward_index.reset(new int32_t[room]);
    made.order.reset(new int64_t[room]);
    if (block.loops != Loops::none) made.places.reset(new int64_t[room]);
    const std::unique_ptr<int64_t[]> count(new int64_t[sources]());
    list(block, made, count.get());
    transpose(block, made, count.get());
  }
  const int64_t edges = made.edges;
  nb::object places = made.places ? nb::cast(array_of(std::move(made.places), edges)) : nb::none();
  return {bytes_of(std::move(made.forward), destinations), array_of(std::move(made.forward_index), edges), places,
          bytes_of(std::move(made.backward), sources),     array_of(std::move(made.backward_index), edges),
          array_of(std::move(made.order), edges)};
}

}  // namespace

void bind_blocks(nb::module_& m) {
  m.def("plan_block", &plan_block, "indptr"_a.noconvert(), "indices"_a.noconvert(), "sources"_a, "loops"_a,
        "has_loop"_a.noconvert().none(),
        R"(Return a block's segments (bytes) and indices, places of its edges or None, and the transposed ones, and order.

loops: 0 none, 1 missing ones, 2 one each. See plan/blocks.py. Raises ValueError for arrays that do not fit.)");
}
