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

// Lists the edges by destination, with a self loop after a row's other edges, and counts the edges of each source.
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

// Lists them by source, then destination. count: number of edges of each source, replaced by the position of the next
// one.
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

// Factors of edges, which are multiplied by the weights of the edges in the whole graph; self loops have weight 1.
struct Weights {
  const double* factor;  // of each destination, or (by_edge) of each edge
  int64_t factors;
  bool by_edge;
  const float* weight;  // of all edges of the graph, or null
  const int64_t* edge;  // positions of the block's edges in the graph; with weights
};

// Returns the weights of a block's edges in the order of both plans, or None where all are 1.
template <class T>
std::tuple<nb::object, nb::object> weights_of(const Block& block, const Plans& made, const Weights& weights) {
  const auto is_one = [](double each) { return each == 1.0; };
  if (!weights.weight && std::all_of(weights.factor, weights.factor + weights.factors, is_one))
    return {nb::none(), nb::none()};
  std::unique_ptr<T[]> forward(new T[made.edges]), backward(new T[made.edges]);
  {
    nb::gil_scoped_release release;
    for (int64_t v = 0; v < block.destinations; ++v) {
      const Segment& segment = made.forward[v];
      for (int64_t at = segment.first_edge; at < segment.first_edge + segment.count; ++at) {
        const int64_t e = made.places ? made.places[at] : at;
        if (e >= block.edges()) {
          forward[at] = T(1);
          continue;
        }
        const double value = weights.factor[weights.by_edge ? e : v];
        forward[at] = static_cast<T>(weights.weight ? value * weights.weight[weights.edge[e]] : value);
      }
    }
    for (int64_t at = 0; at < made.edges; ++at) backward[at] = forward[made.order[at]];
  }
  return {nb::cast(array_of(std::move(forward), made.edges)), nb::cast(array_of(std::move(backward), made.edges))};
}

using Result = std::tuple<Made<uint8_t>, Made<int32_t>, nb::object, Made<uint8_t>, Made<int32_t>, Made<int64_t>, nb::object,
                          nb::object>;

Result plan_block(Flat<const int64_t> indptr, Flat<const int32_t> indices, int64_t sources, int loops,
                  std::optional<Flat<const uint8_t>> has_loop, std::optional<Flat<const double>> factor,
                  std::optional<Flat<const float>> weight, std::optional<Flat<const int64_t>> edge, bool by_edge, bool wide) {
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
  const int64_t factors = factor ? static_cast<int64_t>(factor->size()) : 0;
  require(!factor || factors == (by_edge ? block.edges() : destinations),
          "factor: one for each destination, or for each edge");
  require(!weight || (factor && edge && edge->size() == indices.size()), "weight: with factors and places of edges");
  if (weight)
    for (int64_t e = 0; e < block.edges(); ++e)
      require(edge->data()[e] >= 0 && edge->data()[e] < static_cast<int64_t>(weight->size()), "edge: not of the graph");
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
  std::tuple<nb::object, nb::object> values{nb::none(), nb::none()};
  if (factor) {
    const Weights weights{factor->data(), factors, by_edge, weight ? weight->data() : nullptr, edge ? edge->data() : nullptr};
    values = wide ? weights_of<double>(block, made, weights) : weights_of<float>(block, made, weights);
  }
  nb::object places = made.places ? nb::cast(array_of(std::move(made.places), edges)) : nb::none();
  return {bytes_of(std::move(made.forward), destinations), array_of(std::move(made.forward_index), edges), places,
          bytes_of(std::move(made.backward), sources),     array_of(std::move(made.backward_index), edges),
          array_of(std::move(made.order), edges),          std::get<0>(values), std::get<1>(values)};
}

}  // namespace

void bind_blocks(nb::module_& m) {
  m.def("plan_block", &plan_block, "indptr"_a.noconvert(), "indices"_a.noconvert(), "sources"_a, "loops"_a,
        "has_loop"_a.noconvert().none(), "factor"_a.noconvert().none(), "weight"_a.noconvert().none(),
        "edge"_a.noconvert().none(), "by_edge"_a, "wide"_a,
        R"(Return a block's segments (bytes) and indices, places of its edges or None, the transposed ones, their order, and
weights both ways or None.

loops: 0 none, 1 missing ones, 2 one each. wide: weights are float64. See plan/blocks.py. Raises ValueError for arrays
that do not fit.)");
}
