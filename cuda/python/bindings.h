// NumPy's arrays as the Python modules take them.
#pragma once
#include <nanobind/ndarray.h>

#include <cstring>
#include <stdexcept>
#include <vector>

namespace mgg {

template <class T>
using Flat = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// The structs of mgg/layout.h that an array of bytes holds. Throws std::invalid_argument for a part of one.
template <class Struct>
std::vector<Struct> structs(const Flat<const uint8_t>& bytes, const char* what) {
  if (bytes.size() % sizeof(Struct)) throw std::invalid_argument(what);
  std::vector<Struct> items(bytes.size() / sizeof(Struct));
  if (!items.empty()) std::memcpy(static_cast<void*>(items.data()), bytes.data(), bytes.size());
  return items;
}

}  // namespace mgg
