// Binds what benchmarks compare an aggregation with. The clock runs here, beside the reading alone.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "bench/gather_floor.h"
#include "mgg/layout.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::require;
using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

template <class Read>
std::pair<double, uint64_t> timed(Read read) {
  nb::gil_scoped_release release;
  const auto began = std::chrono::steady_clock::now();
  const uint64_t sum = read();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), sum};
}

std::pair<double, uint64_t> gather_floor(Flat<const int32_t> indices, Rows rows, int ahead, int threads) {
  const int64_t item = static_cast<int64_t>(rows.itemsize()), count = static_cast<int64_t>(rows.shape(0));
  const int64_t row_bytes = static_cast<int64_t>(rows.shape(1)) * item;
  const int64_t stride = count > 1 ? rows.stride(0) * item : row_bytes;
  const int64_t edges = static_cast<int64_t>(indices.size());
  require(ahead >= 0 && threads > 0, "floor: ahead is at least 0, threads at least 1");
  require(rows.size() == 0 || rows.stride(1) == 1, "floor: columns must be contiguous");
  require(reinterpret_cast<uintptr_t>(rows.data()) % mgg::row_alignment == 0 &&
              (count <= 1 || stride % mgg::row_alignment == 0),
          "floor: rows must be padded and aligned to 16 bytes");
  require(std::all_of(indices.data(), indices.data() + edges, [&](int32_t row) { return row >= 0 && row < count; }),
          "floor: an index lies outside the rows");
  const mgg::Gather call{indices.data(), edges, static_cast<const char*>(rows.data()), stride, row_bytes, ahead,
                         threads};
  return timed([&] { return mgg::gather(call); });
}

}  // namespace

void bind_floor(nb::module_& m) {
  m.def("gather_floor", &gather_floor, "indices"_a.noconvert(), "rows"_a.noconvert(), "ahead"_a, "threads"_a,
        R"(Return the seconds to load every cache line of rows[indices[0]], rows[indices[1]] ..., and a sum of them.

indices int32 [E]. rows: any type [N, dim], padded to 16 bytes; prefetched `ahead` edges before they are read. The sum,
modulo 2**64, is of the first two 8-byte words of each line that a row touches (of a row that begins within a line, the
row's first two). Raises ValueError for an index outside the rows.)");
}
