// Arguments of the kernels of traversals: a graph's edges, in the GPU's memory or the host's, and values of its nodes.
//
// Min, Mailthody, Qureshi, Xiong, Ebrahimi, Hwu: "EMOGI: Efficient Memory-access for Out-of-memory Graph-traversal In
// GPUs", VLDB '20; section numbers are those of Min's dissertation, chapter 2.
#pragma once
#include <cstdint>

namespace mgg {

// Edges of sources, or into rows. Values of nodes lie by the numbers of sources, of which rows and the halo have one each.
struct DeviceLists {
  int64_t count;
  const int64_t* offset;  // [count + 1], in the GPU's memory
  const int32_t* edge;    // aligned to 128 bytes
  const float* length;    // of each edge, or null; aligned to 128 bytes
  const int32_t* number;  // of each list, or null where the i-th list is that of i
};

// One level: what the sources on it have edges to, and was not reached, is on the next one. Bottom-up, rows that were not
// reached look for a source on the level.
struct DeviceBfs {
  DeviceLists lists;  // of out-edges; bottom-up, of in-edges
  uint32_t* parent;   // the first source with an edge to each row, of those on the level before; all ones: none
  int32_t* depth;     // -1: not reached
  int32_t level;
};

// The frontier of a level: found[0] is raised by the number of its sources, found[1] by that of their out-edges.
struct DeviceFrontier {
  int64_t sources;
  const int64_t* offset;  // of lists of out-edges
  const int32_t* depth;
  int32_t level;
  uint64_t* found;
};

// One round over the sources that are active: distances, as bits of float32 of at least 0, get less.
struct DeviceSssp {
  DeviceLists lists;
  uint32_t* value;
  const uint8_t* active;
  uint8_t* next;  // active in the next round; zero before
  int32_t* found;
};

// One round: labels get less.
struct DeviceComponents {
  DeviceLists lists;
  uint64_t* value;
  const uint8_t* active;
  uint8_t* next;
  int32_t* found;
};

// One iteration over lists of in-edges. An edge carries lists.length times what its source gives, or all of it where that
// is null.
struct DevicePageRank {
  DeviceLists lists;
  const float* given;    // what each source gives along each edge
  const float* inverse;  // damping over the out-degree (1 with lists.length), 0 without
  float* rank;
  float* next;           // what each row gives in the next iteration
  float* change;         // |new - old| of each row
  float* dangling;       // rank of each row without out-edges, else 0
  double base;
};

// Values that cross between ranks, as unsigned integers: those of rows go to places of an outbox.
template <class T>
struct DevicePack {
  int64_t count;
  const int32_t* number;
  const int64_t* place;
  const T* value;
  T* outbox;
};

// Values that have arrived for the halo: they replace those that are more, or all.
template <class T>
struct DeviceArrive {
  int64_t count;
  const int32_t* number;
  const int64_t* place;
  const T* arrived;
  T* value;
  bool all;
  uint8_t* next;   // set to 1 where a value was replaced, or null
  int32_t* found;  // set to 1 if any was, or null
};

}  // namespace mgg
