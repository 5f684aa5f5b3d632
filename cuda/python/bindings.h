// NumPy arrays as arguments and results of the native Python modules.
#pragma once
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace mgg {

template <class T>
using Flat = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <class T>
using Made = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

// The first `count` values as an array that owns them.
template <class T>
Made<T> array_of(std::unique_ptr<T[]> values, int64_t count) {
  T* data = values.release();
  nanobind::capsule owner(data, [](void* held) noexcept { delete[] static_cast<T*>(held); });
  return Made<T>(data, {static_cast<size_t>(count)}, owner);
}

// The values of a vector as an array that owns them.
template <class T>
Made<T> array_of(std::vector<T> values) {
  auto* held = new std::vector<T>(std::move(values));
  nanobind::capsule owner(held, [](void* all) noexcept { delete static_cast<std::vector<T>*>(all); });
  return Made<T>(held->data(), {held->size()}, owner);
}

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
