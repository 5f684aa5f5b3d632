// Lines of neighbours, one for each vertex, as in METIS's files: text that may be cut between any two words.
#pragma once
#include <cstdint>
#include <tuple>
#include <vector>

#include "graph/parse/parse_words.h"

namespace mgg::text {

// Where a text has got to. words: of the vertex's line so far. neighbour: the last one of the line, whose weight may be
// the next word. comment: it is within a line that is a comment.
struct Place {
  int64_t vertex = 0, words = 0, neighbour = 0;
  bool comment = false;
};

// The words of lines: ``skip`` that are passed over, then neighbours 1 .. nodes, each with a weight where weighted.
struct Adjacency {
  int64_t skip, nodes;
  bool weighted;

  bool neighbour(int64_t word) const { return word >= skip && (!weighted || (word - skip) % 2 == 0); }
  bool completes_edge(int64_t word) const { return word >= skip && (!weighted || (word - skip) % 2 == 1); }
  bool may_end(int64_t words) const { return words >= skip && neighbour(words); }
};

// Calls word(p) for each word of [p, end), which moves p behind it and returns false to stop, and line(p) for each
// newline that ends a vertex's line. Returns where it stopped.
template <class OnWord, class OnLine>
const char* walk(const char* p, const char* end, Place& place, OnWord&& word, OnLine&& line) {
  while (p < end) {
    if (place.comment) {
      p = static_cast<const char*>(std::memchr(p, '\n', end - p));
      if (!p) return end;
      ++p, place.comment = false;
    } else if (*p == '\n') {
      if (!line(p)) return p;
      ++p, ++place.vertex, place.words = 0;
    } else if (blank(*p)) {
      ++p;
    } else if (place.words == 0 && *p == '%') {
      place.comment = true;
    } else {
      if (!word(p)) return p;
      ++place.words;
    }
  }
  return p;
}

inline int64_t count_words(Flat<const uint8_t> bytes) {
  const char *begin = reinterpret_cast<const char*>(bytes.data()), *end = begin + bytes.size();
  nb::gil_scoped_release release;
  int64_t words = 0;
  bool between = true;
  for (const char* p = begin; p < end; ++p) {
    const bool now = blank(*p) || *p == '\n';
    words += between && !now;
    between = now;
  }
  return words;
}

// The parts of a text that begins at a place: the place where each begins, and how many neighbours come before it.
struct AdjacencyParts {
  std::vector<const char*> cuts;
  std::vector<Place> places;
  std::vector<int64_t> starts;
};

inline AdjacencyParts adjacency_parts(const char* begin, const char* end, const Place& place, const Adjacency& rules) {
  AdjacencyParts found{{begin}, {}, {}};
  while (end - found.cuts.back() > part_bytes) {  // the text need not end with a newline
    const char* from = found.cuts.back() + part_bytes - 1;
    const char* newline = static_cast<const char*>(std::memchr(from, '\n', end - from));
    if (!newline || newline + 1 == end) break;
    found.cuts.push_back(newline + 1);
  }
  found.cuts.push_back(end);
  const int64_t parts = static_cast<int64_t>(found.cuts.size()) - 1;
  found.places.assign(parts + 1, Place());
  found.starts.assign(parts + 1, 0);
#pragma omp parallel for schedule(dynamic, 1) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    Place at = part ? Place() : place;
    int64_t neighbours = 0;
    const auto word = [&](const char*& p) {
      while (!blank(*p) && *p != '\n') ++p;
      neighbours += rules.completes_edge(at.words);
      return true;
    };
    walk(found.cuts[part], found.cuts[part + 1], at, word, [](const char*) { return true; });
    found.places[part + 1] = at;
    found.starts[part + 1] = neighbours;
  }
  found.places[0] = place;
  for (int64_t part = 1; part < parts; ++part) found.places[part + 1].vertex += found.places[part].vertex;
  std::partial_sum(found.starts.begin(), found.starts.end(), found.starts.begin());
  return found;
}

// Parses a part from ``at`` on, which is moved; returns where it is wrong, its end if it is not. Arrays begin with its
// first edge. rounded: as in read_decimal.
inline const char* parse_neighbours(const char* begin, const char* end, Place& at, const Adjacency& rules, int64_t* u,
                                    int64_t* v, float* w, int64_t& rounded) {
  const auto word = [&](const char*& p) {
    const char* from = p;
    int64_t number = 0;
    float weight = 0;
    bool right = at.vertex < rules.nodes;
    if (rules.neighbour(at.words))
      right = right && read_number(p, end, number) && number >= 1 && number <= rules.nodes;
    else if (at.words < rules.skip)
      right = right && read_number(p, end, number);
    else
      right = right && read_decimal(p, end, ' ', weight, rounded);
    if (!right || !(blank(*p) || *p == '\n')) return p = from, false;
    if (rules.neighbour(at.words)) at.neighbour = number - 1;
    if (rules.completes_edge(at.words)) {
      *u++ = at.neighbour, *v++ = at.vertex;
      if (w) *w++ = weight;
    }
    return true;
  };
  const auto line = [&](const char*) { return at.vertex >= rules.nodes || rules.may_end(at.words); };
  return walk(begin, end, at, word, line);
}

using PlaceTuple = std::tuple<int64_t, int64_t, int64_t, bool>;

inline PlaceTuple as_tuple(const Place& place) {
  return {place.vertex, place.words, place.neighbour, place.comment};
}

inline std::tuple<int64_t, int64_t, PlaceTuple, int64_t> parse_adjacency(Flat<const uint8_t> bytes, PlaceTuple from,
                                                                         int64_t nodes, int64_t skip, bool weighted,
                                                                         Flat<int64_t> sources,
                                                                         Flat<int64_t> destinations,
                                                                         Flat<float> weight) {
  const char *begin = reinterpret_cast<const char*>(bytes.data()), *end = begin + bytes.size();
  require(bytes.size() && (blank(end[-1]) || end[-1] == '\n'), "parse: the text ends with a blank or a newline");
  const Adjacency rules{skip, nodes, weighted};
  const Place place{std::get<0>(from), std::get<1>(from), std::get<2>(from), std::get<3>(from)};
  int64_t *u = sources.data(), *v = destinations.data();
  float* w = weight.data();
  nb::gil_scoped_release release;
  AdjacencyParts found = adjacency_parts(begin, end, place, rules);
  const int64_t parts = static_cast<int64_t>(found.cuts.size()) - 1, total = found.starts.back();
  require(static_cast<int64_t>(sources.size()) >= total && destinations.size() == sources.size() &&
              weight.size() == (weighted ? sources.size() : 0),
          "parse: there is room for each edge");
  std::vector<const char*> stops(parts);
  int64_t rounded = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : rounded) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t at = found.starts[part];
    stops[part] = parse_neighbours(found.cuts[part], found.cuts[part + 1], found.places[part], rules, u + at, v + at,
                                   weighted ? w + at : nullptr, rounded);
  }
  for (int64_t part = 0; part < parts; ++part)
    if (stops[part] < found.cuts[part + 1]) return {0, stops[part] - begin, as_tuple(found.places[part]), 0};
  return {total, -1, as_tuple(found.places[parts - 1]), rounded};
}

}  // namespace mgg::text
