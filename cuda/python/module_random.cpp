// Binds random draws: dropout, and initial weights.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <type_traits>

#include "cpu/random.h"
#include "mgg/semantics.h"
#include "python/module_host.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using mgg::Flat, mgg::Matrix, mgg::require;

template <class Call>
void dropout_here(const Call& call) {
  MGG_DISPATCH(dropout, call);
}

// S: storage type of rows; T: type of the arrays that hold them (uint16 for halves).
template <class S, class T>
void dropout_rows(Matrix<const T> x, Matrix<T> out, Flat<const int64_t> node, double p, uint64_t seed,
                  uint32_t epoch, uint32_t stream, int threads) {
  require(x.shape(0) == out.shape(0) && x.shape(1) == out.shape(1), "dropout: x and out differ in shape");
  require(node.size() == x.shape(0), "dropout: one node id for each row");
  // A rank may own no rows, and NumPy gives empty arrays strides of 0.
  require(x.size() == 0 || (x.stride(1) == 1 && out.stride(1) == 1), "dropout: columns must be contiguous");
  nb::gil_scoped_release release;
  dropout_here(mgg::DropoutRows<S>{reinterpret_cast<const S*>(x.data()), reinterpret_cast<S*>(out.data()), x.stride(0),
                                   out.stride(0), node.data(), static_cast<int64_t>(x.shape(0)),
                                   static_cast<int64_t>(x.shape(1)), p, {seed, epoch, stream}, threads});
}

template <class T>
void dropout_csr(Flat<const int64_t> indptr, Flat<const int32_t> index, Flat<const T> value, Flat<T> out,
                 Flat<const int64_t> node, double p, uint64_t seed, uint32_t epoch, uint32_t stream, int threads) {
  require(indptr.size() == node.size() + 1, "dropout: one node id for each row");
  require(index.size() == value.size() && out.size() == value.size(), "dropout: arrays differ in length");
  require(static_cast<size_t>(indptr.data()[node.size()]) == value.size(), "dropout: indptr does not end at nnz");
  nb::gil_scoped_release release;
  dropout_here(mgg::DropoutCsr<T>{indptr.data(), index.data(), value.data(), out.data(), node.data(),
                                  static_cast<int64_t>(node.size()), p, {seed, epoch, stream}, threads});
}

// Initial weights: few, so drawn one by one. Node and column of a draw are the parameter's row and column.
template <class T>
void uniform_rows(Matrix<T> out, double low, double high, uint64_t seed, uint32_t stream) {
  const int64_t rows = out.shape(0), columns = out.shape(1);
  require(rows <= 1 || out.stride(0) == columns, "uniform: not contiguous");
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < columns; ++c) {
      const uint32_t word = mgg::draw(seed, 0, stream, i, c >> 2).word[c & 3];
      out.data()[i * columns + c] = static_cast<T>(low + (high - low) * mgg::unit_interval(word));
    }
}

template <class S, class T>
void bind_dropout(nb::module_& m, const char* name) {
  m.def(name, &dropout_rows<S, T>, "x"_a.noconvert(), "out"_a.noconvert(), "node"_a.noconvert(), "p"_a, "seed"_a,
        "epoch"_a, "stream"_a, "threads"_a, "Dropout of rows x [n, F] into out. node: int64 [n], original ids.");
}

template <class T>
void bind(nb::module_& m) {
  bind_dropout<T, T>(m, "dropout_rows");
  m.def("dropout_csr", &dropout_csr<T>, "indptr"_a.noconvert(), "index"_a.noconvert(), "value"_a.noconvert(),
        "out"_a.noconvert(), "node"_a.noconvert(), "p"_a, "seed"_a, "epoch"_a, "stream"_a, "threads"_a,
        "Dropout of a CSR's stored values into out. index: columns. node: int64 [n], original ids.");
  m.def("uniform_rows", &uniform_rows<T>, "out"_a.noconvert(), "low"_a, "high"_a, "seed"_a, "stream"_a,
        "Fill contiguous out [n, F] with draws in [low, high) of (seed, stream, row, column).");
}

}  // namespace

void bind_random(nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
  bind_dropout<mgg::Float16, uint16_t>(m, "dropout_rows_float16");
  bind_dropout<mgg::BFloat16, uint16_t>(m, "dropout_rows_bfloat16");
}
