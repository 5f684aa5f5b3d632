// Draws the edges of random graphs. An edge depends on its number alone, so any run of edges can be drawn by itself, by
// any number of threads.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "generate_bijection.h"
#include "generate_philox.h"

namespace {

using mgg::Bijection;
using mgg::Flat;
using mgg::Philox;
using mgg::require;
using mgg::scaled;

using Words = Flat<const uint64_t>;

constexpr int64_t piece = 2048;  // edges that a thread draws at a time, within its first-level cache

Philox sequence(const Words& key, const Words& counter) {
  require(key.size() == 2 && counter.size() == 4, "draw: a key has 2 words, a counter 4");
  return Philox(key.data(), counter.data());
}

template <class Id>
void same_length(const Flat<Id>& sources, const Flat<Id>& destinations) {
  require(sources.size() == destinations.size(), "draw: sources and destinations have the same length");
}

// Calls draw(first, count) for all pieces of 0 .. count - 1.
template <class Draw>
void in_pieces(int64_t count, Draw draw) {
  const int64_t pieces = (count + piece - 1) / piece;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t p = 0; p < pieces; ++p) draw(p * piece, std::min(piece, count - p * piece));
}

// Edges of a recursive matrix, of 2 x 2 cells, row by row, whose upper ends are bounds (53 bits each).
template <class Id>
void rmat_edges(Words key, Words counter, uint64_t first_word, int levels, Words bounds, Flat<const Id> names,
                Flat<Id> sources, Flat<Id> destinations) {
  const Philox random = sequence(key, counter);
  same_length(sources, destinations);
  require(bounds.size() == 3 && std::is_sorted(bounds.data(), bounds.data() + 3),
          "rmat_edges: expected the bounds of 2 x 2 cells, which never decrease");
  require(levels >= 0 && levels < 48 && names.size() == uint64_t(1) << levels,
          "rmat_edges: expected a name for each of 2**levels nodes");
  nb::gil_scoped_release release;
  const auto count = static_cast<int64_t>(sources.size());
  in_pieces(count, [&](int64_t first, int64_t many) {
    uint64_t words[Philox::room_for(piece)];
    std::make_unsigned_t<Id> u[piece] = {}, v[piece] = {};
    for (int level = 0; level < levels; ++level) {
      const uint64_t* word = random.draw(first_word + static_cast<uint64_t>(level) * count + first, many, words);
      for (int64_t e = 0; e < many; ++e) {
        unsigned cell = 0;  // the unit interval is divided into cells, row by row
        for (int i = 0; i < 3; ++i) cell += (word[e] >> 11) >= bounds.data()[i];
        u[e] = 2 * u[e] + cell / 2;
        v[e] = 2 * v[e] + cell % 2;
      }
    }
    for (int64_t e = 0; e < many; ++e) sources.data()[first + e] = names.data()[u[e]];
    for (int64_t e = 0; e < many; ++e) destinations.data()[first + e] = names.data()[v[e]];
  });
}

template <class Id>
void uniform_edges(Words key, Words counter, uint64_t first, uint64_t nodes, Flat<Id> sources, Flat<Id> destinations) {
  const Philox random = sequence(key, counter);
  same_length(sources, destinations);
  require(nodes >= 1 && nodes - 1 <= static_cast<uint64_t>(std::numeric_limits<Id>::max()),
          "uniform_edges: ids of this many nodes do not fit");
  nb::gil_scoped_release release;
  in_pieces(static_cast<int64_t>(sources.size()), [&](int64_t begin, int64_t many) {
    uint64_t words[Philox::room_for(2 * piece)];
    const uint64_t* word = random.draw(2 * (first + begin), 2 * many, words);
    for (int64_t e = 0; e < many; ++e) {
      sources.data()[begin + e] = static_cast<Id>(scaled(word[2 * e], nodes));
      destinations.data()[begin + e] = static_cast<Id>(scaled(word[2 * e + 1], nodes));
    }
  });
}

// Groups of rows, to be drawn in proportion to their weights by Walker's alias method (Vose, IEEE TSE 1991): a class has
// `groups` of them; row r of class c is the node of rank r * classes + c.
struct Table {
  const uint64_t* limit;  // a column is kept for words below
  const uint32_t* alias;  // and another taken instead for the others

  uint32_t draw(uint64_t word, uint32_t columns) const {
    const auto product = static_cast<unsigned __int128>(word) * columns;
    const auto column = static_cast<uint32_t>(product >> 64);
    return static_cast<uint64_t>(product) <= limit[column] ? column : alias[column];
  }
};

using Column = Flat<const uint32_t>;
using Rows = Flat<const int64_t>;

using Columns = std::tuple<Words, Column, Words, Column, Words, Column, Rows, Rows>;

class Ends {
 public:
  Ends(const Columns& columns, uint32_t classes) {
    const auto& [far_limit, far_alias, near_limit, near_alias, own_limit, own_alias, first, size] = columns;
    far_ = {far_limit.data(), far_alias.data()};
    near_ = {near_limit.data(), near_alias.data()};
    own_ = {own_limit.data(), own_alias.data()};
    first_ = first.data(), size_ = size.data();
    columns_ = static_cast<uint32_t>(first.size()), groups_ = columns_ / std::max(classes, 1u);
    const size_t count = first.size();
    require(classes >= 1 && count >= classes && count % classes == 0 && count < uint64_t(1) << 32,
            "class_edges: each class has as many groups as the others");
    require(size.size() == count && far_limit.size() == count && far_alias.size() == count &&
                near_limit.size() == count && near_alias.size() == count && own_limit.size() == count &&
                own_alias.size() == count,
            "class_edges: all columns of a table have the same length");
    const auto most = [](const Column& column) { return *std::max_element(column.data(), column.data() + column.size()); };
    require(most(far_alias) < columns_ && most(near_alias) < columns_ && most(own_alias) < groups_,
            "class_edges: an alias lies outside of the table");
  }

  struct End {
    uint32_t label;
    uint64_t row;
  };

  // One of all nodes, for an edge within its class (near) or to any node.
  End of_all(bool near, uint64_t word, uint32_t place) const {
    return at((near ? near_ : far_).draw(word, columns_), place);
  }

  // One of a class's nodes.
  End of_class(uint32_t label, uint64_t word, uint32_t place) const {
    const uint32_t begin = label * groups_;
    const Table own{own_.limit + begin, own_.alias + begin};
    return at(begin + own.draw(word, groups_), place);
  }

  // Throws if a row of a group is not a row of its class.
  void check(uint64_t nodes, uint32_t classes) const {
    for (uint32_t c = 0; c < columns_; ++c) {
      const uint64_t label = c / groups_, rows = nodes > label ? (nodes - label - 1) / classes + 1 : 0;
      require(first_[c] >= 0 && size_[c] >= 0 && static_cast<uint64_t>(first_[c] + std::max<int64_t>(size_[c], 1)) <= rows,
              "class_edges: a group's rows lie outside of its class");
    }
  }

 private:
  End at(uint32_t column, uint32_t place) const {
    const uint64_t offset = (static_cast<uint64_t>(place) * static_cast<uint64_t>(size_[column])) >> 32;
    return {column / groups_, static_cast<uint64_t>(first_[column]) + offset};
  }

  Table far_, near_, own_;
  const int64_t *first_, *size_;
  uint32_t columns_, groups_;  // of all classes, of each
};

template <class Id>
void class_edges(Words key, Words counter, uint64_t first, uint64_t nodes, uint32_t classes, uint64_t inside,
                 Words keys, const std::vector<Columns>& tables,
                 Flat<Id> sources, Flat<Id> destinations) {
  const Philox random = sequence(key, counter);
  same_length(sources, destinations);
  require(keys.size() == 2, "class_edges: expected a key for nodes and one for rows");
  require(tables.size() == 1 || tables.size() == 2, "class_edges: expected a table for all ends, or one for each");
  require(nodes >= classes && classes >= 1 && inside <= uint64_t(1) << 32,
          "class_edges: expected a class or more, and a node or more in each");
  std::vector<Ends> ends;
  for (const auto& table : tables) {
    ends.emplace_back(table, classes);
    ends.back().check(nodes, classes);
  }
  nb::gil_scoped_release release;
  const Bijection names(nodes, keys.data()[0]);
  // The rows of a class in another order: a node's two degrees are independent. Classes differ by one row at most.
  const uint64_t rows = (nodes - 1) / classes + 1, full = (nodes - 1) % classes + 1;
  const Bijection long_rows(rows, keys.data()[1]), short_rows(std::max<uint64_t>(rows - 1, 1), keys.data()[1]);
  const Ends &from = ends.front(), &to = ends.back();
  const bool two = ends.size() == 2;
  in_pieces(static_cast<int64_t>(sources.size()), [&](int64_t begin, int64_t many) {
    uint64_t words[Philox::room_for(4 * piece)];
    const uint64_t* word = random.draw(4 * (first + begin), 4 * many, words);
    for (int64_t e = 0; e < many; ++e, word += 4) {
      const bool near = static_cast<uint32_t>(word[1]) < inside;
      auto u = from.of_all(near, word[0], static_cast<uint32_t>(word[1] >> 32));
      const auto place = static_cast<uint32_t>(word[3] >> 32);
      const auto v = near ? to.of_class(u.label, word[2], place) : to.of_all(false, word[2], place);
      if (two) u.row = u.label < full ? long_rows(u.row) : short_rows(u.row);
      sources.data()[begin + e] = static_cast<Id>(names(u.row * classes + u.label));
      destinations.data()[begin + e] = static_cast<Id>(names(v.row * classes + v.label));
    }
  });
}

void places(uint64_t count, uint64_t key, uint64_t first, Flat<int64_t> out) {
  require(count >= 1 && count <= uint64_t(1) << 62 && first <= count && out.size() <= count - first,
          "places: expected some of the numbers 0 .. count - 1");
  nb::gil_scoped_release release;
  const Bijection names(count, key);
  in_pieces(static_cast<int64_t>(out.size()), [&](int64_t begin, int64_t many) {
    for (int64_t i = begin; i < begin + many; ++i) out.data()[i] = static_cast<int64_t>(names.back(first + i));
  });
}

template <class Id>
void bind_id(nb::module_& m) {
  m.def("rmat_edges", &rmat_edges<Id>, "key"_a.noconvert(), "counter"_a.noconvert(), "first_word"_a, "levels"_a,
        "bounds"_a.noconvert(), "names"_a.noconvert(), "sources"_a.noconvert(), "destinations"_a.noconvert(),
        R"(Draw a block of edges of a recursive matrix.

key uint64 [2], counter uint64 [4]: a numpy.random.Philox with nothing in its buffer. first_word: words of its sequence
before the block; level k of edge e takes word first_word + k * edges + e, as a double in 0 .. 1. bounds uint64 [3]:
2**53 times the ends of the first cells, row (source) by row. names [2**levels]: the id of each node.)");
  m.def("uniform_edges", &uniform_edges<Id>, "key"_a.noconvert(), "counter"_a.noconvert(), "first"_a, "nodes"_a,
        "sources"_a.noconvert(), "destinations"_a.noconvert(),
        "Draw edges `first` and following, whose ends are uniform in 0 .. nodes - 1.");
  m.def("class_edges", &class_edges<Id>, "key"_a.noconvert(), "counter"_a.noconvert(), "first"_a, "nodes"_a, "classes"_a,
        "inside"_a, "keys"_a.noconvert(), "tables"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(),
        R"(Draw edges `first` and following of a graph with given expected degrees and classes.

With a probability of inside / 2**32 an edge is within a class: its source is drawn from all nodes, its destination from
the source's class; otherwise both are drawn from all nodes. tables: one for both ends, or one for sources and one for
destinations: (limit, alias) of all columns for edges among all nodes, and for edges within a class; (limit, alias) of
each class's columns for the latter; each column's first row and number of rows. Row r of class c has the rank
r * classes + c. keys uint64 [2]: for the numbering of ranks (see `places`), and for the numbering of a class's sources.)");
}

}  // namespace

void bind_generate(nb::module_& m) {
  bind_id<int32_t>(m);
  bind_id<int64_t>(m);
  m.def("places", &places, "count"_a, "key"_a, "first"_a, "out"_a.noconvert(),
        "Fill in which ranks of 0 .. count - 1 have the ids `first` and following: a shuffle that takes no memory.");
}
