// Sort edges into an in-edge CSR, for graphs larger than memory: runs of edges are grouped into buckets of rows, and each
// bucket, collected from all runs, is sorted by itself (an external distribution sort; Knuth, TAOCP volume 3, 5.4).
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"

namespace {

using mgg::Flat;
using mgg::require;

// Copies a block's edges behind those of a run. Run ids are unsigned; the caller has checked that they fit.
template <class Id, class RunId>
int64_t append_to(const Flat<const Id>& sources, const Flat<const Id>& destinations,
                  const Flat<const uint8_t>& payload, int64_t at, Flat<RunId> into_sources,
                  Flat<RunId> into_destinations, Flat<uint8_t> into_payload, int64_t width, bool reverses,
                  bool drop_loops) {
  const int64_t count = static_cast<int64_t>(sources.size()), copies = reverses ? 2 : 1;
  const int64_t room = static_cast<int64_t>(into_sources.size());
  require(destinations.size() == sources.size() && into_destinations.size() == into_sources.size(),
          "append: sources and destinations have the same length");
  require(at >= 0 && at + copies * count <= room, "append: the run has no room for these edges");
  require(width >= 0 && payload.size() == static_cast<size_t>(count * width) &&
              into_payload.size() == static_cast<size_t>(room * width),
          "append: each edge has width bytes of payload");
  const Id *u = sources.data(), *v = destinations.data();
  RunId *to_u = into_sources.data(), *to_v = into_destinations.data();
  nb::gil_scoped_release release;
  for (int64_t e = 0; e < count; ++e) {
    if (drop_loops && u[e] == v[e]) continue;
    // An edge and its reverse stay side by side, so that "the first one's weight" is the same for both.
    for (int64_t turn = 0; turn < copies; ++turn) {
      to_u[at] = static_cast<RunId>(turn ? v[e] : u[e]);
      to_v[at] = static_cast<RunId>(turn ? u[e] : v[e]);
      if (width) std::memcpy(into_payload.data() + at * width, payload.data() + e * width, width);
      ++at;
    }
  }
  return at;
}

// Groups edges by bucket, (id - base) >> shift of their key; stable. offsets[b] is where bucket b begins.
template <class Id>
void scatter(Flat<const Id> keys, Flat<const Id> others, Flat<const uint8_t> payload, int64_t width, uint64_t base,
             int shift, Flat<Id> out_keys, Flat<Id> out_others, Flat<uint8_t> out_payload, Flat<int64_t> offsets) {
  const int64_t count = static_cast<int64_t>(keys.size()), buckets = static_cast<int64_t>(offsets.size()) - 1;
  require(others.size() == keys.size() && out_keys.size() == keys.size() && out_others.size() == keys.size(),
          "scatter: all columns have the same length");
  require(width >= 0 && payload.size() == static_cast<size_t>(count * width) && out_payload.size() == payload.size(),
          "scatter: each edge has width bytes of payload");
  require(buckets >= 1 && shift >= 0 && shift < 64, "scatter: expected a bucket or more, and a shift of 0 to 63");
  const Id *key = keys.data(), *other = others.data();
  bool outside = false;
  {
    nb::gil_scoped_release release;
    const int threads = static_cast<int>(std::clamp<int64_t>(count >> 16, 1, omp_get_max_threads()));
    std::vector<std::vector<int64_t>> place(threads, std::vector<int64_t>(buckets, 0));
#pragma omp parallel num_threads(threads) reduction(|| : outside)
    {
      const int64_t mine = omp_get_thread_num(), low = count * mine / threads, high = count * (mine + 1) / threads;
      std::vector<int64_t>& at = place[mine];
      for (int64_t e = low; e < high; ++e) {
        const uint64_t bucket = (static_cast<uint64_t>(key[e]) - base) >> shift;
        if (bucket < static_cast<uint64_t>(buckets))
          ++at[bucket];
        else
          outside = true;
      }
#pragma omp barrier
#pragma omp single
      {
        int64_t sum = 0;
        for (int64_t b = 0; b < buckets; ++b) {
          offsets.data()[b] = sum;
          for (auto& each : place) sum += std::exchange(each[b], sum);
        }
        offsets.data()[buckets] = sum;
      }
      if (offsets.data()[buckets] == count)
        for (int64_t e = low; e < high; ++e) {
          const int64_t to = at[(static_cast<uint64_t>(key[e]) - base) >> shift]++;
          out_keys.data()[to] = key[e];
          out_others.data()[to] = other[e];
          if (width) std::memcpy(out_payload.data() + to * width, payload.data() + e * width, width);
        }
    }
  }
  require(!outside, "scatter: a key lies behind the last bucket");
}

// A part of a run: the edges of some buckets, and where each bucket begins.
template <class Id>
struct Section {
  const Id *destinations, *sources;
  const uint8_t* payload;
  const int64_t* offsets;
};

// A source and, with payload, where it lies: section by section in the order of the stream.
template <class Id>
struct Placed {
  Id source;
  uint32_t section;
  int64_t edge;
};

// What becomes of equal edges: all stay; one stays, and payloads have to be the same; the first one stays; or one stays
// with a combination of the weights, and further payloads have to be the same.
enum class Copies { all, same, first, sum, mean, max, min };

struct Rules {
  int64_t width;   // bytes of payload
  Copies copies;
  bool weighted;   // the payload begins with a weight, float
  int directions;  // 1: edges as listed; 2: and the reverse of each; 4: both directions of each, and their reverses

  bool distinct() const { return copies != Copies::all; }
  // Bytes that have to be the same, less the weight's.
  int64_t weight_bytes() const { return weighted ? static_cast<int64_t>(sizeof(float)) : 0; }
  // The share of a sum that is the edge's: a self loop is its own reverse, and reverses may be listed already.
  double share(bool loop) const { return directions == 4 || (directions == 2 && loop) ? 0.5 : 1; }
};

float weight_of(const uint8_t* payload) {
  float weight;
  std::memcpy(&weight, payload, sizeof weight);
  return weight;
}

// What equal edges become, which are taken in the order of the stream.
class Merged {
 public:
  // first: the payload of the first one; it has to stay.
  Merged(const Rules& rules, const uint8_t* first)
      : rules_(rules), first_(first), combines_(rules.weighted && rules.copies != Copies::same),
        adds_(rules.copies == Copies::sum || rules.copies == Copies::mean),
        combined_(rules.weighted && !adds_ ? weight_of(first) : 0) {}

  // Adds one of them, the first too; false if it has to be the same as the first one and is not.
  bool take(const uint8_t* other) {
    const int64_t skipped = rules_.weight_bytes();
    if (std::memcmp(first_ + skipped, other + skipped, rules_.width - skipped) != 0 ||
        (rules_.weighted && !combines_ && !(weight_of(first_) == weight_of(other))))
      return false;
    if (!combines_) return true;
    ++count_;
    const double weight = weight_of(other);
    if (adds_)
      combined_ += weight;
    else  // stays NaN after a weight that is not finite
      combined_ = (rules_.copies == Copies::max ? std::max(combined_, weight) : std::min(combined_, weight)) +
                  (weight - weight);
    return true;
  }

  // Stores the weight; returns whether it is a whole number that float does not hold.
  bool store(bool loop, uint8_t* into) {
    if (!combines_) return false;
    if (rules_.copies == Copies::sum) combined_ *= rules_.share(loop);
    if (rules_.copies == Copies::mean) combined_ /= static_cast<double>(count_);
    const float weight = static_cast<float>(combined_);
    std::memcpy(into, &weight, sizeof weight);
    return combined_ == std::nearbyint(combined_) && static_cast<double>(weight) != combined_;
  }

 private:
  const Rules rules_;
  const uint8_t* first_;
  const bool combines_, adds_;
  double combined_;
  int64_t count_ = 0;
};

// Equal edges whose payloads differ though they have to be the same: their number, counted by pairs of ends, and the
// first one's ends and two of its payloads.
struct Conflicts {
  int64_t count = 0;
  uint64_t source = 0, destination = 0;
  const uint8_t *payload = nullptr, *other = nullptr;

  void add(const Conflicts& more) {
    const int64_t sum = count + more.count;
    if (more.count && (!count || std::pair(more.destination, more.source) < std::pair(destination, source)))
      *this = more;
    count = sum;
  }
};

// Sorts one bucket's edges by row and source into out (room for all of them); returns how many are kept.
template <class Id, class Index>
class Bucket {
 public:
  Bucket(const std::vector<Section<Id>>& sections, const Rules& rules) : sections_(sections), rules_(rules) {}

  int64_t sort(int64_t bucket, Id first_row, int64_t rows, int64_t* degree, Index* out, uint8_t* out_payload) {
    place_.assign(rows + 1, 0);
    for (const auto& part : sections_)
      for (int64_t e = part.offsets[bucket]; e < part.offsets[bucket + 1]; ++e)
        ++place_[part.destinations[e] - first_row + 1];
    std::partial_sum(place_.begin(), place_.end(), place_.begin());
    return rules_.width ? with_payload(bucket, first_row, rows, degree, out, out_payload)
                        : without_payload(bucket, first_row, rows, degree, out);
  }

  const Conflicts& conflicts() const { return conflicts_; }
  int64_t rounded() const { return rounded_; }

 private:
  using Edges = typename std::vector<Placed<Id>>::const_iterator;

  int64_t without_payload(int64_t bucket, Id first_row, int64_t rows, int64_t* degree, Index* out) {
    cursor_.assign(place_.begin(), place_.end() - 1);
    for (const auto& part : sections_)
      for (int64_t e = part.offsets[bucket]; e < part.offsets[bucket + 1]; ++e)
        out[cursor_[part.destinations[e] - first_row]++] = static_cast<Index>(part.sources[e]);
    int64_t kept = 0;
    for (int64_t row = 0; row < rows; ++row) {
      Index *low = out + place_[row], *high = out + place_[row + 1];
      std::sort(low, high);
      if (rules_.distinct()) high = std::unique(low, high);
      degree[row] += high - low;
      if (low != out + kept) std::copy(low, high, out + kept);
      kept += high - low;
    }
    return kept;
  }

  int64_t with_payload(int64_t bucket, Id first_row, int64_t rows, int64_t* degree, Index* out, uint8_t* out_payload) {
    const int64_t width = rules_.width;
    const bool distinct = rules_.distinct();
    cursor_.assign(place_.begin(), place_.end() - 1);
    placed_.resize(place_.back());
    for (uint32_t s = 0; s < sections_.size(); ++s)
      for (int64_t e = sections_[s].offsets[bucket]; e < sections_[s].offsets[bucket + 1]; ++e)
        placed_[cursor_[sections_[s].destinations[e] - first_row]++] = {sections_[s].sources[e], s, e};
    int64_t kept = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const auto low = placed_.begin() + place_[row], high = placed_.begin() + place_[row + 1];
      std::stable_sort(low, high, [](const auto& a, const auto& b) { return a.source < b.source; });
      const int64_t before = kept;
      for (auto edge = low; edge != high; ++kept) {
        const auto first = edge++;
        out[kept] = static_cast<Index>(first->source);
        std::memcpy(out_payload + kept * width, payload(*first), width);
        if (!distinct || edge == high || edge->source != first->source) continue;
        while (edge != high && edge->source == first->source) ++edge;
        merge(first, edge, static_cast<Id>(first_row + row), out_payload + kept * width);
      }
      degree[row] += kept - before;
    }
    return kept;
  }

  const uint8_t* payload(const Placed<Id>& edge) const {
    return sections_[edge.section].payload + edge.edge * rules_.width;
  }

  // Merges equal edges, the first of which is in ``into``. Of an edge and its reverse, one is counted.
  [[gnu::noinline]] void merge(Edges edge, Edges end, Id row, uint8_t* into) {
    if (rules_.copies == Copies::first) return;
    const bool counted = rules_.directions == 1 || edge->source <= row;
    Merged merged(rules_, payload(*edge));
    for (auto each = edge; each != end; ++each)
      if (!merged.take(payload(*each))) {
        if (counted) conflicts_.add({1, edge->source, row, payload(*edge), payload(*each)});
        return;
      }
    rounded_ += merged.store(edge->source == row, into) && counted;
  }

  const std::vector<Section<Id>>& sections_;
  const Rules rules_;
  Conflicts conflicts_;
  int64_t rounded_ = 0;  // weights, by pairs of ends
  std::vector<int64_t> place_, cursor_;
  std::vector<Placed<Id>> placed_;
};

Copies copies_of(const std::string& name) {
  const char* names[] = {"all", "same", "first", "sum", "mean", "max", "min"};
  const auto found = std::find(std::begin(names), std::end(names), name);
  require(found != std::end(names), "sort_buckets: expected copies of all, same, first, sum, mean, max or min");
  return static_cast<Copies>(found - std::begin(names));
}

// `Merged` for copies of one edge that come in parts.
class MergedEdge {
 public:
  MergedEdge(Flat<const uint8_t> first, const std::string& copies, bool weighted, int directions)
      : first_(first.data(), first.data() + first.size()),
        rules_{static_cast<int64_t>(first.size()), copies_of(copies), weighted, directions} {
    require(rules_.width >= std::max<int64_t>(1, rules_.weight_bytes()), "MergedEdge: payloads have the weight");
  }

  int64_t take(Flat<const uint8_t> payloads) {
    const int64_t count = static_cast<int64_t>(payloads.size()) / rules_.width;
    for (int64_t e = 0; e < count; ++e)
      if (!merged_.take(payloads.data() + e * rules_.width)) return e;
    return -1;
  }

  bool store(bool loop, Flat<uint8_t> into) {
    require(static_cast<int64_t>(into.size()) == rules_.width, "MergedEdge: the output has one payload");
    return merged_.store(loop, into.data());
  }

 private:
  const std::vector<uint8_t> first_;
  const Rules rules_;
  Merged merged_{rules_, first_.data()};
};

using Sorted = std::tuple<int64_t, int64_t, int64_t, uint64_t, uint64_t, nb::bytes, nb::bytes>;

template <class Id, class Index>
Sorted sort_buckets(const std::vector<std::tuple<Flat<const Id>, Flat<const Id>, Flat<const uint8_t>,
                                                 Flat<const int64_t>>>& parts,
                    int64_t width, uint64_t first_row, int shift, const std::string& copies, bool weighted,
                    int directions, Flat<int64_t> degree, Flat<Index> out, Flat<uint8_t> out_payload) {
  const Rules rules{width, copies_of(copies), weighted, directions};
  require(width >= rules.weight_bytes(), "sort_buckets: the payload has room for the weight");
  require(!parts.empty() && std::get<3>(parts[0]).size() >= 1, "sort_buckets: expected a section with offsets");
  require(width >= 0 && shift >= 0 && shift < 64, "sort_buckets: expected a width of 0 or more and a shift below 64");
  const int64_t buckets = static_cast<int64_t>(std::get<3>(parts[0]).size()) - 1;
  const int64_t rows = static_cast<int64_t>(degree.size());
  std::vector<int64_t> begin(buckets + 1, 0);  // of each bucket in out
  std::vector<Section<Id>> sections;
  for (const auto& [destinations, sources, payload, offsets] : parts) {
    const int64_t count = static_cast<int64_t>(destinations.size());
    require(sources.size() == destinations.size() && payload.size() == static_cast<size_t>(count * width),
            "sort_buckets: all columns of a section have the same length");
    require(static_cast<int64_t>(offsets.size()) == buckets + 1 && offsets.data()[0] == 0 &&
                offsets.data()[buckets] == count && std::is_sorted(offsets.data(), offsets.data() + buckets + 1),
            "sort_buckets: offsets go from 0 to the number of edges and never decrease");
    for (int64_t b = 0; b <= buckets; ++b) begin[b] += offsets.data()[b];
    sections.push_back({destinations.data(), sources.data(), payload.data(), offsets.data()});
  }
  require(static_cast<int64_t>(out.size()) == begin[buckets] &&
              static_cast<int64_t>(out_payload.size()) == begin[buckets] * width,
          "sort_buckets: the output has room for all edges");
  std::vector<int64_t> kept(buckets, 0);
  Conflicts conflicts;
  int64_t rounded = 0;
  bool outside = false;
  {
    nb::gil_scoped_release release;
#pragma omp parallel reduction(|| : outside) if (begin[buckets] > 1 << 15)
    {
      Bucket<Id, Index> sorter(sections, rules);
#pragma omp for schedule(dynamic, 1)
      for (int64_t b = 0; b < buckets; ++b) {
        const uint64_t first = static_cast<uint64_t>(b) << shift;
        const int64_t low = static_cast<int64_t>(std::min<uint64_t>(first, rows));
        const int64_t high = static_cast<int64_t>(std::min<uint64_t>((static_cast<uint64_t>(b) + 1) << shift, rows));
        bool inside = true;
        for (const auto& part : sections)
          for (int64_t e = part.offsets[b]; e < part.offsets[b + 1]; ++e) {
            const uint64_t row = static_cast<uint64_t>(part.destinations[e]) - first_row;
            inside &= row >= static_cast<uint64_t>(low) && row < static_cast<uint64_t>(high);
          }
        if (inside)
          kept[b] = sorter.sort(b, static_cast<Id>(first_row + low), high - low, degree.data() + low,
                                out.data() + begin[b], out_payload.data() + begin[b] * width);
        outside |= !inside;
      }
#pragma omp critical
      {
        conflicts.add(sorter.conflicts());
        rounded += sorter.rounded();
      }
    }
    int64_t at = 0;  // close the gaps that dropped duplicates have left
    for (int64_t b = 0; b < buckets && rules.distinct() && !outside; ++b) {
      std::memmove(out.data() + at, out.data() + begin[b], kept[b] * sizeof(Index));
      if (width) std::memmove(out_payload.data() + at * width, out_payload.data() + begin[b] * width, kept[b] * width);
      at += kept[b];
    }
  }
  require(!outside, "sort_buckets: an edge lies in another bucket than its row");
  const auto bytes = [&](const uint8_t* payload) {
    return nb::bytes(reinterpret_cast<const char*>(payload), payload ? width : 0);
  };
  return {std::accumulate(kept.begin(), kept.end(), int64_t{0}), rounded, conflicts.count, conflicts.source,
          conflicts.destination, bytes(conflicts.payload), bytes(conflicts.other)};
}

template <class Id, class RunId>
void bind_append(nb::module_& m) {
  m.def("append_edges", &append_to<Id, RunId>, "sources"_a.noconvert(), "destinations"_a.noconvert(),
        "payload"_a.noconvert(), "at"_a, "into_sources"_a.noconvert(), "into_destinations"_a.noconvert(),
        "into_payload"_a.noconvert(), "width"_a, "reverses"_a, "drop_loops"_a,
        R"(Copy edges behind the first `at` ones of a run, and return how many it has then.

reverses: copy each edge's reverse too, behind it. drop_loops: leave out self loops. width: bytes of payload an edge.)");
}

template <class Id>
void bind_id(nb::module_& m) {
  m.def("scatter_edges", &scatter<Id>, "keys"_a.noconvert(), "others"_a.noconvert(), "payload"_a.noconvert(), "width"_a,
        "base"_a, "shift"_a, "out_keys"_a.noconvert(), "out_others"_a.noconvert(), "out_payload"_a.noconvert(),
        "offsets"_a.noconvert(), R"(Group edges by bucket, (key - base) >> shift, in their order.

offsets int64 [B + 1] is filled with where each bucket begins. Raises ValueError for a key behind the last bucket.)");
  const char* help = R"(Sort the edges of some buckets by row and source.

sections: (destinations, sources, payload uint8, offsets int64 [B + 1]) of each run, grouped by bucket; bucket b has the
rows first_row + (b << shift) and following. degree int64 [rows]: the kept edges of each row are added. out [edges],
out_payload: filled from the beginning.

copies: "all" keeps equal edges. Otherwise one of them stays: "first" the first in the order of sections; "same" any,
since their payloads have to be the same; "sum", "mean", "max" and "min" with that of the weights, while further payloads
have to be the same. weighted: the payload begins with a weight, float32. directions: 2 if the reverse of each edge was
added, 4 if it was there before; sums count each edge once, and so a self loop.

Returns (kept edges, number of combined weights that are whole and float32 does not hold, number of equal edges whose
payloads have to be the same and differ, and of the first of them source, destination and two payloads); an edge and its
reverse count once.)";
  m.def("sort_buckets", &sort_buckets<Id, int32_t>, "sections"_a, "width"_a, "first_row"_a, "shift"_a, "copies"_a,
        "weighted"_a, "directions"_a, "degree"_a.noconvert(), "out"_a.noconvert(), "out_payload"_a.noconvert(), help);
  m.def("sort_buckets", &sort_buckets<Id, int64_t>, "sections"_a, "width"_a, "first_row"_a, "shift"_a, "copies"_a,
        "weighted"_a, "directions"_a, "degree"_a.noconvert(), "out"_a.noconvert(), "out_payload"_a.noconvert(), help);
}

}  // namespace

void bind_buckets(nb::module_& m) {
  bind_append<int32_t, uint32_t>(m);
  bind_append<int64_t, uint32_t>(m);
  bind_append<uint32_t, uint32_t>(m);
  bind_append<int32_t, uint64_t>(m);
  bind_append<int64_t, uint64_t>(m);
  bind_append<uint32_t, uint64_t>(m);
  bind_id<uint32_t>(m);
  bind_id<uint64_t>(m);
  nb::class_<MergedEdge>(m, "MergedEdge", "Copies of one edge, which become one by the rules of `sort_buckets`.")
      .def(nb::init<Flat<const uint8_t>, const std::string&, bool, int>(), "first"_a.noconvert(), "copies"_a,
           "weighted"_a, "directions"_a, "first: the payload of the first copy, which is to be taken too.")
      .def("take", &MergedEdge::take, "payloads"_a.noconvert(),
           "Take more copies; return the number of the first that has to be the same as the first copy and is not, or -1.")
      .def("store", &MergedEdge::store, "loop"_a, "into"_a.noconvert(),
           "Store the weight in a payload; return whether it is a whole number that float32 does not hold.");
}
