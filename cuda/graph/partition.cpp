// One pass of linear deterministic greedy over rows: each goes where most of its neighbours are, as far as there is room.
//
// Stanton and Kliot, "Streaming Graph Partitioning for Large Distributed Graphs", KDD 2012: a part's score is the number
// of the row's neighbours in it, times its free share of the capacity. Here a row's load is its weight and not 1, so that
// parts have as many edges each. A row that has a part is taken out of it first, so further passes over the same rows
// are restreaming (Nishimura and Ugander, "Restreaming Graph Partitioning", KDD 2013).
//
// One thread; ties go to the part of less load, then to the lower number.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "bind.h"

namespace {

using mgg::Flat;
using mgg::require;

// The part of least load, kept as loads change: a tournament of pairs.
class Lightest {
 public:
  explicit Lightest(const int64_t* load, int32_t parts) : load_(load) {
    while (leaves_ < parts) leaves_ *= 2;
    winner_.assign(2 * leaves_, -1);
    for (int32_t part = 0; part < parts; ++part) winner_[leaves_ + part] = part;
    for (int32_t at = leaves_ - 1; at > 0; --at) play(at);
  }

  int32_t get() const { return winner_[1]; }

  void changed(int32_t part) {
    for (int32_t at = (leaves_ + part) / 2; at > 0; at /= 2) play(at);
  }

 private:
  void play(int32_t at) {
    const int32_t left = winner_[2 * at], right = winner_[2 * at + 1];
    winner_[at] = right < 0 || (left >= 0 && load_[left] <= load_[right]) ? left : right;
  }

  const int64_t* load_;
  int32_t leaves_ = 1;
  std::vector<int32_t> winner_;
};

class Pass {
 public:
  Pass(int64_t* load, int32_t parts, int32_t* part_of, int64_t capacity)
      : load_(load), parts_(parts), part_of_(part_of), capacity_(capacity), lightest_(load, parts), near_(parts, 0) {}

  int64_t moved = 0, kept = 0;  // rows that changed their part; edges to the part in which a row was placed

  template <class Id>
  void place(int64_t row, int64_t weight, const Id* neighbour, const Id* last) {
    const int32_t before = part(row);
    if (before >= 0) add(before, -weight);
    for (; neighbour != last; ++neighbour) {
      const int32_t part = this->part(*neighbour);
      if (part < 0 || static_cast<int64_t>(*neighbour) == row) continue;
      if (near_[part]++ == 0) touched_.push_back(part);
    }
    int32_t best = -1;
    double best_score = 0;
    for (const int32_t part : touched_) {
      if (load_[part] + weight > capacity_) continue;
      const double found = score(part);
      if (found > best_score || (best >= 0 && found == best_score && lighter(part, best)))
        best = part, best_score = found;
    }
    if (best < 0) best = lightest_.get();
    kept += near_[best];
    moved += best != before;
    for (const int32_t part : touched_) near_[part] = 0;
    touched_.clear();
    part_of_[row] = best;
    add(best, weight);
  }

 private:
  // The part of a row, checked when it is read: a slice has few of all rows.
  int32_t part(int64_t row) const {
    const int32_t found = part_of_[row];
    require(found >= -1 && found < parts_, "partition: parts are numbered from 0, and -1 is none");
    return found;
  }

  double score(int32_t part) const {
    return static_cast<double>(near_[part]) * (1 - static_cast<double>(load_[part]) / static_cast<double>(capacity_));
  }

  bool lighter(int32_t a, int32_t b) const { return load_[a] != load_[b] ? load_[a] < load_[b] : a < b; }

  void add(int32_t part, int64_t weight) {
    load_[part] += weight;
    lightest_.changed(part);
  }

  int64_t* load_;
  int32_t parts_;
  int32_t* part_of_;
  int64_t capacity_;
  Lightest lightest_;
  std::vector<int64_t> near_;      // neighbours of the present row in each part; 0 but for those in touched_
  std::vector<int32_t> touched_;
};

template <class Id>
nb::tuple stream_rows(int64_t first, Flat<const int64_t> indptr, Flat<const Id> indices, Flat<const int64_t> weight,
                      int64_t capacity, Flat<int64_t> load, Flat<int32_t> part_of) {
  const auto nodes = static_cast<int64_t>(part_of.size());
  const auto rows = static_cast<int64_t>(weight.size());
  const int64_t parts = static_cast<int64_t>(load.size());
  require(capacity >= 1, "partition: a capacity of 1 at least");
  require(parts >= 1 && parts <= std::numeric_limits<int32_t>::max() / 4, "partition: a load for each part");
  require(first >= 0 && rows <= nodes && first <= nodes - rows, "partition: a part for each row");
  require(static_cast<int64_t>(indptr.size()) == rows + 1, "partition: a weight for each row");
  const int64_t* offset = indptr.data();
  require(offset[0] == 0 && offset[rows] == static_cast<int64_t>(indices.size()) &&
              std::is_sorted(offset, offset + rows + 1),
          "partition: indptr goes from 0 to the number of edges and never decreases");
  const Id* ids = indices.data();
  require(std::all_of(ids, ids + indices.size(), [&](Id id) { return id >= 0 && static_cast<int64_t>(id) < nodes; }),
          "partition: an edge names no row");
  Pass pass(load.data(), static_cast<int32_t>(parts), part_of.data(), capacity);
  {
    nb::gil_scoped_release release;
    for (int64_t row = 0; row < rows; ++row)
      pass.place(first + row, weight.data()[row], ids + offset[row], ids + offset[row + 1]);
  }
  return nb::make_tuple(pass.moved, pass.kept);
}

template <class Id>
void bind_stream(nb::module_& m, const char* text) {
  m.def("stream_rows", &stream_rows<Id>, "first"_a, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "weight"_a.noconvert(), "capacity"_a, "load"_a.noconvert(), "part_of"_a.noconvert(), text);
}

}  // namespace

void bind_partition(nb::module_& m) {
  bind_stream<int32_t>(m, "");
  bind_stream<int64_t>(m, R"(Place rows `first` and following in parts, one after another; returns (moved, kept).

indptr int64 [n + 1] from 0, indices [E]: their neighbours; weight int64 [n]. capacity: a part gets a row only up to this
load, but for the one of least load. load int64 [P] and part_of int32 [N], -1 for none, are what all rows before have
left, and are updated. moved: rows that changed their part; kept: edges to the part in which a row was placed. Raises
ValueError for arrays that are no CSR, and at a row whose part, or a neighbour's, is none of P: rows before it are placed
then.)");
}
