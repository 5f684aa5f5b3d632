// Sorts the edges of one rank for its plans: by the owners of their sources (mgg_hpc/plan/workload.py) and by the rounds
// of a halo (plan/halo.py); and adds self loops (plan/adjacency.py). Threads take pieces of the rows. Where a piece stores
// its results follows from counts, so results do not depend on the number of pieces or threads.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bind.h"
#include "rows.h"

namespace {

using mgg::array_of;
using mgg::few;
using mgg::Flat;
using mgg::Made;
using mgg::Marks;
using mgg::Owners;
using mgg::require;

void check_csr(const Flat<const int64_t>& indptr, size_t edges) {
  require(indptr.size() >= 1 && indptr.data()[0] == 0 &&
              indptr.data()[indptr.size() - 1] == static_cast<int64_t>(edges) &&
              std::is_sorted(indptr.data(), indptr.data() + indptr.size()),
          "split: indptr goes from 0 to the number of edges and never decreases");
}

// ---- sorting by a key

// Runs of edges of one key and destination, in the order of the keys. The runs of the i-th key are run_bounds[i] ..
// run_bounds[i + 1] - 1, its edges edge_bounds[i] .. edge_bounds[i + 1] - 1.
struct Runs {
  std::vector<int64_t> edge_bounds, run_bounds;
  std::unique_ptr<int32_t[]> destinations, counts;
};

// Sorts edges by key, then destination. cuts: bounds of the pieces of destinations. order: all keys, as they are to be
// sorted. visit(first, last, edge) calls edge(destination, key, e) for each edge of destinations first .. last - 1, in
// their order; store(position, key, e) stores edge e.
template <class Visit, class Store>
Runs sort_edges(const std::vector<int64_t>& cuts, const std::vector<int64_t>& order, size_t edges, Visit visit,
                Store store) {
  const int64_t pieces = static_cast<int64_t>(cuts.size()) - 1, keys = static_cast<int64_t>(order.size());
  std::vector<int64_t> edge_at(pieces * keys), run_at(pieces * keys);  // counts, then first positions, by piece and key
#pragma omp parallel for schedule(dynamic, 1) if (edges > few)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    std::vector<int64_t> edge(keys, 0), run(keys, 0), last(keys, -1);
    visit(cuts[piece], cuts[piece + 1], [&](int64_t destination, int64_t key, int64_t) {
      ++edge[key];
      run[key] += last[key] != destination;
      last[key] = destination;
    });
    std::copy(edge.begin(), edge.end(), edge_at.begin() + piece * keys);
    std::copy(run.begin(), run.end(), run_at.begin() + piece * keys);
  }
  Runs made;
  int64_t edge_sum = 0, run_sum = 0;
  for (const int64_t key : order) {
    made.edge_bounds.push_back(edge_sum), made.run_bounds.push_back(run_sum);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      edge_sum += std::exchange(edge_at[piece * keys + key], edge_sum);
      run_sum += std::exchange(run_at[piece * keys + key], run_sum);
    }
  }
  made.edge_bounds.push_back(edge_sum), made.run_bounds.push_back(run_sum);
  made.destinations.reset(new int32_t[run_sum]), made.counts.reset(new int32_t[run_sum]);
  int32_t *destinations = made.destinations.get(), *counts = made.counts.get();
#pragma omp parallel for schedule(dynamic, 1) if (edges > few)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    std::vector<int64_t> at(edge_at.begin() + piece * keys, edge_at.begin() + (piece + 1) * keys), last(keys, -1);
    std::vector<int64_t> run(run_at.begin() + piece * keys, run_at.begin() + (piece + 1) * keys);
    visit(cuts[piece], cuts[piece + 1], [&](int64_t destination, int64_t key, int64_t e) {
      store(at[key]++, key, e);
      if (last[key] != destination) {
        last[key] = destination;
        destinations[run[key]] = static_cast<int32_t>(destination);
        counts[run[key]++] = 0;
      }
      ++counts[run[key] - 1];
    });
  }
  return made;
}

// ---- by owner

// Returns whether a bit for each row takes more memory than the values, by far: where ranks have more rows than edges.
bool is_sparse(size_t values, int64_t rows) { return rows / 32 > static_cast<int64_t>(values); }

// Appends the distinct values, ascending, of values in 0 .. rows - 1.
void append_distinct(const int32_t* values, int64_t count, int64_t rows, std::vector<int32_t>& to) {
  const auto first = static_cast<int64_t>(to.size());
  if (count == 0) return;
  if (is_sparse(count, rows)) {
    to.insert(to.end(), values, values + count);
    std::sort(to.begin() + first, to.end());
    to.erase(std::unique(to.begin() + first, to.end()), to.end());
  } else {
    Marks marks(rows);
    marks.add(values, count);
    to.resize(first + marks.count());
    marks.list(to.data() + first);
  }
}

template <class Id>
nb::tuple split_edges(int64_t rank, Flat<const int64_t> bounds, Flat<const int64_t> indptr, Flat<const Id> indices,
                      int64_t pieces, bool keep_edges, bool finds_halo) {
  require(bounds.size() >= 2 && bounds.data()[0] == 0 && std::is_sorted(bounds.data(), bounds.data() + bounds.size()),
          "split: bounds go from 0 and never decrease");
  check_csr(indptr, indices.size());
  const Owners owners(bounds);
  const int64_t ranks = owners.parts(), edges = static_cast<int64_t>(indices.size());
  require(rank >= 0 && rank < ranks && pieces >= 1, "split: a rank of these bounds, and at least one piece");
  const int64_t *offset = indptr.data(), *last_offset = offset + indptr.size();
  const Id* source = indices.data();
  bool inside = true;
  for (int64_t e = 0; e < edges; ++e) inside &= owners.has(static_cast<int64_t>(source[e]));
  require(inside, "split: a source is no row of any rank");
  std::unique_ptr<int32_t[]> row(new int32_t[edges]);
  std::unique_ptr<int64_t[]> place(keep_edges ? new int64_t[edges] : nullptr);
  std::vector<int32_t> used, halo;
  std::vector<int64_t> run_bounds, halo_bounds{0};
  Runs made;
  {
    nb::gil_scoped_release release;
    std::vector<int64_t> cuts{0}, order;
    for (int64_t piece = 1; piece < pieces; ++piece)  // of about as many edges each
      cuts.push_back(std::lower_bound(offset, last_offset - 1, edges * piece / pieces) - offset);
    cuts.push_back(last_offset - 1 - offset);
    // This rank's own rows first, then the rows of ranks r - 1, r - 2, ... (modulo P): ranks begin with different peers.
    for (int64_t step = 0; step < ranks; ++step) order.push_back((rank - step + ranks) % ranks);
    const auto visit = [&](int64_t first, int64_t last, auto&& edge) {
      for (int64_t destination = first; destination < last; ++destination)
        for (int64_t e = offset[destination]; e < offset[destination + 1]; ++e)
          edge(destination, owners.of(static_cast<int64_t>(source[e])), e);
    };
    made = sort_edges(cuts, order, indices.size(), visit, [&](int64_t at, int64_t owner, int64_t e) {
      row[at] = static_cast<int32_t>(static_cast<int64_t>(source[e]) - owners.begin(owner));
      if (place) place[at] = e;
    });
    for (int64_t step = 0; step < ranks; ++step)
      if (step == 0 || made.run_bounds[step] < made.run_bounds[step + 1]) {
        used.push_back(static_cast<int32_t>(order[step]));
        run_bounds.push_back(made.run_bounds[step]);
      }
    run_bounds.push_back(made.run_bounds[ranks]);
    for (int64_t owner = 0; owner < ranks; ++owner) {
      const int64_t step = (rank - owner + ranks) % ranks, first = made.edge_bounds[step];
      if (finds_halo && owner != rank)
        append_distinct(row.get() + first, made.edge_bounds[step + 1] - first,
                        owners.begin(owner + 1) - owners.begin(owner), halo);
      halo_bounds.push_back(static_cast<int64_t>(halo.size()));
    }
  }
  const int64_t runs = run_bounds.back();
  return nb::make_tuple(array_of(std::move(used)), array_of(std::move(row), edges),
                        array_of(std::move(made.destinations), runs), array_of(std::move(made.counts), runs),
                        array_of(std::move(run_bounds)), keep_edges ? nb::cast(array_of(std::move(place), edges)) : nb::none(),
                        array_of(std::move(halo)), array_of(std::move(halo_bounds)));
}

// ---- by round

void check_rows(const Flat<const int32_t>& values, int64_t rows) {
  require(rows >= 0 && rows < int64_t{1} << 31, "rows: a rank has less than 2**31 rows");
  bool outside = false;
  for (size_t at = 0; at < values.size(); ++at) outside |= values.data()[at] < 0 || values.data()[at] >= rows;
  require(!outside, "rows: a value is no row");
}

void halo_positions(Flat<const int32_t> values, Flat<const int32_t> halo, int64_t rows, int64_t first,
                    Flat<int32_t> positions, Flat<int64_t> uses) {
  check_rows(values, rows);
  check_rows(halo, rows);
  require(positions.size() == values.size(), "halo: one position for each value");
  require(first >= 0 && first + halo.size() <= uses.size(), "halo: one count for each of its rows");
  bool missing = false;
  {
    nb::gil_scoped_release release;
    const bool sparse = is_sparse(values.size(), rows);
    const int32_t *begin = halo.data(), *end = begin + halo.size();
    Marks marks(sparse ? 0 : rows);
    if (sparse) {
      missing = std::adjacent_find(begin, end, std::greater_equal<int32_t>()) != end;
    } else {
      marks.add(begin, static_cast<int64_t>(halo.size()));
      missing = marks.count() != static_cast<int64_t>(halo.size());
    }
    const int64_t count = missing ? 0 : static_cast<int64_t>(values.size());
#pragma omp parallel for schedule(static) reduction(|| : missing) if (count > static_cast<int64_t>(few))
    for (int64_t at = 0; at < count; ++at) {
      const int32_t row = values.data()[at];
      const int64_t place = sparse ? std::lower_bound(begin, end, row) - begin : marks.rank(row);
      if (place >= static_cast<int64_t>(halo.size()) || halo.data()[place] != values.data()[at]) {
        missing = true;
        continue;
      }
      positions.data()[at] = static_cast<int32_t>(first + place);
#pragma omp atomic
      ++uses.data()[first + place];
    }
  }
  require(!missing, "halo: a value is not in the halo, or that is not ascending");
}

// The runs of one owner: destinations, ascending, and their numbers of edges. edge: the first edge of the owner.
struct OwnerRuns {
  const int32_t *destinations, *counts;
  int64_t count, edge;
};

// Calls visit(destination, first edge, count) for the runs of destinations low .. high - 1, by destination, then owner.
template <class Visit>
void by_destination(const std::vector<OwnerRuns>& owners, int64_t low, int64_t high, Visit visit) {
  struct Cursor {
    const int32_t *at, *end, *count;
    int64_t edge;
  };
  std::vector<Cursor> cursors;
  for (const OwnerRuns& runs : owners) {
    const int32_t *end = runs.destinations + runs.count, *begin = std::lower_bound(runs.destinations, end, low);
    int64_t edge = runs.edge;
    for (const int32_t* count = runs.counts; count < runs.counts + (begin - runs.destinations); ++count) edge += *count;
    if (begin < end) cursors.push_back({begin, end, runs.counts + (begin - runs.destinations), edge});
  }
  for (int64_t destination = low; destination < high; ++destination)
    for (Cursor& cursor : cursors)
      if (cursor.at < cursor.end && *cursor.at == destination) {
        visit(destination, cursor.edge, *cursor.count);
        cursor.edge += *cursor.count++;
        ++cursor.at;
      }
}

std::vector<OwnerRuns> owner_runs(const Flat<const int32_t>& destinations, const Flat<const int32_t>& counts,
                                  const Flat<const int64_t>& lengths, size_t edges) {
  require(counts.size() == destinations.size(), "rounds: a run has a destination and a count");
  std::vector<OwnerRuns> found;
  int64_t at = 0, edge = 0;
  for (size_t p = 0; p < lengths.size(); ++p) {
    const int64_t length = lengths.data()[p];
    require(length >= 0 && at + length <= static_cast<int64_t>(counts.size()), "rounds: lengths are of all runs");
    found.push_back({destinations.data() + at, counts.data() + at, length, edge});
    for (int64_t run = at; run < at + length; ++run) {
      require(counts.data()[run] >= 0, "rounds: a count is 0 or more");
      edge += counts.data()[run];
    }
    at += length;
  }
  require(at == static_cast<int64_t>(counts.size()) && edge == static_cast<int64_t>(edges),
          "rounds: the runs have all edges");
  return found;
}

nb::tuple sort_by_round(Flat<const int32_t> destinations, Flat<const int32_t> counts, Flat<const int64_t> lengths,
                        Flat<const int32_t> positions, Flat<const int8_t> round_of, Flat<const int32_t> slot,
                        int64_t rows, int64_t pieces, int64_t rounds, Flat<int32_t> out, Flat<int64_t> order) {
  require(rounds >= 1 && rounds <= 127, "rounds: expected 1 to 127");
  require(rows >= 0 && pieces >= 1, "rounds: rows, and at least one piece");
  bool outside = false;
  for (size_t row = 0; row < round_of.size(); ++row)
    outside |= round_of.data()[row] < 0 || round_of.data()[row] >= rounds;
  for (size_t e = 0; e < positions.size(); ++e)
    outside |= positions.data()[e] < 0 || static_cast<size_t>(positions.data()[e]) >= round_of.size();
  require(!outside, "rounds: a row of the halo has no round, or an edge no row");
  require(slot.size() == round_of.size() && out.size() == positions.size() &&
              (order.size() == 0 || order.size() == positions.size()),
          "rounds: the results have room for all edges");
  const auto owners = owner_runs(destinations, counts, lengths, positions.size());
  const bool ordered = order.size() != 0;
  Runs made;
  {
    nb::gil_scoped_release release;
    std::vector<int64_t> cuts, keys;
    for (int64_t piece = 0; piece <= pieces; ++piece) cuts.push_back(rows * piece / pieces);
    for (int64_t round = 0; round < rounds; ++round) keys.push_back(round);
    const auto visit = [&](int64_t low, int64_t high, auto&& edge) {
      by_destination(owners, low, high, [&](int64_t destination, int64_t first, int64_t count) {
        for (int64_t e = first; e < first + count; ++e) edge(destination, round_of.data()[positions.data()[e]], e);
      });
    };
    made = sort_edges(cuts, keys, positions.size(), visit, [&](int64_t at, int64_t, int64_t e) {
      out.data()[at] = slot.data()[positions.data()[e]];
      if (ordered) order.data()[at] = e;
    });
  }
  const int64_t runs = made.run_bounds.back();
  return nb::make_tuple(array_of(std::move(made.destinations), runs), array_of(std::move(made.counts), runs),
                        array_of(std::move(made.run_bounds)));
}

// ---- self loops

template <class Id>
nb::tuple add_self_loops(int64_t first, Flat<const int64_t> indptr, Flat<const Id> indices, bool replace) {
  check_csr(indptr, indices.size());
  const int64_t rows = static_cast<int64_t>(indptr.size()) - 1, *offset = indptr.data();
  const Id* source = indices.data();
  std::unique_ptr<int64_t[]> new_offset(new int64_t[rows + 1]);
  std::unique_ptr<Id[]> out;
  {
    nb::gil_scoped_release release;
    new_offset[0] = 0;
#pragma omp parallel for schedule(static, 1024) if (indices.size() > few)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t edges = offset[row + 1] - offset[row];
      const int64_t loops = std::count(source + offset[row], source + offset[row + 1], static_cast<Id>(first + row));
      new_offset[row + 1] = edges - loops + 1;
    }
    for (int64_t row = 0; row < rows; ++row) new_offset[row + 1] += new_offset[row];
    out.reset(new Id[new_offset[rows]]);
#pragma omp parallel for schedule(static, 1024) if (indices.size() > few)
    for (int64_t row = 0; row < rows; ++row) {
      const Id self = static_cast<Id>(first + row);
      int64_t at = new_offset[row], loops = offset[row + 1] - offset[row] + 1 - (new_offset[row + 1] - at);
      for (int64_t e = offset[row]; e < offset[row + 1]; ++e)
        if (source[e] != self || (--loops == 0 && !replace)) out[at++] = source[e];
      if (at < new_offset[row + 1]) out[at] = self;
    }
  }
  const int64_t edges = new_offset[rows];
  return nb::make_tuple(array_of(std::move(new_offset), rows + 1), array_of(std::move(out), edges));
}

template <class Id>
void bind_ids(nb::module_& m) {
  m.def("split_edges", &split_edges<Id>, "rank"_a, "bounds"_a.noconvert(), "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "pieces"_a, "keep_edges"_a, "finds_halo"_a,
        R"(Sort a rank's edges by the owners of their sources; see plan/workload.py.

Return owners int32 [C], rows within owners int32 [E], the destinations and counts of runs int32 [R], their bounds by
owner int64 [C + 1], the place of each edge int64 [E] or None, the halo int32 [H] and its bounds by rank int64 [P + 1].)");
  m.def("add_self_loops", &add_self_loops<Id>, "first"_a, "indptr"_a.noconvert(), "indices"_a.noconvert(), "replace"_a,
        R"(Return the CSR (indptr, indices) of rows `first` and following with exactly one self loop in each row.

replace: it comes after the row's other edges; otherwise the row's last self loop stays where it is, if there is one.)");
}

}  // namespace

void bind_split(nb::module_& m) {
  bind_ids<int32_t>(m);
  bind_ids<int64_t>(m);
  m.def("halo_positions", &halo_positions, "values"_a.noconvert(), "halo"_a.noconvert(), "rows"_a, "first"_a,
        "positions"_a.noconvert(), "uses"_a.noconvert(),
        R"(Fill in the position of each value in the halo, plus `first`, and count the uses of each of its rows.

values: int32 in 0 .. rows - 1. halo: int32, distinct values, ascending.)");
  m.def("sort_by_round", &sort_by_round, "destinations"_a.noconvert(), "counts"_a.noconvert(), "lengths"_a.noconvert(),
        "positions"_a.noconvert(), "round_of"_a.noconvert(), "slot"_a.noconvert(), "rows"_a, "pieces"_a, "rounds"_a,
        "out"_a.noconvert(), "order"_a.noconvert(), R"(Sort remote edges by round, then destination; see plan/halo.py.

destinations, counts: int32, runs of edges by owner; lengths: int64, runs of each owner. positions: int32 [R], each edge's
row of the halo. round_of: int8 [H]. slot: int32 [H], each row of the halo within its round. rows: number of destinations.
out: int32 [R], filled with slots; order: int64 [R], filled with edges, or [0]. Return the destinations and counts of the
sorted runs, and their bounds by round.)");
}
