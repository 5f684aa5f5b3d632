// Binds gathers of rows by number.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <vector>

#include "cpu/sampling/copy_rows.h"
#include "python/module_host.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::require;

using Rows = nb::ndarray<nb::ndim<2>, nb::device::cpu>;  // of any type
using ReadRows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Slots = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tier = std::tuple<int64_t, Flat<const uint64_t>, Flat<const int64_t>, int64_t, uint64_t>;
using File = std::tuple<int64_t, int, int64_t>;

void copy_rows(const mgg::RowCopies& copies) { MGG_DISPATCH(copy_rows, copies); }

class Table {
 public:
  Table(int64_t rows, int64_t bytes, std::optional<Slots> slots, const std::vector<Tier>& tiers, const File& file,
        int rank, uint64_t transport)
      : slots_(slots), given_(tiers) {
    require(rows >= 0 && bytes >= 0, "table: rows of a size");
    const bool narrow = slots && slots->dtype() == nb::dtype<int32_t>();
    require(!slots || narrow || slots->dtype() == nb::dtype<int64_t>(), "slots: int32 or int64");
    require(!slots || static_cast<int64_t>(slots->size()) == rows, "slots: one for each row");
    int64_t first = 0;
    for (const auto& [held, addresses, pes, row_bytes, mine] : given_) {
      require(addresses.size() > 0 && addresses.size() == pes.size(), "tiers: an address for each rank");
      require(held >= 0 && held <= INT64_MAX / static_cast<int64_t>(pes.size()), "tiers: numbers of slots");
      require(row_bytes >= bytes || held <= 1, "tiers: rows overlap");
      tiers_.push_back({first, first + held, static_cast<int64_t>(pes.size()), addresses.data(), pes.data(), row_bytes,
                        reinterpret_cast<const char*>(mine)});
      first += held;
    }
    const auto& [filed, descriptor, offset] = file;
    const int64_t end = first + filed;
    require(filed >= 0 && (slots || rows <= end), "rows: more than slots");
    table_ = {rows, bytes, narrow ? static_cast<const int32_t*>(slots->data()) : nullptr,
              slots && !narrow ? static_cast<const int64_t*>(slots->data()) : nullptr, tiers_.data(),
              static_cast<int64_t>(tiers_.size()), {first, end, descriptor, offset}, rank,
              mgg::transport_at(transport)};
  }

  std::tuple<int64_t, int64_t, int64_t, int64_t, int> gather(Flat<const int64_t> ids, Rows out, Flat<int64_t> read,
                                                             int threads) const {
    const int64_t count = static_cast<int64_t>(ids.size());
    const int64_t out_bytes = row_bytes(out, count);
    require(threads > 0 && read.size() == tiers_.size() + 1, "read: one for each tier and the file");
    const mgg::RowGather call{table_, ids.data(), count, static_cast<char*>(out.data()), out_bytes, threads};
    std::vector<int64_t> counts(read.size());
    mgg::RowsRead found;
    {
      nb::gil_scoped_release release;
      found = mgg::gather_rows(call, copy_rows, counts.data());
    }
    for (size_t t = 0; t < counts.size(); ++t) read.data()[t] += counts[t];
    return {found.own, found.got, counts.back(), found.fault.slot, found.fault.error};
  }

  std::tuple<int64_t, int> update(Flat<const int64_t> ids, ReadRows rows) const {
    const int64_t count = static_cast<int64_t>(ids.size()), apart = row_bytes(rows, count);
    nb::gil_scoped_release release;
    const auto fault = mgg::update_rows(table_, ids.data(), count, static_cast<const char*>(rows.data()), apart);
    return {fault.slot, fault.error};
  }

 private:
  // Bytes from one of `count` rows of memory to the next.
  template <class Array>
  int64_t row_bytes(const Array& rows, int64_t count) const {
    const int64_t item = static_cast<int64_t>(rows.itemsize());
    require(static_cast<int64_t>(rows.shape(0)) == count && static_cast<int64_t>(rows.shape(1)) * item == table_.bytes,
            "rows: one for each number");
    require(rows.size() == 0 || rows.shape(1) == 1 || rows.stride(1) == 1, "rows: columns must be contiguous");
    require(count <= 1 || rows.stride(0) >= static_cast<int64_t>(rows.shape(1)), "rows overlap");
    return count > 1 ? rows.stride(0) * item : table_.bytes;
  }

  std::optional<Slots> slots_;  // these keep the arrays alive
  std::vector<Tier> given_;
  std::vector<mgg::Tier> tiers_;
  mgg::Table table_{};
};

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
        "threads"_a, R"(Copy rows of a CSR matrix, one after the other.

indptr int64 [N + 1], indices int32 [nnz], values [nnz]: the matrix. rows: int64 [n]. out_indptr: result of csr_offsets.
out_indices, out_values: [out_indptr[n]]. Raises ValueError for arrays that do not fit.)");
}

}  // namespace

void bind_gather(nb::module_& m) {
  nb::class_<Table>(m, "Table", R"(Rows in several kinds of memory, read by number; see TieredRows.

rows, bytes: number of rows, and bytes of each. slots: int32 or int64 [rows], or None. tiers: (number of slots,
addresses uint64 [R], ranks int64 [R], bytes from one row to the next, this rank's own address of symmetric rows or 0),
whose addresses are read at each call. file: (number of slots, descriptor, offset). transport: address of the transport
that gets rows at address 0, or 0. Raises ValueError for arrays that do not fit.)")
      .def(nb::init<int64_t, int64_t, std::optional<Slots>, const std::vector<Tier>&, const File&, int, uint64_t>(),
           "rows"_a, "bytes"_a, "slots"_a.noconvert().none(), "tiers"_a, "file"_a, "rank"_a, "transport"_a)
      .def("gather", &Table::gather, "ids"_a.noconvert(), "out"_a.noconvert(), "read"_a.noconvert(), "threads"_a,
           R"(Set out[i] = row ids[i]. Return (own, got, stored, slot, error).

ids: int64 [n]. out: rows of any type [n, dim]. read: int64 [tiers + 1], to which the numbers of rows of each tier and
the file are added. own: number of this rank's rows. got: of rows that were fetched by the transport. stored: of the
file's rows. slot: the first of these that could not be read, or -1; error: errno, or 0 at the file's end. Raises
IndexError for a number outside the rows, before anything is written, and ValueError for arrays that do not fit.)")
      .def("update", &Table::update, "ids"_a.noconvert(), "rows"_a.noconvert(),
           R"(Set row ids[i] = rows[i], of equal numbers the last. Return (slot, error) as gather.

ids: int64 [n]. rows: of any type [n, dim]. Memory of tiers and the file must be writable. Raises IndexError for a
number outside the rows, before anything is written, and ValueError for rows that no pointer reaches.)");
  m.def("csr_offsets", &csr_offsets, "indptr"_a.noconvert(), "stored"_a, "rows"_a.noconvert(),
        "out_indptr"_a.noconvert(), R"(Set out_indptr [n + 1] to where rows [n] of a CSR matrix begin in gather_csr.

stored: number of the matrix's values. Raises ValueError for a row that is not there.)");
  bind_csr<float>(m, "gather_csr_float32");
  bind_csr<double>(m, "gather_csr_float64");
}
