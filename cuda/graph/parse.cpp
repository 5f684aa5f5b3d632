// Parse text files of edges: blocks of whole lines, all threads at a time. Text that is not plainly edges is pointed at
// and left to the caller, who says what is wrong with it.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "bind.h"
#include "parse_words.h"

namespace {

using mgg::Flat;
using mgg::require;
using namespace mgg::text;

constexpr int64_t part_bytes = 1 << 17;  // of text; more parts than threads keep all of them busy

struct Text {
  const char *begin, *end;
};

Text text_of(const Flat<const uint8_t>& bytes) {
  const char* begin = reinterpret_cast<const char*>(bytes.data());
  require(bytes.size() == 0 || begin[bytes.size() - 1] == '\n', "parse: the text ends with a newline");
  return {begin, begin + bytes.size()};
}

int64_t count_lines(Flat<const uint8_t> bytes) {
  const char* begin = reinterpret_cast<const char*>(bytes.data());
  const int64_t size = static_cast<int64_t>(bytes.size());
  nb::gil_scoped_release release;
  int64_t lines = 0;
#pragma omp parallel for reduction(+ : lines) if (size > 4 * part_bytes)
  for (int64_t at = 0; at < size; at += part_bytes)
    lines += count_newlines(begin + at, begin + std::min(at + part_bytes, size));
  return lines;
}

// Where each part's lines begin, counted in lines: [parts + 1].
std::vector<int64_t> first_lines(const std::vector<const char*>& cuts) {
  const int64_t parts = static_cast<int64_t>(cuts.size()) - 1;
  std::vector<int64_t> lines(parts + 1, 0);
#pragma omp parallel for if (parts > 4)
  for (int64_t part = 0; part < parts; ++part) lines[part + 1] = count_newlines(cuts[part], cuts[part + 1]);
  std::partial_sum(lines.begin(), lines.end(), lines.begin());
  return lines;
}

struct Rules {
  int columns;
  int64_t first, limit;  // ids are first .. first + limit - 1, and become 0 .. limit - 1
  bool delimiters;
  std::string comments;
};

enum class Line { edge, empty, irregular };

struct Edge {
  int64_t source, destination;
  float weight;
};

bool read_node(const char*& p, const char* end, const Rules& rules, int64_t& node) {
  if (!read_number(p, end, node)) return false;
  node -= rules.first;
  return node >= 0 && node < rules.limit;
}

// Reads one line, and leaves p behind its newline; where the line is irregular, anywhere within it.
Line read_line(const char*& p, const char* end, const Rules& rules, Edge& edge) {
  skip_blanks(p);
  if (!is_digit(*p)) {
    if (*p == '\n') return ++p, Line::empty;
    if (rules.comments.find(*p) == std::string::npos) return Line::irregular;
    return p = behind_newline(p, end), Line::empty;
  }
  char kind = 0;
  if (!read_node(p, end, rules, edge.source) || !step_over(p, kind, rules.delimiters) ||
      !read_node(p, end, rules, edge.destination))
    return Line::irregular;
  float further;
  for (int column = 2; column < rules.columns; ++column)
    if (!step_over(p, kind, rules.delimiters) || !read_decimal(p, end, column == 2 ? edge.weight : further))
      return Line::irregular;
  skip_blanks(p);
  return *p == '\n' ? (++p, Line::edge) : Line::irregular;
}

// Moves the entries of all parts together. starts: where each part's begin; counts: how many each has.
template <class T>
int64_t close_gaps(T* entries, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts) {
  int64_t at = 0;
  for (size_t part = 0; part < counts.size(); ++part) {
    if (at != starts[part]) std::memmove(entries + at, entries + starts[part], counts[part] * sizeof(T));
    at += counts[part];
  }
  return at;
}

std::pair<int64_t, int64_t> parse_edges(Flat<const uint8_t> bytes, int columns, int64_t first, int64_t limit,
                                        bool delimiters, const std::string& comments, Flat<int64_t> sources,
                                        Flat<int64_t> destinations, Flat<float> weight) {
  require(columns >= 2, "parse: an edge has two columns at least");
  const auto [begin, end] = text_of(bytes);
  const Rules rules{columns, first, limit, delimiters, comments};
  int64_t *u = sources.data(), *v = destinations.data();
  float* w = columns > 2 ? weight.data() : nullptr;
  nb::gil_scoped_release release;
  const std::vector<const char*> cuts = line_parts(begin, end, part_bytes);
  const int64_t parts = static_cast<int64_t>(cuts.size()) - 1;
  const std::vector<int64_t> starts = first_lines(cuts);
  require(static_cast<int64_t>(sources.size()) >= starts.back() && destinations.size() == sources.size() &&
              weight.size() == (columns > 2 ? sources.size() : 0),
          "parse: there is room for an edge in each line");
  std::vector<int64_t> counts(parts);
  int64_t irregular = end - begin;
#pragma omp parallel for schedule(dynamic, 1) reduction(min : irregular) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    const char *p = cuts[part], *stop = cuts[part + 1];
    int64_t at = starts[part];
    while (p < stop) {
      const char* line = p;
      Edge edge;
      const Line found = read_line(p, end, rules, edge);
      if (found == Line::irregular) {
        irregular = std::min<int64_t>(irregular, line - begin);
        break;
      }
      if (found == Line::empty) continue;
      u[at] = edge.source, v[at] = edge.destination;
      if (w) w[at] = edge.weight;
      ++at;
    }
    counts[part] = at - starts[part];
  }
  if (irregular < end - begin) return {0, irregular};
  const int64_t count = close_gaps(u, starts, counts);
  close_gaps(v, starts, counts);
  if (w) close_gaps(w, starts, counts);
  return {count, -1};
}

}  // namespace

void bind_parse(nb::module_& m) {
  m.def("count_lines", &count_lines, "text"_a.noconvert(), "Return the number of newlines of a text, uint8 [n].");
  m.def("parse_edges", &parse_edges, "text"_a.noconvert(), "columns"_a, "first"_a, "limit"_a, "delimiters"_a,
        "comments"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "weight"_a.noconvert(),
        R"(Parse lines of edges: source, destination, and with more than two columns a weight; others are checked only.

text: uint8 [n], whole lines. Ids first .. first + limit - 1 become 0 .. limit - 1. Words are separated by blanks, or
where ``delimiters`` is true by one comma or one semicolon in each place of a line. Lines that begin with one of the
characters of ``comments``, and lines of blanks, hold no edge. sources, destinations int64 [k] and weight float32 [k]
([0] with two columns) are filled; k is the number of lines at least. Returns (edges, -1); or (0, byte) where the first
line begins that is anything else, in which ids have more than 15 digits, or in which numbers have signs but weights.
Raises ValueError for arrays that are too short.)");
}
