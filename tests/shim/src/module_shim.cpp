// What the shim's _cuda has beside the GPU's: its seed, the PE that launches, and symmetric memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "gpu/plan.h"
#include "runtime_shim.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_shim(nb::module_& module) {
  module.def("shim_set", [](uint64_t seed, int pe, int resident) {
    mgg::shim::Settings& settings = mgg::shim::settings();
    settings = {seed, pe, resident, settings.hold};
  }, "seed"_a, "pe"_a = 0, "resident"_a = 4);
  module.def("shim_hold", [] { mgg::shim::settings().hold = true; });
  module.def("shim_release", mgg::shim::release);
  module.def("shim_drop", mgg::shim::drop);
  module.def("shim_counts", [] {
    const mgg::shim::Counts counts = mgg::shim::take_counts();
    nb::dict said;
    const auto say = [&](const char* name, int64_t count) { said[name] = count; };
    say("crossed", counts.crossed);
    say("stages", counts.stages);
    say("most_rows_a_stage", counts.most_rows_a_stage);
    say("most_under_way", counts.most_under_way);
    say("blocks", counts.blocks);
    say("threads", counts.threads);
    say("fences", counts.fences);
    say("atomics", counts.atomics);
    say("most_atomics_an_address", counts.most_atomics_an_address);
    say("loads", counts.loads);
    say("stores", counts.stores);
    for (int i = 0; i < 4; ++i) say(("requests_" + std::to_string(32 * (i + 1))).c_str(), counts.requests[i]);
    return said;
  });
  module.def("shim_task_edges", [](const mgg::DevicePlan& plan) {
    mgg::DeviceAggregation<float> call{};
    plan.device_tasks().fill(call);
    std::vector<int64_t> edges(call.count, 0);
    for (int64_t at = 0; at < call.count; ++at)
      for (int64_t i = call.tasks[at].first; i < call.tasks[at].last; ++i) edges[at] += call.segments[i].count;
    return edges;
  }, "plan"_a, "Edges of each task, in the order in which workers take them.");
  module.def("shim_launch", [](uint64_t function, const nb::bytes& arguments, int blocks, int threads) {
    const auto kernel = reinterpret_cast<void (*)(const void*)>(function);
    const std::string held(arguments.c_str(), arguments.size());
    mgg::gpu::run({blocks, threads, 0, nullptr}, [=] { kernel(held.data()); }, {threads, 2});
  }, "function"_a, "arguments"_a, "blocks"_a, "threads"_a, "Launches a kernel that takes a struct.");
  module.def("shim_symmetric", [](const std::vector<uint64_t>& bases, size_t bytes) {
    std::vector<char*> pointers;
    for (const uint64_t base : bases) pointers.push_back(reinterpret_cast<char*>(base));
    mgg::shim::add_symmetric(pointers, bytes);
  }, "bases"_a, "bytes"_a);
  module.def("shim_forget", mgg::shim::forget_symmetric);
}
