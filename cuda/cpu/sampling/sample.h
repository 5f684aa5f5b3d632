// Neighbours of rows, drawn without replacement on one core. Draws depend on (seed, step, hop, original node id) alone.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace mgg {

// Values that nothing initialises.
template <class T>
struct Raw {
  std::unique_ptr<T[]> data;
  int64_t size = 0;

  void make(int64_t values) { data.reset(new T[values]), size = values; }
  // Makes room for so many values, of which the first `kept` stay.
  void grow(int64_t values, int64_t kept) {
    if (values <= size) return;
    std::unique_ptr<T[]> wider(new T[values]);
    if (kept) std::memcpy(wider.get(), data.get(), static_cast<size_t>(kept) * sizeof(T));
    data = std::move(wider), size = values;
  }
  T& operator[](int64_t at) { return data[at]; }
  const T& operator[](int64_t at) const { return data[at]; }
};

// The in-edge CSR of a whole graph. weight: null if edges are drawn evenly. ids: null if rows are numbered by them.
template <class Index>
struct SampledGraph {
  int64_t nodes;
  const int64_t* indptr;
  const Index* indices;
  const float* weight;
  const int64_t* ids;
};

struct SampleKey {
  uint64_t seed;
  uint32_t step;  // from 1
};

// Rows that a batch has, in a hash table with open addressing; place: negative in an empty slot.
template <class Index>
struct Places {
  struct Slot {
    Index row;
    int32_t place;
  };
  std::vector<Slot> slots;
  int64_t used = 0;
};

// Memory of a call, which the next one takes over.
template <class Index>
struct SampleScratch {
  Places<Index> places;
  std::vector<int64_t> degree, position;
  std::vector<Index> row;
  std::vector<uint32_t> picked;
  std::vector<std::pair<double, int64_t>> nearest;  // keys of edges that may be drawn by weight, and their places
};

// Sampled in-edges of the first `destinations` rows of a batch. indices: places of sources in it. factor: one for each
// destination, or for each edge where edges have weights. edge: positions in the CSR, if they are kept.
struct Hop {
  int64_t destinations = 0, edges = 0;
  Raw<int64_t> indptr;
  Raw<int32_t> indices;
  Raw<double> factor;
  Raw<int64_t> edge;
};

// Rows in the order in which they were met, the seeds first.
struct Sampled {
  Raw<int64_t> nodes;
  int64_t count = 0;
  std::vector<Hop> hops;
};

// fanouts: of each hop, the seeds' first; -1: all edges.
template <class Index>
struct SampleCall {
  SampledGraph<Index> graph;
  const int64_t* seeds;
  int64_t count;
  const std::vector<int64_t>& fanouts;
  SampleKey key;
  bool edges;
  SampleScratch<Index>& scratch;
  Sampled& out;
};

// keys[i] = 64 random bits of (seed, epoch, ids[i]).
struct ShuffleCall {
  const int64_t* ids;
  int64_t count;
  uint64_t seed;
  uint32_t epoch;
  uint64_t* keys;
  int threads;
};

#define MGG_DECLARE(isa)                     \
  namespace isa {                            \
  void sample(const SampleCall<int32_t>&);   \
  void sample(const SampleCall<int64_t>&);   \
  void shuffle_keys(const ShuffleCall&);     \
  }
MGG_DECLARE(baseline)
MGG_DECLARE(avx2)
MGG_DECLARE(avx512)
#undef MGG_DECLARE

}  // namespace mgg
