// Which kernels are compiled.
#pragma once
#include <stdexcept>
#include <string>

#include "gpu/kernels.h"

namespace mgg {

template <int L, int P>
struct Size {
  static constexpr int lanes = L, packs = P;
};

// `pick` of the size that is asked for. Four packs would take 200 registers a thread; wider rows take several passes.
template <class Pick>
auto of_shape(const Shape& shape, Pick pick) {
  if (shape.packs == 1 && shape.lanes == 4) return pick(Size<4, 1>());
  if (shape.packs == 1 && shape.lanes == 8) return pick(Size<8, 1>());
  if (shape.packs == 1 && shape.lanes == 16) return pick(Size<16, 1>());
  if (shape.packs == 1 && shape.lanes == 32) return pick(Size<32, 1>());
  if (shape.packs == 2 && shape.lanes == 32) return pick(Size<32, 2>());
  throw std::invalid_argument("no kernel of " + std::to_string(shape.lanes) + " lanes and " +
                              std::to_string(shape.packs) + " packs");
}

}  // namespace mgg
