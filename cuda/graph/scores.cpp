// The sum of values over out-edges by which rows are scored (mgg_hpc/plan/scores.py).
#include <algorithm>
#include <cstdint>

#include "bind.h"

namespace {

using mgg::Flat;
using mgg::require;

constexpr int64_t AHEAD = 32;  // edges whose sums are on their way from memory

// out[u] += values[v] over the edges u -> v into consecutive rows v, in the order of the CSR. One thread.
template <class Id>
void pull(Flat<const int64_t> indptr, Flat<const Id> sources, Flat<const double> values, int64_t columns,
          Flat<double> out) {
  const int64_t rows = static_cast<int64_t>(indptr.size()) - 1;
  require(rows >= 0 && columns > 0 && static_cast<int64_t>(values.size()) == rows * columns &&
              indptr.data()[0] == 0 && indptr.data()[rows] == static_cast<int64_t>(sources.size()),
          "pull: rows have offsets from 0 on, and a value for each column");
  const int64_t *offsets = indptr.data(), edges = static_cast<int64_t>(sources.size());
  const uint64_t nodes = out.size() / columns;
  const Id* from = sources.data();
  const double* row = values.data();
  double* sums = out.data();
  nb::gil_scoped_release release;
  bool inside = true;
  for (int64_t e = 0; e < edges; ++e) inside &= static_cast<uint64_t>(from[e]) < nodes;
  require(inside, "pull: a source is no row");
  require(std::is_sorted(offsets, offsets + rows + 1), "pull: offsets fall");
  for (int64_t v = 0; v < rows; ++v, row += columns)
    for (int64_t e = offsets[v]; e < offsets[v + 1]; ++e) {
      __builtin_prefetch(sums + from[std::min(e + AHEAD, edges - 1)] * columns, 1);
      double* sum = sums + from[e] * columns;
      for (int64_t column = 0; column < columns; ++column) sum[column] += row[column];
    }
}

}  // namespace

void bind_scores(nb::module_& m) {
  const char* help = R"(Add the values of rows to all of their sources.

indptr int64 [n + 1] from 0 on, sources int32 or int64 [e], values float64 [n * columns], out float64 [N * columns].)";
  m.def("pull", &pull<int32_t>, "indptr"_a.noconvert(), "sources"_a.noconvert(), "values"_a.noconvert(),
        "columns"_a, "out"_a.noconvert(), help);
  m.def("pull", &pull<int64_t>, "indptr"_a.noconvert(), "sources"_a.noconvert(), "values"_a.noconvert(),
        "columns"_a, "out"_a.noconvert(), help);
}
