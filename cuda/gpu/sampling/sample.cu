// Launches of the kernels of neighbour sampling.
#include "gpu/sampling/sample.cuh"

#include "gpu/kernels.h"

namespace mgg {

void sample(SampleStage stage, const DeviceHop& hop, const gpu::Launch& launch) {
  void (*const kernels[sample_stages])(DeviceHop) = {count_draws, draw_evenly, draw_by_weight, enter_rows, mark_first, number_rows};
  gpu::launch(kernels[static_cast<int>(stage)], hop, launch);
}

}  // namespace mgg
