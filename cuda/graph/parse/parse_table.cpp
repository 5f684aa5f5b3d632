// Parse text files of tables of numbers: blocks of whole lines, all threads at a time. A line that is no row of numbers
// is pointed at and left to the caller, who says what is wrong with it.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>

#include "graph/bind.h"
#include "graph/parse/parse_words.h"

namespace {

using mgg::Flat;
using mgg::require;
using namespace mgg::text;

// Reads a number as Python's float() does, "nan" and "inf" included; a pair of quotes is NaN, and so is nothing at all,
// but between blanks.
bool read_field(const char*& p, const char* end, char delimiter, double& value) {
  const char* word = p;
  while (*p != '\n' && !blank(*p) && *p != delimiter) ++p;
  value = std::numeric_limits<double>::quiet_NaN();
  if (p == word) return delimiter != ' ';
  if (p - word == 2 && word[0] == '"' && word[1] == '"') return true;
  int64_t whole;
  const char* after = word;
  if (p - word <= most_digits && read_number(after, end, whole) && after == p)
    return value = static_cast<double>(whole), true;
  if (*word == '+' && (++word == p || *word == '-' || *word == '+')) return false;
  if (p[-1] == ')') return false;  // from_chars takes "nan(1)"
  const auto [stop, error] = std::from_chars(word, p, value);
  if (stop != p) return false;
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(word, p).c_str(), nullptr);
  return true;
}

// Reads a line that is not blank, from its first word on, and leaves p behind its newline; where the line is no row,
// anywhere within it.
bool read_row(const char*& p, const char* end, int64_t columns, char delimiter, double* values) {
  for (int64_t column = 0; column < columns; ++column) {
    if (column && !step_over(p, delimiter)) return false;
    if (!read_field(p, end, delimiter, values[column])) return false;
  }
  skip_padding(p, delimiter);
  return *p++ == '\n';
}

// The number of lines that are not blank.
int64_t count_rows(const char* p, const char* end) {
  int64_t rows = 0;
  while (p < end) {
    skip_padding(p, ' ');
    rows += *p != '\n';
    p = behind_newline(p, end);
  }
  return rows;
}

// Where each part's rows begin: [parts + 1].
std::vector<int64_t> first_rows(const std::vector<const char*>& cuts) {
  const int64_t parts = static_cast<int64_t>(cuts.size()) - 1;
  std::vector<int64_t> rows(parts + 1, 0);
#pragma omp parallel for if (parts > 4)
  for (int64_t part = 0; part < parts; ++part) rows[part + 1] = count_rows(cuts[part], cuts[part + 1]);
  std::partial_sum(rows.begin(), rows.end(), rows.begin());
  return rows;
}

int64_t count_table_rows(Flat<const uint8_t> bytes) {
  const auto [begin, end] = text_of(bytes);
  nb::gil_scoped_release release;
  return first_rows(line_parts(begin, end, part_bytes)).back();
}

std::pair<int64_t, int64_t> parse_table(Flat<const uint8_t> bytes, int64_t columns, char delimiter,
                                        Flat<double> values) {
  require(columns >= 1 && columns < (int64_t{1} << 31), "parse: a table has a column at least");
  const auto [begin, end] = text_of(bytes);
  double* table = values.data();
  nb::gil_scoped_release release;
  const std::vector<const char*> cuts = line_parts(begin, end, part_bytes);
  const int64_t parts = static_cast<int64_t>(cuts.size()) - 1;
  const std::vector<int64_t> starts = first_rows(cuts);
  const int64_t room = static_cast<int64_t>(values.size()) / columns;
  int64_t irregular = end - begin;
#pragma omp parallel for schedule(dynamic, 1) reduction(min : irregular) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    const char *p = cuts[part], *stop = cuts[part + 1];
    int64_t row = starts[part];
    while (p < stop) {
      const char* line = p;
      skip_padding(p, ' ');
      if (*p == '\n') {
        ++p;
        continue;
      }
      p = line;
      skip_padding(p, delimiter);  // a tab may be an empty field
      if (row == room || !read_row(p, end, columns, delimiter, table + row * columns)) {
        irregular = std::min<int64_t>(irregular, line - begin);
        break;
      }
      ++row;
    }
  }
  return irregular < end - begin ? std::pair<int64_t, int64_t>{0, irregular} : std::pair{starts.back(), int64_t{-1}};
}

}  // namespace

void bind_parse_table(nb::module_& m) {
  m.def("count_rows", &count_table_rows, "text"_a.noconvert(),
        "Return the number of lines of a text, uint8 [n], that are not blank.");
  m.def("parse_table", &parse_table, "text"_a.noconvert(), "columns"_a, "delimiter"_a, "values"_a.noconvert(),
        R"(Parse lines of numbers, ``columns`` in each, into float64 [k * columns], row by row.

text: uint8 [n], whole lines. delimiter: as parse_edges takes it; nothing at all between delimiters is NaN, and so is a
pair of quotes. Blank lines are passed over. Returns (rows, -1); or (0, byte) where the first line begins that is
anything else, or for which there is no room: any row takes ``columns`` bytes of text at least.)");
}
