// A rank's edges by numbers of its own, for traversals (mgg_hpc/traversal/part.py): in-edges, out-edges and lengths.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "bind.h"
#include "mgg/semantics.h"

namespace {

using mgg::Flat;
using mgg::require;

constexpr int64_t rows_each = 256;  // that a thread takes at once
constexpr int most_copies = 8;      // of the counts of all columns

// Rows in another order, with each source under its number, ascending in each row.
template <class Id>
void localize(Flat<const int64_t> indptr, Flat<const Id> indices, Flat<const int32_t> number, Flat<const int32_t> order,
              Flat<const int64_t> out_indptr, Flat<int32_t> out_indices, Flat<int64_t> place) {
  const auto rows = static_cast<int64_t>(order.size());
  require(out_indptr.size() == order.size() + 1 && indptr.size() == order.size() + 1, "localize: an offset for each row");
  require(out_indices.size() == indices.size() && (place.size() == 0 || place.size() == indices.size()),
          "localize: a number and a place for each edge");
  const int64_t* from = indptr.data();
  const Id* source = indices.data();
  const int32_t* of = number.data();
  const int32_t* taken = order.data();
  const int64_t* to = out_indptr.data();
  int32_t* out = out_indices.data();
  int64_t* at = place.size() ? place.data() : nullptr;
  nb::gil_scoped_release release;
#pragma omp parallel
  {
    std::vector<uint64_t> keys;
#pragma omp for schedule(dynamic, rows_each)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = from[taken[row]], count = from[taken[row] + 1] - first;
      int32_t* mine = out + to[row];
      if (!at) {
        for (int64_t i = 0; i < count; ++i) mine[i] = of[source[first + i]];
        if (!std::is_sorted(mine, mine + count)) std::sort(mine, mine + count);
        continue;
      }
      keys.resize(count);  // of equal sources the order stays
      for (int64_t i = 0; i < count; ++i)
        keys[i] = static_cast<uint64_t>(of[source[first + i]]) << 32 | static_cast<uint64_t>(i);
      if (!std::is_sorted(keys.begin(), keys.end())) std::sort(keys.begin(), keys.end());
      for (int64_t i = 0; i < count; ++i) {
        mine[i] = static_cast<int32_t>(keys[i] >> 32);
        at[to[row] + i] = first + static_cast<int64_t>(keys[i] & 0xFFFFFFFFu);
      }
    }
  }
}

// Each run of rows counts its edges into each column, from which every place in the result follows.
void transpose(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<int64_t> out_indptr,
               Flat<int32_t> out_indices, Flat<int64_t> place) {
  const auto rows = static_cast<int64_t>(indptr.size()) - 1, columns = static_cast<int64_t>(out_indptr.size()) - 1;
  require(rows >= 0 && columns >= 0, "transpose: offsets begin with 0");
  require(out_indices.size() == indices.size() && (place.size() == 0 || place.size() == indices.size()),
          "transpose: a row and a place for each edge");
  const int64_t* from = indptr.data();
  const int32_t* column = indices.data();
  int64_t* to = out_indptr.data();
  int32_t* out = out_indices.data();
  int64_t* at = place.size() ? place.data() : nullptr;
  nb::gil_scoped_release release;
  const int copies = std::min(omp_get_max_threads(), most_copies);
  std::vector<std::vector<int64_t>> next(copies, std::vector<int64_t>(columns));
  const auto cut = [&](int copy) {
    return std::lower_bound(from, from + rows, from[rows] * copy / copies) - from;
  };
#pragma omp parallel for schedule(static, 1) num_threads(copies)
  for (int copy = 0; copy < copies; ++copy) {
    const int64_t last = copy + 1 < copies ? from[cut(copy + 1)] : from[rows];
    for (int64_t e = from[cut(copy)]; e < last; ++e) ++next[copy][column[e]];
  }
  int64_t sum = 0;
  for (int64_t c = 0; c < columns; ++c) {
    to[c] = sum;
    for (std::vector<int64_t>& counts : next) sum += std::exchange(counts[c], sum);
  }
  to[columns] = sum;
#pragma omp parallel for schedule(static, 1) num_threads(copies)
  for (int copy = 0; copy < copies; ++copy) {
    const int64_t last = copy + 1 < copies ? cut(copy + 1) : rows;
    for (int64_t row = cut(copy); row < last; ++row)
      for (int64_t e = from[row]; e < from[row + 1]; ++e) {
        const int64_t mine = next[copy][column[e]]++;
        out[mine] = static_cast<int32_t>(row);
        if (at) at[mine] = e;
      }
  }
}

void lengths(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const int64_t> destination,
             Flat<const int64_t> source, bool directed, uint64_t seed, Flat<float> out) {
  const auto rows = static_cast<int64_t>(destination.size());
  require(indptr.size() == destination.size() + 1 && out.size() == indices.size(), "lengths: one for each edge");
  const int64_t* from = indptr.data();
  const int32_t* slot = indices.data();
  const int64_t *target = destination.data(), *id = source.data();
  float* length = out.data();
  nb::gil_scoped_release release;
#pragma omp parallel for schedule(dynamic, rows_each)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t e = from[row]; e < from[row + 1]; ++e)
      length[e] = static_cast<float>(mgg::drawn_length(seed, id[slot[e]], target[row], directed));
}

}  // namespace

void bind_local_graph(nb::module_& m) {
  const char* help = R"(Fill out_indices with the rows ``order`` of a CSR, whose ids are replaced and then sorted.

indptr int64 [n + 1], indices int32 or int64 [E]: the CSR. number: int32, of each id. order: int32 [n], rows of the CSR.
out_indptr: int64 [n + 1], where each row lies in the result. out_indices: int32 [E]. place: int64 [E], filled with where
each edge was; or [0].)";
  m.def("localize", &localize<int32_t>, "indptr"_a.noconvert(), "indices"_a.noconvert(), "number"_a.noconvert(),
        "order"_a.noconvert(), "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "place"_a.noconvert(), help);
  m.def("localize", &localize<int64_t>, "indptr"_a.noconvert(), "indices"_a.noconvert(), "number"_a.noconvert(),
        "order"_a.noconvert(), "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "place"_a.noconvert(), help);
  m.def("transpose", &transpose, "indptr"_a.noconvert(), "indices"_a.noconvert(), "out_indptr"_a.noconvert(),
        "out_indices"_a.noconvert(), "place"_a.noconvert(), R"(Fill a CSR of columns with the rows of a CSR, ascending.

indptr int64 [n + 1], indices int32 [E]. out_indptr: int64 [columns + 1]. out_indices: int32 [E]. place: int64 [E],
filled with where each edge was; or [0].)");
  m.def("lengths", &lengths, "indptr"_a.noconvert(), "indices"_a.noconvert(), "destination"_a.noconvert(),
        "source"_a.noconvert(), "directed"_a, "seed"_a, "out"_a.noconvert(), R"(Draw the lengths of edges, 8 .. 72.

indptr int64 [n + 1], indices int32 [E]. destination: int64 [n], original ids of the rows; source: int64, of what indices
number. Without ``directed`` an edge and its reverse are as long. out: float32 [E].)");
}
