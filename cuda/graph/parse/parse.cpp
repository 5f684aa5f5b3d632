// Parse text files of edges: blocks of whole lines, all threads at a time. Text that is not plainly edges is pointed at
// and left to the caller, who says what is wrong with it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "graph/bind.h"
#include "graph/parse/parse_adjacency.h"
#include "graph/parse/parse_names.h"
#include "graph/parse/parse_words.h"

namespace {

using mgg::Flat;
using mgg::require;
using namespace mgg::text;

struct Rules {
  int columns;
  int64_t first, limit;  // ids are first .. first + limit - 1, and become 0 .. limit - 1
  char delimiter;
  std::vector<std::string> comments;
};

struct Edge {
  int64_t source, destination;
  float weight;
};

bool read_node(const char*& p, const char* end, const Rules& rules, int64_t& node) {
  const char* word = p;
  if (!read_number(p, end, node)) return false;
  if (*p == '.' || *p == 'e' || *p == 'E') {
    p = word;
    if (!read_whole(p, node)) return false;
  }
  node -= rules.first;
  return node >= 0 && node < rules.limit;
}

// Reads one line, and leaves p behind its newline; where the line is irregular, anywhere within it.
Line read_line(const char*& p, const char* end, const Rules& rules, Edge& edge, int64_t& rounded) {
  skip_padding(p, rules.delimiter);
  if (!is_digit(*p)) {
    if (*p == '\n') return ++p, Line::empty;
    if (!is_comment(p, rules.comments)) return Line::irregular;
    return p = behind_newline(p, end), Line::comment;
  }
  if (!read_node(p, end, rules, edge.source) || !step_over(p, rules.delimiter) ||
      !read_node(p, end, rules, edge.destination))
    return Line::irregular;
  float further;
  int64_t of_further = 0;
  for (int column = 2; column < rules.columns; ++column)
    if (!step_over(p, rules.delimiter) || !read_decimal(p, end, rules.delimiter, column == 2 ? edge.weight : further,
                                                        column == 2 ? rounded : of_further))
      return Line::irregular;
  skip_padding(p, rules.delimiter);
  return *p == '\n' ? (++p, Line::edge) : Line::irregular;
}

Parsed parse_edges(Flat<const uint8_t> bytes, int columns, int64_t first, int64_t limit, char delimiter,
                   const std::vector<std::string>& comments, Flat<int64_t> sources, Flat<int64_t> destinations,
                   Flat<float> weight) {
  require(columns >= 2, "parse: an edge has two columns at least");
  const auto [begin, end] = text_of(bytes);
  const Rules rules{columns, first, limit, delimiter, comments};
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
  int64_t irregular = end - begin, left_out = 0, rounded = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(min : irregular) reduction(+ : left_out, rounded) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    const char *p = cuts[part], *stop = cuts[part + 1];
    int64_t at = starts[part];
    while (p < stop) {
      const char* line = p;
      Edge edge;
      const Line found = read_line(p, end, rules, edge, rounded);
      if (found == Line::irregular) {
        irregular = std::min<int64_t>(irregular, line - begin);
        break;
      }
      left_out += found == Line::comment;
      if (found != Line::edge) continue;
      u[at] = edge.source, v[at] = edge.destination;
      if (w) w[at] = edge.weight;
      ++at;
    }
    counts[part] = at - starts[part];
  }
  if (irregular < end - begin) return {0, irregular, 0, 0};
  const int64_t count = close_gaps(u, starts, counts);
  close_gaps(v, starts, counts);
  if (w) close_gaps(w, starts, counts);
  return {count, -1, left_out, rounded};
}

}  // namespace

void bind_parse(nb::module_& m) {
  m.def("count_lines", &count_lines, "text"_a.noconvert(), "Return the number of newlines of a text, uint8 [n].");
  m.def("parse_edges", &parse_edges, "text"_a.noconvert(), "columns"_a, "first"_a, "limit"_a, "delimiter"_a,
        "comments"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "weight"_a.noconvert(),
        R"(Parse lines of edges: source, destination, and with more than two columns a weight; others are checked only.

text: uint8 [n], whole lines. Ids first .. first + limit - 1 become 0 .. limit - 1; they may be written as 1.0 or 1e+05.
delimiter: the character that separates words, " " for runs of blanks and tabs. Lines that begin with one of the texts
``comments``, and lines of blanks, hold no edge. sources, destinations int64 [k] and weight float32 [k] ([0] with two
columns) are filled; k is the number of lines at least. Returns (edges, -1, comments, whole weights that single precision
does not hold); or (0, byte, 0, 0) where the first line begins that is anything else, or has an id of more than 15 digits
or with a sign. Raises ValueError for arrays that are too short.)");
  nb::class_<Names>(m, "Names", "Rows of nodes whose ids are words, in order of their first appearance.")
      .def(nb::init<>())
      .def("__len__", &Names::size)
      .def("all_numbers", &Names::all_numbers, "Return whether all names are whole numbers that fit int64.")
      .def("fill_numbers", &fill_numbers, "first"_a, "numbers"_a.noconvert(),
           "Fill int64 [k] with the names of rows ``first`` on, if all names are numbers. Raises ValueError otherwise.")
      .def("fill_lengths", &fill_lengths, "first"_a, "lengths"_a.noconvert(),
           "Fill int64 [k] with the bytes of the names of rows ``first`` on. Raises ValueError for rows that are none.")
      .def("fill_text", &fill_text, "first"_a, "count"_a, "text"_a.noconvert(),
           "Fill uint8 [n] with the names of ``count`` rows, UTF-8. Raises ValueError where they have no room.");
  m.def("parse_names", &parse_names, "text"_a.noconvert(), "columns"_a, "delimiter"_a, "comments"_a, "names"_a,
        "sources"_a.noconvert(), "destinations"_a.noconvert(), "weight"_a.noconvert(),
        R"(Parse lines of edges as parse_edges does, between nodes whose ids are any words.

delimiter: as there; "\x1f" separates words that keep the blanks around them and their quotes. Sources and destinations
are the rows of ``names``, to which new words are added in the order of the text. Returns as parse_edges does; or
(0, byte, 0, 0) where the first line begins that has other than so many words, a word that begins with a quote, is not
UTF-8 or has control characters, or a weight that is no finite number. No word is added then.)");
  m.def("count_words", &count_words, "text"_a.noconvert(), "Return the number of words between blanks, uint8 [n].");
  m.def("parse_adjacency", &parse_adjacency, "text"_a.noconvert(), "place"_a, "nodes"_a, "skip"_a, "weighted"_a,
        "sources"_a.noconvert(), "destinations"_a.noconvert(), "weight"_a.noconvert(),
        R"(Parse lines of neighbours: line v, from 0 on, has the sources of the edges to vertex v, 1 .. nodes.

text: uint8 [n], which ends behind any word. place: (vertex, words of its line, last neighbour, whether in a comment)
where it begins; (0, 0, 0, False) for the first line. The first ``skip`` words of each line, whole numbers, are passed
over; where ``weighted``, a weight follows each neighbour. Lines that begin with % are none. sources, destinations
int64 [k] and weight float32 [k] ([0] without weights) are filled; k is the number of words at least. Returns (edges,
-1, place behind the text, whole weights that single precision does not hold); or (0, byte, its place, 0) of the first
word that is something else or too many, or of a newline that comes too early. Raises ValueError for arrays that are too
short.)");
}
