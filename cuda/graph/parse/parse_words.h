// Words of text files of edges: whole numbers, decimals and what separates them; and text that is cut into parts, which
// threads parse side by side, each into arrays from a place of its own on: what comes out does not depend on the
// threads. All text ends with a newline or a blank, at which every scan of a word stops.
#pragma once
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "graph/bind.h"

namespace mgg::text {

constexpr int most_digits = 15;  // of a whole number

inline bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// A delimiter is one character; ' ' stands for any run of blanks, and ``exact`` separates words that keep their blanks.
constexpr char exact = '\x1f';
inline bool padding(char c, char delimiter) {
  return blank(c) && delimiter != exact && !(c == '\t' && delimiter == '\t');
}

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

inline void skip_padding(const char*& p, char delimiter) {
  while (padding(*p, delimiter)) ++p;
}

// Whether a line begins with one of the marks of comments, which have no newline.
inline bool is_comment(const char* p, const std::vector<std::string>& marks) {
  for (const std::string& mark : marks)
    if (std::strncmp(p, mark.c_str(), mark.size()) == 0) return true;
  return false;
}

inline const char* behind_newline(const char* p, const char* end) {
  return static_cast<const char*>(std::memchr(p, '\n', end - p)) + 1;
}

// How many of eight characters, the lowest byte first, are digits before the first that is none.
inline int leading_digits(uint64_t word) {
  const uint64_t value = word ^ 0x3030303030303030;
  // A byte above 9 sets its highest bit; a carry reaches later characters only.
  const uint64_t others = ((value + 0x7676767676767676) | value) & 0x8080808080808080;
  return others ? __builtin_ctzll(others) >> 3 : 8;
}

// The number that the first ``count`` characters, 1 to 8, are the digits of: pairs, then fours, then all eight at once.
inline uint64_t value_of_digits(uint64_t word, int count) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first character is the lowest byte");
  uint64_t value = (word & 0x0f0f0f0f0f0f0f0f) << (64 - 8 * count);
  value = value * 10 + (value >> 8);
  return ((value & 0x000000ff000000ff) * 0x000f424000000064 +
          ((value >> 16) & 0x000000ff000000ff) * 0x0000271000000001) >> 32;
}

// Reads 1 to 15 digits; false for none, or for more.
inline bool read_number(const char*& p, const char* end, int64_t& number) {
  static constexpr uint64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
  if (end - p >= 16) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    int count = leading_digits(word);
    if (count == 0) return false;
    uint64_t found = value_of_digits(word, count);
    if (count == 8) {
      std::memcpy(&word, p + 8, 8);
      const int more = leading_digits(word);
      if (more == 8) return false;
      if (more) found = found * powers[more] + value_of_digits(word, more);
      count += more;
    }
    p += count;
    number = static_cast<int64_t>(found);
    return true;
  }
  const char* from = p;
  int64_t found = 0;
  for (; is_digit(*p) && p - from <= most_digits; ++p) found = found * 10 + (*p - '0');
  number = found;
  return p > from && p - from <= most_digits;
}

// Reads a whole number of at most 15 digits that is written with a point or an exponent, such as 1.0 and 1e+05.
inline bool read_whole(const char*& p, int64_t& number) {
  constexpr int64_t most = 999999999999999;
  int64_t found = 0;
  int zeros = 0, fraction = 0;  // trailing zeros of the digits so far, and digits behind the point
  for (bool point = false; is_digit(*p) || (*p == '.' && !point); ++p) {
    if (*p == '.') {
      point = true;
      continue;
    }
    fraction += point;
    ++zeros;
    if (*p == '0') continue;
    for (; found && zeros; --zeros)
      if ((found *= 10) > most) return false;
    found += *p - '0';
    zeros = 0;
  }
  int power = zeros - fraction, exponent = 0;
  if (*p == 'e' || *p == 'E') {
    const bool negative = *++p == '-';
    if (*p == '-' || *p == '+') ++p;
    const char* from = p;
    for (; is_digit(*p) && p - from < 4; ++p) exponent = exponent * 10 + (*p - '0');
    if (p == from) return false;
    power += negative ? -exponent : exponent;
  }
  if (found && power < 0) return false;
  for (; found && power; --power)
    if ((found *= 10) > most) return false;
  number = found;
  return true;
}

// Whether a whole number of 2^24 or more is another one in single precision; a word of many digits may be another one in
// double precision already.
[[gnu::noinline]] inline bool is_rounded(double value, float decimal, const char* word, const char* end) {
  if (value != std::floor(value)) return false;
  if (std::fabs(value) < 0x1p53) return decimal != value;
  return static_cast<long double>(decimal) != std::strtold(std::string(word, end).c_str(), nullptr);
}

// Reads a finite decimal as Python's float() does, rounded to single precision; false for any other word, and for one
// that is 0 only when it is rounded. rounded: counts whole numbers that are others in single precision.
inline bool read_decimal(const char*& p, const char* end, char delimiter, float& decimal, int64_t& rounded) {
  const char* word = p;
  while (*p != '\n' && !blank(*p) && *p != delimiter) ++p;
  int64_t whole;
  const char* after = word;
  if (p - word <= most_digits && read_number(after, end, whole) && after == p) {
    decimal = static_cast<float>(static_cast<double>(whole));
    if (whole > 1 << 24) rounded += is_rounded(static_cast<double>(whole), decimal, word, p);
    return true;
  }
  if (word < p && *word == '+') {
    if (*++word == '-') return false;
  }
  const char* first = word + (word < p && *word == '-');
  if (first == p || !(is_digit(*first) || *first == '.')) return false;  // from_chars takes "inf" and "nan"
  double value = 0;
  const auto [stop, error] = std::from_chars(word, p, value);
  if (stop != p) return false;
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(word, p).c_str(), nullptr);
  decimal = static_cast<float>(value);
  if (std::fabs(value) > 0x1p24) rounded += is_rounded(value, decimal, word, p);
  const bool zero = value == 0 && error == std::errc();  // or a number so small that it becomes 0
  return std::isfinite(decimal) && (decimal != 0 || zero);
}

// Steps over what separates two words: blanks, or one delimiter among them.
inline bool step_over(const char*& p, char delimiter) {
  const char* from = p;
  skip_padding(p, delimiter);
  if (delimiter == ' ') return p > from;
  if (*p != delimiter) return false;
  ++p;
  skip_padding(p, delimiter);
  return true;
}

// --- parts

constexpr int64_t part_bytes = 1 << 17;  // of text; more parts than threads keep all of them busy

struct Text {
  const char *begin, *end;
};

inline Text text_of(const Flat<const uint8_t>& bytes) {
  const char* begin = reinterpret_cast<const char*>(bytes.data());
  require(bytes.size() == 0 || begin[bytes.size() - 1] == '\n', "parse: the text ends with a newline");
  return {begin, begin + bytes.size()};
}

inline int64_t count_newlines(const char* begin, const char* end) {
  int64_t lines = 0;
  while (begin < end) {  // in stretches whose counts fit the narrow sums that the compiler makes vectors of
    const char* stop = begin + std::min<int64_t>(end - begin, 1 << 14);
    uint16_t found = 0;
    for (; begin < stop; ++begin) found = static_cast<uint16_t>(found + (*begin == '\n'));
    lines += found;
  }
  return lines;
}

inline int64_t count_lines(Flat<const uint8_t> bytes) {
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
inline std::vector<int64_t> first_lines(const std::vector<const char*>& cuts) {
  const int64_t parts = static_cast<int64_t>(cuts.size()) - 1;
  std::vector<int64_t> lines(parts + 1, 0);
#pragma omp parallel for if (parts > 4)
  for (int64_t part = 0; part < parts; ++part) lines[part + 1] = count_newlines(cuts[part], cuts[part + 1]);
  std::partial_sum(lines.begin(), lines.end(), lines.begin());
  return lines;
}

// Where parts of about ``size`` bytes begin, each at the begin of a line; the last entry is the end of the text.
inline std::vector<const char*> line_parts(const char* begin, const char* end, int64_t size) {
  std::vector<const char*> cuts{begin};
  while (end - cuts.back() > size) cuts.push_back(behind_newline(cuts.back() + size - 1, end));
  if (cuts.back() < end) cuts.push_back(end);
  return cuts;
}

enum class Line { edge, empty, comment, irregular };

// Moves the entries of all parts together. starts: where each part's begin; counts: how many each has.
template <class T>
inline int64_t close_gaps(T* entries, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts) {
  int64_t at = 0;
  for (size_t part = 0; part < counts.size(); ++part) {
    if (at != starts[part]) std::memmove(entries + at, entries + starts[part], counts[part] * sizeof(T));
    at += counts[part];
  }
  return at;
}

}  // namespace mgg::text
