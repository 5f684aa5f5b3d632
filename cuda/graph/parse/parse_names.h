// Lines of edges between nodes whose ids are any words. Rows are in order of first appearance, by a hash map with one
// table for whole numbers and one for all other words.
#pragma once
#include <charconv>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/parse/parse_words.h"

namespace mgg::text {

// A word of a text. length 0: a whole number, ``code``; otherwise ``code`` is its hash.
struct Word {
  uint64_t code;
  uint32_t at, length;
};

// Whole numbers are words that are written as std::to_chars writes them, so that "7" is one and "007" is none.
inline bool whole_number(std::string_view word, int64_t& number) {
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || stop != word.data() + word.size()) return false;
  const size_t sign = word[0] == '-';
  return word[sign] != '0' || word.size() == 1;
}

inline uint64_t mixed(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

class Names {
 public:
  // The seed keeps a file from choosing words that collide; rows do not depend on it.
  Names() : seed_((static_cast<uint64_t>(std::random_device()()) << 32) | std::random_device()()) {}

  uint64_t hash(std::string_view word) const {
    uint64_t found = seed_ ^ word.size();
    size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) found = mixed(found ^ loaded(word.data() + at, 8), factor);
    return mixed(found ^ loaded(word.data() + at, word.size() - at), factor);
  }

  void prefetch(const Word& word) const { __builtin_prefetch(&table(word).slots[place(table(word), word.code)]); }

  // The row of a word of a text that begins at ``text``; -1 if it has none.
  int64_t find(const Word& word, const char* text) const { return slot(word, text).row; }

  int64_t find_or_add(const Word& word, const char* text) {
    Table& into = word.length ? words_ : numbers_;
    if (4 * (into.used + 1) > 3 * into.slots.size()) grow(into);
    Slot& found = const_cast<Slot&>(slot(word, text));
    if (found.row >= 0) return found.row;
    found = {word.code, size()};
    ++into.used;
    is_word_.push_back(word.length != 0);
    if (word.length) {
      values_.push_back(static_cast<int64_t>(begins_.size()));
      begins_.push_back(bytes_.size());
      bytes_.insert(bytes_.end(), text + word.at, text + word.at + word.length);
    } else {
      values_.push_back(static_cast<int64_t>(word.code));
    }
    return found.row;
  }

  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  bool all_numbers() const { return words_.used == 0; }
  int64_t number(int64_t row) const { return values_[row]; }

  // The name of a row. digits: room for those of a number.
  std::string_view name(int64_t row, char (&digits)[24]) const {
    if (is_word_[row]) return word_of(values_[row]);
    return {digits, static_cast<size_t>(std::to_chars(digits, digits + 24, values_[row]).ptr - digits)};
  }

 private:
  struct Slot {
    uint64_t code = 0;
    int64_t row = -1;
  };
  struct Table {
    std::vector<Slot> slots = std::vector<Slot>(1024);
    size_t used = 0;
  };
  static constexpr uint64_t factor = 0x9e3779b97f4a7c15;

  static uint64_t loaded(const char* from, size_t count) {
    uint64_t value = 0;
    if (count) std::memcpy(&value, from, count);
    return value;
  }

  const Table& table(const Word& word) const { return word.length ? words_ : numbers_; }
  size_t place(const Table& in, uint64_t code) const { return mixed(code ^ seed_, factor) & (in.slots.size() - 1); }

  std::string_view word_of(int64_t index) const {
    const size_t next = static_cast<size_t>(index) + 1;
    const size_t end = next < begins_.size() ? begins_[next] : bytes_.size();
    return {bytes_.data() + begins_[index], end - begins_[index]};
  }

  // The slot of a word, or the empty one where it belongs.
  const Slot& slot(const Word& word, const char* text) const {
    const Table& in = table(word);
    for (size_t at = place(in, word.code);; at = (at + 1) & (in.slots.size() - 1)) {
      const Slot& found = in.slots[at];
      if (found.row < 0) return found;
      if (found.code != word.code) continue;
      if (!word.length || word_of(values_[found.row]) == std::string_view(text + word.at, word.length)) return found;
    }
  }

  void grow(Table& into) {
    Table wider;
    wider.slots.assign(2 * into.slots.size(), {});
    wider.used = into.used;
    for (const Slot& each : into.slots) {
      if (each.row < 0) continue;
      size_t at = place(wider, each.code);
      while (wider.slots[at].row >= 0) at = (at + 1) & (wider.slots.size() - 1);
      wider.slots[at] = each;
    }
    into = std::move(wider);
  }

  uint64_t seed_;
  Table numbers_, words_;
  std::vector<int64_t> values_;    // of each row: its number, or which of the words is its name
  std::vector<bool> is_word_;      // of each row
  std::vector<size_t> begins_;     // of each word, in bytes_
  std::vector<char> bytes_;
};

// Whether bytes are UTF-8 without control characters but tabs.
inline bool printable_utf8(std::string_view word) {
  for (size_t at = 0; at < word.size();) {
    const auto first = static_cast<unsigned char>(word[at]);
    if (first < 0x80) {
      if ((first < 0x20 && first != '\t') || first == 0x7f) return false;
      ++at;
      continue;
    }
    const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || at + length > word.size()) return false;
    uint32_t point = first & (0x7fu >> length);
    for (size_t next = at + 1; next < at + length; ++next) {
      const auto byte = static_cast<unsigned char>(word[next]);
      if ((byte & 0xc0) != 0x80) return false;
      point = point << 6 | (byte & 0x3fu);
    }
    const uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    at += length;
  }
  return true;
}

// --- edges between names

struct NameRules {
  int columns;
  char delimiter;
  std::vector<std::string> comments;
};

constexpr size_t ahead = 16;  // words whose places in the tables are fetched before they are looked at

struct Miss {
  int64_t* row;
  Word word;
};

// Reads a name: a word between blanks, or all between delimiters less the blanks around it.
inline bool read_name(const char*& p, const char* begin, const char* end, const NameRules& rules,
                      const Names& names, Word& word) {
  const char* from = p;
  if (*p == '"' && rules.delimiter != exact) return false;
  if (int64_t number; *p != '0' && read_number(p, end, number) && (blank(*p) || *p == '\n' || *p == rules.delimiter)) {
    const char* after = p;
    skip_padding(after, rules.delimiter);
    if (rules.delimiter == ' ' || *after == '\n' || *after == rules.delimiter) {
      word = {static_cast<uint64_t>(number), 0, 0};
      return true;
    }
  }
  p = from;
  while (*p != '\n' && (rules.delimiter == ' ' ? !blank(*p) : *p != rules.delimiter)) ++p;
  const char* stop = p;
  while (stop > from && padding(stop[-1], rules.delimiter)) --stop;
  const std::string_view name(from, stop - from);
  if (name.empty() || !printable_utf8(name)) return false;
  if (int64_t number; whole_number(name, number))
    word = {static_cast<uint64_t>(number), 0, 0};
  else
    word = {names.hash(name), static_cast<uint32_t>(from - begin), static_cast<uint32_t>(name.size())};
  return true;
}

// Reads a line as read_line does, but names.
inline Line read_named_line(const char*& p, const char* begin, const char* end, const NameRules& rules,
                            const Names& names, Word (&words)[2], float& weight, int64_t& rounded) {
  skip_padding(p, rules.delimiter);
  if (*p == '\n') return ++p, Line::empty;
  if (is_comment(p, rules.comments)) return p = behind_newline(p, end), Line::comment;
  if (!read_name(p, begin, end, rules, names, words[0]) || !step_over(p, rules.delimiter) ||
      !read_name(p, begin, end, rules, names, words[1]))
    return Line::irregular;
  float further;
  int64_t of_further = 0;
  for (int column = 2; column < rules.columns; ++column)
    if (!step_over(p, rules.delimiter) || !read_decimal(p, end, rules.delimiter, column == 2 ? weight : further,
                                                        column == 2 ? rounded : of_further))
      return Line::irregular;
  skip_padding(p, rules.delimiter);
  return *p == '\n' ? (++p, Line::edge) : Line::irregular;
}

// Looks up the words of a part's edges, two for each; those that have no row yet are added to the misses.
inline void look_up(const std::vector<Word>& words, const char* text, const Names& names, int64_t* u, int64_t* v,
                    std::vector<Miss>& misses) {
  for (size_t at = 0; at < words.size(); ++at) {
    if (at + ahead < words.size()) names.prefetch(words[at + ahead]);
    int64_t* row = (at % 2 ? v : u) + at / 2;
    *row = names.find(words[at], text);
    if (*row < 0) misses.push_back({row, words[at]});
  }
}

// Edges, the first irregular byte or -1, comments, and weights that were rounded.
using Parsed = std::tuple<int64_t, int64_t, int64_t, int64_t>;

inline Parsed parse_names(Flat<const uint8_t> bytes, int columns, char delimiter,
                          const std::vector<std::string>& comments, Names& names, Flat<int64_t> sources,
                          Flat<int64_t> destinations, Flat<float> weight) {
  require(columns >= 2, "parse: an edge has two columns at least");
  require(bytes.size() < (uint64_t{1} << 32), "parse: a block of names is smaller than 4 GiB");
  const auto [begin, end] = text_of(bytes);
  const NameRules rules{columns, delimiter, comments};
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
  std::vector<std::vector<Miss>> misses(parts);
  int64_t irregular = end - begin, left_out = 0, rounded = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(min : irregular) reduction(+ : left_out, rounded) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<Word> words;
    for (const char *p = cuts[part], *line = p; p < cuts[part + 1]; line = p) {
      Word ends[2];
      float decimal = 1;
      const Line found = read_named_line(p, begin, end, rules, names, ends, decimal, rounded);
      if (found == Line::irregular) {
        irregular = std::min<int64_t>(irregular, line - begin);
        break;
      }
      left_out += found == Line::comment;
      if (found != Line::edge) continue;
      if (w) w[starts[part] + counts[part]] = decimal;
      ++counts[part];
      words.insert(words.end(), ends, ends + 2);
    }
    look_up(words, begin, names, u + starts[part], v + starts[part], misses[part]);
  }
  if (irregular < end - begin) return {0, irregular, 0, 0};
  for (const std::vector<Miss>& each : misses) {  // in the order of the text, whatever the threads did
    for (size_t at = 0; at < each.size(); ++at) {
      if (at + ahead < each.size()) names.prefetch(each[at + ahead].word);
      *each[at].row = names.find_or_add(each[at].word, begin);
    }
  }
  const int64_t count = close_gaps(u, starts, counts);
  close_gaps(v, starts, counts);
  if (w) close_gaps(w, starts, counts);
  return {count, -1, left_out, rounded};
}

inline void check_rows(const Names& names, int64_t first, size_t count) {
  require(first >= 0 && first + static_cast<int64_t>(count) <= names.size(), "names: there are no such rows");
}

inline void fill_numbers(const Names& names, int64_t first, Flat<int64_t> numbers) {
  check_rows(names, first, numbers.size());
  require(names.all_numbers(), "names: not all are whole numbers");
  for (size_t at = 0; at < numbers.size(); ++at) numbers.data()[at] = names.number(first + static_cast<int64_t>(at));
}

inline void fill_lengths(const Names& names, int64_t first, Flat<int64_t> lengths) {
  check_rows(names, first, lengths.size());
  char digits[24];
  for (size_t at = 0; at < lengths.size(); ++at)
    lengths.data()[at] = static_cast<int64_t>(names.name(first + static_cast<int64_t>(at), digits).size());
}

inline void fill_text(const Names& names, int64_t first, int64_t count, Flat<uint8_t> text) {
  require(count >= 0, "names: there are no such rows");
  check_rows(names, first, static_cast<size_t>(count));
  char digits[24];
  size_t at = 0;
  for (int64_t row = first; row < first + count; ++row) {
    const std::string_view name = names.name(row, digits);
    require(at + name.size() <= text.size(), "names: the text has no room for them");
    std::memcpy(text.data() + at, name.data(), name.size());
    at += name.size();
  }
}

}  // namespace mgg::text
