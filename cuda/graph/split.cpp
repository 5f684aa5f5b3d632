// Plans natively: the edges of one rank divided by the owners of their sources (mgg_hpc/plan/workload.py), the rounds of
// a halo (halo.py), and self loops (adjacency.py). Rows are cut into runs that threads take; each place in the results is
// known from counts, so that results do not depend on threads.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "bind.h"
#include "rows.h"

namespace {

using mgg::few;
using mgg::Flat;
using mgg::Marks;
using mgg::Owners;
using mgg::require;

void check_csr(const Flat<const int64_t>& indptr, size_t edges, const Flat<const int64_t>& cuts) {
  require(indptr.size() >= 1 && cuts.size() >= 1, "split: expected offsets and cuts");
  const int64_t rows = static_cast<int64_t>(indptr.size()) - 1;
  require(indptr.data()[0] == 0 && indptr.data()[rows] == static_cast<int64_t>(edges) &&
              std::is_sorted(indptr.data(), indptr.data() + rows + 1),
          "split: indptr goes from 0 to the number of edges and never decreases");
  require(cuts.data()[0] == 0 && cuts.data()[cuts.size() - 1] == rows &&
              std::is_sorted(cuts.data(), cuts.data() + cuts.size()),
          "split: cuts go from 0 to the number of rows and never decrease");
}

void check_bounds(const Flat<const int64_t>& bounds) {
  require(bounds.size() >= 2 && bounds.data()[0] == 0 && std::is_sorted(bounds.data(), bounds.data() + bounds.size()),
          "split: bounds go from 0 and never decrease");
}

template <class Id>
bool inside(const Owners& owners, const Flat<const Id>& indices) {
  bool all = true;
  for (size_t e = 0; e < indices.size(); ++e) all &= owners.has(static_cast<int64_t>(indices.data()[e]));
  return all;
}

template <class Id>
void count_owners(Flat<const int64_t> bounds, Flat<const int64_t> indptr, Flat<const Id> indices,
                  Flat<const int64_t> cuts, Flat<int64_t> edges, Flat<int64_t> runs) {
  check_bounds(bounds);
  check_csr(indptr, indices.size(), cuts);
  const Owners owners(bounds);
  const int64_t chunks = static_cast<int64_t>(cuts.size()) - 1, parts = owners.parts();
  require(edges.size() == static_cast<size_t>(chunks * parts) && runs.size() == edges.size(),
          "split: counts are by chunk and owner");
  require(inside(owners, indices), "split: a source is no row of any rank");
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(dynamic, 1) if (indices.size() > few)
  for (int64_t c = 0; c < chunks; ++c) {
    std::vector<int64_t> count(parts, 0), last(parts, -1), run(parts, 0);
    for (int64_t row = cuts.data()[c]; row < cuts.data()[c + 1]; ++row)
      for (int64_t e = indptr.data()[row]; e < indptr.data()[row + 1]; ++e) {
        const int64_t p = owners.of(static_cast<int64_t>(indices.data()[e]));
        ++count[p];
        run[p] += last[p] != row;
        last[p] = row;
      }
    std::copy(count.begin(), count.end(), edges.data() + c * parts);
    std::copy(run.begin(), run.end(), runs.data() + c * parts);
  }
}

// edge_at, run_at: where each chunk's edges and runs of each owner begin. place: of each edge in the CSR, or of length 0.
template <class Id>
void split(Flat<const int64_t> bounds, Flat<const int64_t> indptr, Flat<const Id> indices, Flat<const int64_t> cuts,
           Flat<const int64_t> edge_at, Flat<const int64_t> run_at, Flat<int32_t> out, Flat<int32_t> destinations,
           Flat<int32_t> counts, Flat<int64_t> place) {
  check_bounds(bounds);
  check_csr(indptr, indices.size(), cuts);
  const Owners owners(bounds);
  const int64_t chunks = static_cast<int64_t>(cuts.size()) - 1, parts = owners.parts();
  require(edge_at.size() == static_cast<size_t>(chunks * parts) && run_at.size() == edge_at.size(),
          "split: places are by chunk and owner");
  require(out.size() == indices.size() && counts.size() == destinations.size() &&
              (place.size() == 0 || place.size() == indices.size()),
          "split: the results have room for all edges");
  require(inside(owners, indices), "split: a source is no row of any rank");
  const bool placed = place.size() != 0;
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(dynamic, 1) if (indices.size() > few)
  for (int64_t c = 0; c < chunks; ++c) {
    std::vector<int64_t> at(edge_at.data() + c * parts, edge_at.data() + (c + 1) * parts);
    std::vector<int64_t> run(run_at.data() + c * parts, run_at.data() + (c + 1) * parts), last(parts, -1);
    for (int64_t row = cuts.data()[c]; row < cuts.data()[c + 1]; ++row)
      for (int64_t e = indptr.data()[row]; e < indptr.data()[row + 1]; ++e) {
        const int64_t source = static_cast<int64_t>(indices.data()[e]), p = owners.of(source);
        out.data()[at[p]] = static_cast<int32_t>(source - owners.begin(p));
        if (placed) place.data()[at[p]] = e;
        ++at[p];
        if (last[p] != row) {
          last[p] = row;
          destinations.data()[run[p]] = static_cast<int32_t>(row);
          counts.data()[run[p]++] = 0;
        }
        ++counts.data()[run[p] - 1];
      }
  }
}

void check_rows(const Flat<const int32_t>& values, int64_t rows) {
  require(rows >= 0 && rows < int64_t{1} << 31, "rows: a rank has less than 2**31 rows");
  bool outside = false;
  for (size_t at = 0; at < values.size(); ++at) outside |= values.data()[at] < 0 || values.data()[at] >= rows;
  require(!outside, "rows: a value is no row");
}

// Whether a bit for each row takes more memory than the values do, by far where ranks have more rows than edges.
bool is_sparse(size_t values, int64_t rows) { return rows / 32 > static_cast<int64_t>(values); }

nb::object distinct_rows(Flat<const int32_t> values, int64_t rows) {
  check_rows(values, rows);
  auto* found = new std::vector<int32_t>;
  nb::capsule owner(found, [](void* all) noexcept { delete static_cast<std::vector<int32_t>*>(all); });
  {
    nb::gil_scoped_release release;
    if (is_sparse(values.size(), rows)) {
      found->assign(values.data(), values.data() + values.size());
      std::sort(found->begin(), found->end());
      found->erase(std::unique(found->begin(), found->end()), found->end());
    } else {
      Marks marks(values.size() ? rows : 0);
      marks.add(values.data(), static_cast<int64_t>(values.size()));
      found->resize(marks.count());
      marks.list(found->data());
    }
  }
  return nb::cast(nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(found->data(), {found->size()}, owner));
}

// The place of each value among distinct ascending rows, from `first` on; adds up how often each occurs.
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

// Remote edges by owner, then destination: the runs of one owner, and where its edges begin.
struct Runs {
  const int32_t *destinations, *counts;
  int64_t count, edge;
};

// Visits the edges of destinations low .. high - 1 by destination, then owner: visit(destination, first edge, count).
template <class Visit>
void by_destination(const std::vector<Runs>& owners, int64_t low, int64_t high, Visit visit) {
  struct Cursor {
    const int32_t *at, *end, *count;
    int64_t edge;
  };
  std::vector<Cursor> cursors;
  for (const Runs& runs : owners) {
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

std::vector<Runs> runs_of(const Flat<const int32_t>& destinations, const Flat<const int32_t>& counts,
                          const Flat<const int64_t>& lengths, size_t edges) {
  require(counts.size() == destinations.size(), "rounds: a run has a destination and a count");
  std::vector<Runs> found;
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

void check_rounds(const Flat<const int32_t>& positions, const Flat<const int8_t>& round_of, int64_t rounds) {
  require(rounds >= 1 && rounds <= 127, "rounds: expected 1 to 127");
  bool outside = false;
  for (size_t row = 0; row < round_of.size(); ++row)
    outside |= round_of.data()[row] < 0 || round_of.data()[row] >= rounds;
  for (size_t e = 0; e < positions.size(); ++e)
    outside |= positions.data()[e] < 0 || static_cast<size_t>(positions.data()[e]) >= round_of.size();
  require(!outside, "rounds: a row of the halo has no round, or an edge no row");
}

void count_rounds(Flat<const int32_t> destinations, Flat<const int32_t> counts, Flat<const int64_t> lengths,
                  Flat<const int32_t> positions, Flat<const int8_t> round_of, Flat<const int64_t> cuts, int64_t rounds,
                  Flat<int64_t> edges, Flat<int64_t> runs) {
  check_rounds(positions, round_of, rounds);
  const auto owners = runs_of(destinations, counts, lengths, positions.size());
  const int64_t chunks = static_cast<int64_t>(cuts.size()) - 1;
  require(chunks >= 0 && edges.size() == static_cast<size_t>(chunks * rounds) && runs.size() == edges.size(),
          "rounds: counts are by chunk and round");
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(dynamic, 1) if (positions.size() > few)
  for (int64_t c = 0; c < chunks; ++c) {
    std::vector<int64_t> edge(rounds, 0), run(rounds, 0), last(rounds, -1);
    by_destination(owners, cuts.data()[c], cuts.data()[c + 1], [&](int64_t destination, int64_t first, int64_t count) {
      for (int64_t e = first; e < first + count; ++e) {
        const int8_t r = round_of.data()[positions.data()[e]];
        ++edge[r];
        run[r] += last[r] != destination;
        last[r] = destination;
      }
    });
    std::copy(edge.begin(), edge.end(), edges.data() + c * rounds);
    std::copy(run.begin(), run.end(), runs.data() + c * rounds);
  }
}

// slot: of each row of the halo within its round. order: the edge that each place has, or of length 0.
void place_rounds(Flat<const int32_t> destinations, Flat<const int32_t> counts, Flat<const int64_t> lengths,
                  Flat<const int32_t> positions, Flat<const int8_t> round_of, Flat<const int32_t> slot,
                  Flat<const int64_t> cuts, int64_t rounds, Flat<const int64_t> edge_at, Flat<const int64_t> run_at,
                  Flat<int32_t> out, Flat<int32_t> out_destinations, Flat<int32_t> out_counts, Flat<int64_t> order) {
  check_rounds(positions, round_of, rounds);
  const auto owners = runs_of(destinations, counts, lengths, positions.size());
  const int64_t chunks = static_cast<int64_t>(cuts.size()) - 1;
  require(chunks >= 0 && edge_at.size() == static_cast<size_t>(chunks * rounds) && run_at.size() == edge_at.size(),
          "rounds: places are by chunk and round");
  require(slot.size() == round_of.size() && out.size() == positions.size() &&
              out_counts.size() == out_destinations.size() && (order.size() == 0 || order.size() == positions.size()),
          "rounds: the results have room for all edges");
  const bool ordered = order.size() != 0;
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(dynamic, 1) if (positions.size() > few)
  for (int64_t c = 0; c < chunks; ++c) {
    std::vector<int64_t> at(edge_at.data() + c * rounds, edge_at.data() + (c + 1) * rounds);
    std::vector<int64_t> run(run_at.data() + c * rounds, run_at.data() + (c + 1) * rounds), last(rounds, -1);
    by_destination(owners, cuts.data()[c], cuts.data()[c + 1], [&](int64_t destination, int64_t first, int64_t count) {
      for (int64_t e = first; e < first + count; ++e) {
        const int32_t row = positions.data()[e];
        const int8_t r = round_of.data()[row];
        out.data()[at[r]] = slot.data()[row];
        if (ordered) order.data()[at[r]] = e;
        ++at[r];
        if (last[r] != destination) {
          last[r] = destination;
          out_destinations.data()[run[r]] = static_cast<int32_t>(destination);
          out_counts.data()[run[r]++] = 0;
        }
        ++out_counts.data()[run[r] - 1];
      }
    });
  }
}

// The in-degree of each row once it has a self loop: the missing one is added, or (replace) all become one.
template <class Id>
void loop_degrees(int64_t first, Flat<const int64_t> indptr, Flat<const Id> indices, bool replace, Flat<int64_t> degree) {
  const int64_t rows = static_cast<int64_t>(degree.size());
  require(indptr.size() == degree.size() + 1 && indptr.data()[0] == 0 &&
              indptr.data()[rows] == static_cast<int64_t>(indices.size()) &&
              std::is_sorted(indptr.data(), indptr.data() + rows + 1),
          "self loops: indptr goes from 0 to the number of edges and never decreases");
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(static, 1024) if (indices.size() > few)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
    const int64_t loops = std::count(indices.data() + begin, indices.data() + end, static_cast<Id>(first + row));
    degree.data()[row] = replace ? end - begin - loops + 1 : end - begin + (loops == 0);
  }
}

template <class Id>
void add_loops(int64_t first, Flat<const int64_t> indptr, Flat<const Id> indices, bool replace,
               Flat<const int64_t> new_indptr, Flat<Id> out) {
  const int64_t rows = static_cast<int64_t>(indptr.size()) - 1;
  require(rows >= 0 && new_indptr.size() == indptr.size() &&
              indptr.data()[rows] == static_cast<int64_t>(indices.size()) &&
              new_indptr.data()[rows] == static_cast<int64_t>(out.size()),
          "self loops: the result has room for all edges");
  bool fits = true;
  {
    nb::gil_scoped_release release;
#pragma omp parallel for schedule(static, 1024) reduction(&& : fits) if (indices.size() > few)
    for (int64_t row = 0; row < rows; ++row) {
      const Id self = static_cast<Id>(first + row);
      int64_t at = new_indptr.data()[row];
      const int64_t end = new_indptr.data()[row + 1];
      for (int64_t e = indptr.data()[row]; e < indptr.data()[row + 1]; ++e)
        if (!(replace && indices.data()[e] == self)) {
          if (at < end) out.data()[at] = indices.data()[e];
          ++at;
        }
      if (at < end) out.data()[at++] = self;
      fits &= at == end;
    }
  }
  require(fits, "self loops: a row has another degree");
}

template <class Id>
void bind_ids(nb::module_& m) {
  m.def("count_owners", &count_owners<Id>, "bounds"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "cuts"_a.noconvert(), "edges"_a.noconvert(), "runs"_a.noconvert(),
        "Count the edges, and the runs of one destination's edges, of each chunk of rows by owner: int64 [C * P] each.");
  m.def("split_edges", &split<Id>, "bounds"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "cuts"_a.noconvert(), "edge_at"_a.noconvert(), "run_at"_a.noconvert(), "out"_a.noconvert(),
        "destinations"_a.noconvert(), "counts"_a.noconvert(), "place"_a.noconvert(),
        "Divide edges by owner. edge_at, run_at int64 [C * P]: where each chunk's edges and runs of each owner begin.");
  m.def("loop_degrees", &loop_degrees<Id>, "first"_a, "indptr"_a.noconvert(), "indices"_a.noconvert(), "replace"_a,
        "degree"_a.noconvert(), "Fill in each row's in-degree with a self loop; replace: with one self loop exactly.");
  m.def("add_loops", &add_loops<Id>, "first"_a, "indptr"_a.noconvert(), "indices"_a.noconvert(), "replace"_a,
        "new_indptr"_a.noconvert(), "out"_a.noconvert(), "Fill in the edges with self loops behind each row's others.");
}

}  // namespace

void bind_split(nb::module_& m) {
  bind_ids<int32_t>(m);
  bind_ids<int64_t>(m);
  m.def("distinct_rows", &distinct_rows, "values"_a.noconvert(), "rows"_a,
        "Return the distinct values, ascending, of int32 values in 0 .. rows - 1.");
  m.def("halo_positions", &halo_positions, "values"_a.noconvert(), "halo"_a.noconvert(), "rows"_a, "first"_a,
        "positions"_a.noconvert(), "uses"_a.noconvert(),
        "Fill in the place of each value in the halo, plus first, and add up the uses of each of its rows.");
  m.def("count_rounds", &count_rounds, "destinations"_a.noconvert(), "counts"_a.noconvert(), "lengths"_a.noconvert(),
        "positions"_a.noconvert(), "round_of"_a.noconvert(), "cuts"_a.noconvert(), "rounds"_a, "edges"_a.noconvert(),
        "runs"_a.noconvert(), "Count the remote edges and runs of each chunk of destinations by round.");
  m.def("place_rounds", &place_rounds, "destinations"_a.noconvert(), "counts"_a.noconvert(), "lengths"_a.noconvert(),
        "positions"_a.noconvert(), "round_of"_a.noconvert(), "slot"_a.noconvert(), "cuts"_a.noconvert(), "rounds"_a,
        "edge_at"_a.noconvert(), "run_at"_a.noconvert(), "out"_a.noconvert(), "out_destinations"_a.noconvert(),
        "out_counts"_a.noconvert(), "order"_a.noconvert(), "Order remote edges by round, then destination.");
}
