// Binds rows by number.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "cpu/sampling/gather.h"
#include "mgg/layout.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::require;
using Rows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;  // of any type

std::tuple<int64_t, int64_t, int64_t> gather_rows(Flat<const int64_t> ids, Flat<const int64_t> bounds,
                                                  Flat<const uint64_t> addresses, Flat<const int64_t> counts, int rank,
                                                  int64_t row_bytes, Rows out, uint64_t transport, int threads) {
  const int64_t count = static_cast<int64_t>(ids.size()), pes = static_cast<int64_t>(addresses.size());
  const int64_t item = static_cast<int64_t>(out.itemsize());
  require(rank >= 0 && rank < pes && bounds.size() == addresses.size() + 1 && counts.size() == addresses.size(),
          "gather: bounds, addresses and counts are not of the same ranks");
  require(row_bytes > 0 && row_bytes % mgg::row_alignment == 0 && threads > 0,
          "gather: rows must be padded to 16 bytes, and there is at least one thread");
  require(static_cast<int64_t>(out.shape(0)) == count && static_cast<int64_t>(out.shape(1)) * item <= row_bytes,
          "out: a row for each number");
  require(count <= 1 || out.stride(0) * item == row_bytes, "out: rows must be padded to 16 bytes");
  require(out.size() == 0 || out.stride(1) == 1, "out: columns must be contiguous");
  require(count == 0 || reinterpret_cast<uintptr_t>(out.data()) % mgg::row_alignment == 0,
          "out: not aligned to 16 bytes");
  for (int64_t pe = 0; pe < pes; ++pe) {
    const int64_t rows = bounds.data()[pe + 1] - bounds.data()[pe];
    require(rows >= 0 && rows <= counts.data()[pe], "gather: more rows than their PE has published");
    require(rows == 0 || addresses.data()[pe] || (transport && addresses.data()[rank]), "gather: rows out of reach");
    require(addresses.data()[pe] % mgg::row_alignment == 0, "gather: rows are not aligned to 16 bytes");
  }
  auto* moves = reinterpret_cast<mgg::Transport*>(transport);
  const mgg::RowGather call{ids.data(), count,     bounds.data(), addresses.data(), static_cast<int>(pes),
                            rank,       row_bytes, static_cast<char*>(out.data()), moves, threads};
  nb::gil_scoped_release release;
  const mgg::RowsRead read = mgg::gather_rows(call);
  return {read.local, read.remote, read.got};
}

template <class T>
void gather_csr(Flat<const int64_t> indptr, Flat<const int32_t> indices, Flat<const T> values, Flat<const int64_t> rows,
                Flat<const int64_t> out_indptr, Flat<int32_t> out_indices, Flat<T> out_values, int threads) {
  require(indptr.size() > 0 && values.size() == indices.size() && threads > 0, "gather: not a CSR matrix");
  require(out_values.size() == out_indices.size() && out_indptr.size() == rows.size() + 1,
          "gather: results of other sizes");
  const mgg::Csr<T> matrix{indptr.data(), static_cast<int64_t>(indptr.size()) - 1, static_cast<int64_t>(indices.size()),
                           indices.data(), values.data()};
  nb::gil_scoped_release release;
  mgg::gather_csr(matrix, rows.data(), static_cast<int64_t>(rows.size()), out_indptr.data(),
                  static_cast<int64_t>(out_indices.size()), out_indices.data(), out_values.data(), threads);
}

void csr_offsets(Flat<const int64_t> indptr, int64_t stored, Flat<const int64_t> rows, Flat<int64_t> out_indptr) {
  require(indptr.size() > 0 && out_indptr.size() == rows.size() + 1, "gather: results of other sizes");
  nb::gil_scoped_release release;
  mgg::csr_offsets(indptr.data(), static_cast<int64_t>(indptr.size()) - 1, stored, rows.data(),
                   static_cast<int64_t>(rows.size()), out_indptr.data());
}

template <class T>
void bind_csr(nb::module_& m, const char* name) {
  m.def(name, &gather_csr<T>, "indptr"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert(),
        "rows"_a.noconvert(), "out_indptr"_a.noconvert(), "out_indices"_a.noconvert(), "out_values"_a.noconvert(),
        "threads"_a, R"(Copy rows of a CSR matrix, one behind the other.

indptr int64 [N + 1], indices int32 [nnz], values [nnz]: the matrix. rows: int64 [n]. out_indptr: of csr_offsets.
out_indices, out_values: [out_indptr[n]]. Raises ValueError for arrays that do not fit.)");
}

}  // namespace

void bind_gather(nb::module_& m) {
  m.def("gather_rows", &gather_rows, "ids"_a.noconvert(), "bounds"_a.noconvert(), "addresses"_a.noconvert(),
        "counts"_a.noconvert(), "rank"_a, "row_bytes"_a, "out"_a.noconvert(), "transport"_a, "threads"_a,
        R"(Set out[i] = row ids[i]. Return the numbers of rows that were local, remote, and got by the transport.

ids: int64 [n]. bounds: int64 [P + 1], numbers of each PE's rows. addresses uint64 [P], counts int64 [P]: row 0 and
number of rows of each PE; rows at address 0 are got by the transport. out: rows of any type [n, dim], padded to
row_bytes. transport: its address. Raises ValueError for a number outside the bounds, and for arrays that do not fit.)");
  m.def("csr_offsets", &csr_offsets, "indptr"_a.noconvert(), "stored"_a, "rows"_a.noconvert(),
        "out_indptr"_a.noconvert(), R"(Set out_indptr [n + 1] to where rows [n] of a CSR matrix begin in gather_csr.

stored: number of the matrix's values. Raises ValueError for a row that is not there.)");
  bind_csr<float>(m, "gather_csr_float32");
  bind_csr<double>(m, "gather_csr_float64");
}
