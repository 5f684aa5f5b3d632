// What tests set of the shim as a runtime.
#pragma once
#include <algorithm>
#include <map>
#include <new>

#include "runtime/runtime_cuda.h"

namespace mgg {
namespace shim {

struct Settings {
  uint64_t seed = 0;  // of the next launch; one more for each after it
  int pe = 0;         // that launches
  int resident = 4;   // blocks at once
  bool hold = false;  // launches wait for `release`
};
Settings& settings();
// Runs what was held, all at once, and holds no more.
void release();
// Forgets what is held.
void drop();

}  // namespace shim
}  // namespace mgg
