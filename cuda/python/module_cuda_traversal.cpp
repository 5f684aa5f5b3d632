// Binds the steps of traversals on a GPU (gpu/traversal). Arrays are addresses, which the backend has checked; edges and
// lengths may lie in the host's memory.
#include <nanobind/nanobind.h>

#include <stdexcept>

#include "python/module_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace mgg::python;

void bfs(const mgg::DeviceLists& lists, uint64_t parent, uint64_t depth, int32_t level, bool bottom_up,
         const LaunchShape& launch) {
  if (lists.count == 0) return;
  mgg::traverse(mgg::DeviceBfs{lists, at<uint32_t>(parent), at<int32_t>(depth), level}, bottom_up,
                launch.configuration());
}

void frontier(int64_t sources, uint64_t offset, uint64_t depth, int32_t level, uint64_t found, const LaunchShape& launch) {
  if (sources == 0) return;
  mgg::traverse(mgg::DeviceFrontier{sources, at<int64_t>(offset), at<int32_t>(depth), level, at<uint64_t>(found)},
                launch.configuration());
}

// A round of shortest paths, or of components.
template <class Call, class T>
void round(const mgg::DeviceLists& lists, uint64_t value, uint64_t active, uint64_t next, uint64_t found,
           const LaunchShape& launch) {
  if (lists.count == 0) return;
  mgg::traverse(Call{lists, at<T>(value), at<uint8_t>(active), at<uint8_t>(next), at<int32_t>(found)},
                launch.configuration());
}

// Calls launch with a value of so many bytes.
template <class Launch>
void of_bytes(int bytes, Launch&& launch) {
  if (bytes == 4)
    launch(uint32_t());
  else if (bytes == 8)
    launch(uint64_t());
  else
    throw std::invalid_argument("values: of 4 or 8 bytes");
}

void pack(int bytes, int64_t count, uint64_t number, uint64_t place, uint64_t value, uint64_t outbox,
          const LaunchShape& launch) {
  if (count == 0) return;
  of_bytes(bytes, [&](auto of) {
    using T = decltype(of);
    mgg::traverse(mgg::DevicePack<T>{count, at<int32_t>(number), at<int64_t>(place), at<T>(value), at<T>(outbox)},
                  launch.configuration());
  });
}

void arrive(int bytes, int64_t count, uint64_t number, uint64_t place, uint64_t arrived, uint64_t value, bool all,
            uint64_t next, uint64_t found, const LaunchShape& launch) {
  if (count == 0) return;
  of_bytes(bytes, [&](auto of) {
    using T = decltype(of);
    mgg::traverse(mgg::DeviceArrive<T>{count, at<int32_t>(number), at<int64_t>(place), at<T>(arrived), at<T>(value), all,
                                       at<uint8_t>(next), at<int32_t>(found)},
                  launch.configuration());
  });
}

void pagerank(const mgg::DeviceLists& lists, uint64_t given, uint64_t inverse, uint64_t rank, uint64_t next,
              uint64_t change, uint64_t dangling, double base, const LaunchShape& launch) {
  if (lists.count == 0) return;
  mgg::traverse(mgg::DevicePageRank{lists, at<float>(given), at<float>(inverse), at<float>(rank), at<float>(next),
                                    at<float>(change), at<float>(dangling), base},
                launch.configuration());
}

}  // namespace

void bind_traversal(nb::module_& module) {
  nb::class_<mgg::DeviceLists>(module, "EdgeLists", R"(Lists of edges.

offset: int64 [count + 1]; edge: int32; length: float32, or 0; number: int32 [count], of each list, or 0 where it is its
place. edge and length are aligned to 128 bytes.)")
      .def("__init__", [](mgg::DeviceLists* self, int64_t count, uint64_t offset, uint64_t edge, uint64_t length,
                          uint64_t number) {
        if ((edge | length) % 128) throw std::invalid_argument("lists: edges and lengths are aligned to 128 bytes");
        new (self) mgg::DeviceLists{count, at<int64_t>(offset), at<int32_t>(edge), at<float>(length),
                                    at<int32_t>(number)};
      }, "count"_a, "offset"_a, "edge"_a, "length"_a, "number"_a);
  module.def("bfs_level", bfs, "lists"_a, "parent"_a, "depth"_a, "level"_a, "bottom_up"_a, "launch"_a, Released());
  module.def("frontier", frontier, "sources"_a, "offset"_a, "depth"_a, "level"_a, "found"_a, "launch"_a, Released());
  module.def("sssp_round", round<mgg::DeviceSssp, uint32_t>, "lists"_a, "value"_a, "active"_a, "next"_a, "found"_a,
             "launch"_a, Released());
  module.def("components_round", round<mgg::DeviceComponents, uint64_t>, "lists"_a, "value"_a, "active"_a, "next"_a,
             "found"_a, "launch"_a, Released());
  module.def("pagerank_round", pagerank, "lists"_a, "given"_a, "inverse"_a, "rank"_a, "next"_a, "change"_a,
             "dangling"_a, "base"_a, "launch"_a, Released());
  module.def("pack_values", pack, "bytes"_a, "count"_a, "number"_a, "place"_a, "value"_a, "outbox"_a, "launch"_a,
             Released());
  module.def("arrive_values", arrive, "bytes"_a, "count"_a, "number"_a, "place"_a, "arrived"_a, "value"_a, "all"_a,
             "next"_a, "found"_a, "launch"_a, Released());
}
