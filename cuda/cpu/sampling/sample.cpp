// Neighbour sampling without replacement (Hamilton, Ying and Leskovec, NeurIPS 2017). To hide the latency of
// memory, several passes go over a run of destinations, and each prefetches for the next one. This file is compiled
// once for each instruction set (MGG_ISA).
#include "cpu/sampling/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "cpu/philox.h"
#include "cpu/sampling/nearest.h"

namespace mgg {
namespace MGG_ISA {
namespace {

constexpr int lanes = 64;             // Philox counters that are drawn at a time
constexpr int64_t run_edges = 1024;   // edges of a run of destinations, about
constexpr int64_t scanned_fanout = 64;  // up to this fanout, edges that were picked are found by looking at all of them
constexpr uint32_t nothing = std::numeric_limits<uint32_t>::max();

// Words of one node's draws, from quad `quad` on.
class NodeWords {
 public:
  NodeWords(const SampleKey& key, uint32_t stream, uint64_t id, uint64_t quad)
      : key_(key), stream_(stream), id_(id), quad_(quad) {}
  uint32_t next() {
    if (left_ == 0) words_ = draw(key_.seed, key_.step, stream_, id_, quad_++), left_ = 4;
    return words_.word[4 - left_--];
  }

 private:
  SampleKey key_;
  uint32_t stream_;
  uint64_t id_, quad_;
  Philox words_{};
  int left_ = 0;
};

// The rows picked so far: few are looked through, many lie in a hash set.
class Picked {
 public:
  Picked(std::vector<uint32_t>& table, int64_t fanout, int64_t* picks) : table_(table), picks_(picks) {
    if (fanout <= scanned_fanout) return;
    while (size_ < 2 * static_cast<uint64_t>(fanout)) size_ *= 2;
    table_.assign(size_, nothing);
  }
  bool has(uint32_t value) const {
    if (size_ == 1) {
      bool found = false;
      for (int64_t i = 0; i < count_; ++i) found |= picks_[i] == static_cast<int64_t>(value);
      return found;
    }
    for (uint64_t at = hash(value);; at = (at + 1) & (size_ - 1)) {
      if (table_[at] == value) return true;
      if (table_[at] == nothing) return false;
    }
  }
  void add(uint32_t value) {
    picks_[count_++] = value;
    if (size_ == 1) return;
    uint64_t at = hash(value);
    while (table_[at] != nothing) at = (at + 1) & (size_ - 1);
    table_[at] = value;
  }

 private:
  uint64_t hash(uint32_t value) const { return (value * 0x9E3779B1u) & (size_ - 1); }
  std::vector<uint32_t>& table_;
  int64_t* picks_;
  int64_t count_ = 0;
  uint64_t size_ = 1;
};

// Floyd's sample of `fanout` out of `degree` places (Bentley and Floyd, CACM 1987), each set as likely as any other.
// word: of the node's draws, a word for each pick, or null: they are drawn here. Words that `bounded` refuses are
// replaced by those after the picks' last quad.
void pick(const uint32_t* word, const SampleKey& key, uint32_t stream, uint64_t id, int64_t degree, int64_t fanout,
          std::vector<uint32_t>& table, int64_t* picks) {
  Picked picked(table, fanout, picks);
  NodeWords words(key, stream, id, 0), spare(key, stream, id, static_cast<uint64_t>(fanout + 3) / 4);
  for (int64_t i = 0; i < fanout; ++i) {
    const auto last = static_cast<uint32_t>(degree - fanout + i);
    uint32_t value, from = word ? word[i] : words.next();
    while (!bounded(from, last + 1, value)) from = spare.next();
    picked.add(picked.has(value) ? last : value);
  }
}

// ---- which rows a batch has

template <class Index>
class Table {
 public:
  Table(Places<Index>& places, int64_t total) : places_(places), total_(total) {}

  // Forgets all rows, and makes room for as many as there were, or are expected.
  void clear(int64_t expected) {
    const int64_t rows = std::max<int64_t>({places_.used, expected, 512});
    places_.used = 0;
    resize(2 * rows);
  }
  void grow_for(int64_t more) {
    const int64_t rows = std::min(places_.used + more, total_);
    if (5 * rows <= 3 * static_cast<int64_t>(places_.slots.size())) return;
    std::vector<Slot> before = std::move(places_.slots);
    places_.slots = {};
    resize(2 * rows);
    places_.used = 0;
    for (const Slot& slot : before)
      if (slot.place >= 0) place(slot.row, slot.place);
  }
  void prefetch(Index row) const { __builtin_prefetch(&places_.slots[slot_of(row)], 1); }

  // Returns the place of a row; a new one gets `next`.
  int32_t place(Index row, int32_t next) {
    Slot* slots = places_.slots.data();
    for (uint64_t at = slot_of(row);; at = (at + 1) & mask_) {
      if (slots[at].place < 0) {
        slots[at] = {row, next};
        ++places_.used;
        return next;
      }
      if (slots[at].row == row) return slots[at].place;
    }
  }

 private:
  using Slot = typename Places<Index>::Slot;
  uint64_t slot_of(Index row) const { return (uint64_t(row) * 0x9E3779B97F4A7C15ull) >> shift_; }
  void resize(int64_t least) {
    int bits = 10;
    while ((int64_t(1) << bits) < least) ++bits;
    places_.slots.assign(size_t(1) << bits, Slot{0, -1});
    mask_ = (uint64_t(1) << bits) - 1, shift_ = 64 - bits;
  }
  Places<Index>& places_;
  const int64_t total_;  // rows of the graph
  uint64_t mask_ = 0;
  int shift_ = 63;
};

// ---- hops

template <class Index>
class Sampling {
 public:
  explicit Sampling(const SampleCall<Index>& call)
      : call_(call), graph_(call.graph), scratch_(call.scratch), out_(call.out),
        table_(call.scratch.places, call.graph.nodes), nearest_(call.scratch.nearest, call.key) {}

  void start() {
    const int64_t count = call_.count;
    out_.nodes.make(std::max<int64_t>(count, 1));
    table_.clear(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = call_.seeds[i];
      if (table_.place(static_cast<Index>(row), static_cast<int32_t>(i)) != i)
        throw std::invalid_argument("seeds: row " + std::to_string(row) + " comes twice");
      out_.nodes[i] = row;
    }
    out_.count = count;
  }

  void hop(int number, int64_t fanout) {
    out_.hops.emplace_back();
    Hop& hop = out_.hops.back();
    stream_ = sampling_stream + number;
    const int64_t count = hop.destinations = out_.count;
    hop.indptr.make(count + 1);
    const int64_t room = degrees(hop, fanout);
    hop.indices.make(room);
    if (call_.edges) hop.edge.make(room);
    hop.factor.make(graph_.weight ? room : count);
    hop.indptr[0] = 0;
    for (int64_t first = 0, last = 0; first < count; first = last) {
      // As many destinations as have about run_edges edges; at least one, whose edges may be far more.
      int64_t taken = 0;
      while (last < count && (last == first || taken + bound(last, fanout) <= run_edges)) taken += bound(last++, fanout);
      scratch_.position.resize(std::max<size_t>(scratch_.position.size(), taken));
      scratch_.row.resize(std::max<size_t>(scratch_.row.size(), taken));
      if (graph_.weight)
        weighted(hop, first, last, fanout);
      else
        uniform(hop, first, last, fanout);
      enter(hop, hop.indptr[last] - hop.indptr[first]);
    }
    hop.edges = hop.indptr[count];
  }

 private:
  static bool all(int64_t degree, int64_t fanout) { return fanout < 0 || degree <= fanout; }
  int64_t bound(int64_t at, int64_t fanout) const {
    const int64_t degree = scratch_.degree[at];
    return all(degree, fanout) ? degree : fanout;
  }
  uint64_t id_of(int64_t row) const { return static_cast<uint64_t>(graph_.ids ? graph_.ids[row] : row); }

  // Reads the degrees of all destinations; returns the number of edges that are drawn at most.
  int64_t degrees(const Hop& hop, int64_t fanout) {
    constexpr int64_t ahead = 16;
    auto& degree = scratch_.degree;
    degree.resize(std::max<size_t>(degree.size(), hop.destinations));
    int64_t total = 0;
    for (int64_t i = 0; i < hop.destinations; ++i) {
      if (i + ahead < hop.destinations) __builtin_prefetch(graph_.indptr + out_.nodes[i + ahead]);
      const int64_t row = out_.nodes[i];
      degree[i] = graph_.indptr[row + 1] - graph_.indptr[row];
      if (degree[i] > std::numeric_limits<int32_t>::max())
        throw std::invalid_argument("row " + std::to_string(row) + " has more than 2^31 - 1 in-edges");
      total += bound(i, fanout);
    }
    return total;
  }

  // Draws the edges of destinations first .. last - 1 into scratch_.position, and asks for their sources.
  void uniform(Hop& hop, int64_t first, int64_t last, int64_t fanout) {
    const int64_t quads = (fanout + 3) / 4;
    const int64_t together = fanout > 0 && quads <= lanes ? lanes / quads : 0;  // nodes whose words are drawn at once
    int64_t at = 0;
    for (int64_t from = first, upto = first; from < last; from = upto) {
      int drawn = 0;
      for (int64_t nodes = 0; upto < last && (nodes < together || together == 0); ++upto) {
        if (all(scratch_.degree[upto], fanout)) continue;
        ++nodes;
        if (together == 0) continue;
        const uint64_t id = id_of(out_.nodes[upto]);
        for (int64_t quad = 0; quad < quads; ++quad)
          counters_.set(drawn++, node_counter(call_.key.step, stream_, id, quad));
      }
      if (drawn) counters_.draw(drawn, call_.key.seed);
      const uint32_t* word = counters_.word;
      for (int64_t i = from; i < upto; ++i) {
        const int64_t row = out_.nodes[i], degree = scratch_.degree[i], begin = graph_.indptr[row];
        int64_t* position = scratch_.position.data() + at;
        if (all(degree, fanout)) {
          for (int64_t e = 0; e < degree; ++e) position[e] = begin + e;
          for (int64_t e = 0; e < degree; e += 64 / sizeof(Index)) __builtin_prefetch(graph_.indices + begin + e);
          hop.factor[i] = 1.0, at += degree;
        } else {
          pick(together ? word : nullptr, call_.key, stream_, id_of(row), degree, fanout, scratch_.picked, position);
          for (int64_t e = 0; e < fanout; ++e) __builtin_prefetch(graph_.indices + (position[e] += begin));
          hop.factor[i] = static_cast<double>(degree) / static_cast<double>(fanout);
          word += 4 * quads, at += fanout;
        }
        hop.indptr[i + 1] = hop.indptr[first] + at;
      }
    }
  }

  void weighted(Hop& hop, int64_t first, int64_t last, int64_t fanout) {
    int64_t at = 0;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = out_.nodes[i], begin = graph_.indptr[row];
      const double next = nearest_.choose(graph_.weight + begin, scratch_.degree[i], fanout, stream_, id_of(row));
      const bool all = std::isinf(next);
      for (const auto& [key, place] : nearest_.found()) {
        const int64_t edge = begin + place;
        scratch_.position[at] = edge;
        __builtin_prefetch(graph_.indices + edge);
        hop.factor[hop.indptr[first] + at++] = all ? 1.0 : one_over_drawn(graph_.weight[edge], next);
      }
      hop.indptr[i + 1] = hop.indptr[first] + at;
    }
  }

  // Enters the sources of the next `count` edges, whose positions are in scratch_.position.
  void enter(Hop& hop, int64_t count) {
    table_.grow_for(count);
    out_.nodes.grow(out_.count + count > out_.nodes.size ? 2 * (out_.count + count) : 0, out_.count);
    Index* row = scratch_.row.data();
    const int64_t* position = scratch_.position.data();
    for (int64_t e = 0; e < count; ++e) table_.prefetch(row[e] = graph_.indices[position[e]]);
    int64_t at = entered(hop);
    for (int64_t e = 0; e < count; ++e, ++at) {
      const auto next = static_cast<int32_t>(out_.count);
      const int32_t place = table_.place(row[e], next);
      out_.nodes[next] = row[e];  // overwritten by the next new row if this one is not new
      out_.count += place == next;
      hop.indices[at] = place;
      if (call_.edges) hop.edge[at] = position[e];
    }
    entered_ = at;
    if (out_.count > std::numeric_limits<int32_t>::max() - count)
      throw std::invalid_argument("a batch needs more than 2^31 - 1 rows; make it smaller, or its fanouts");
  }
  int64_t entered(const Hop& hop) {
    if (&hop != of_) of_ = &hop, entered_ = 0;
    return entered_;
  }

  const SampleCall<Index>& call_;
  const SampledGraph<Index>& graph_;
  SampleScratch<Index>& scratch_;
  Sampled& out_;
  Table<Index> table_;
  Nearest nearest_;
  Counters<lanes> counters_;
  uint32_t stream_ = 0;
  const Hop* of_ = nullptr;
  int64_t entered_ = 0;
};

template <class Index>
void sample_here(const SampleCall<Index>& call) {
  call.out.hops.reserve(call.fanouts.size());
  Sampling<Index> sampling(call);
  sampling.start();
  for (size_t number = 0; number < call.fanouts.size(); ++number)
    sampling.hop(static_cast<int>(number), call.fanouts[number]);
}

}  // namespace

void sample(const SampleCall<int32_t>& call) { sample_here(call); }
void sample(const SampleCall<int64_t>& call) { sample_here(call); }

void shuffle_keys(const ShuffleCall& call) {
  const int64_t runs = (call.count + lanes - 1) / lanes;
#pragma omp parallel for num_threads(call.threads) schedule(static) if (call.count > 1 << 15)
  for (int64_t run = 0; run < runs; ++run) {
    Counters<lanes> counters;
    const int64_t first = run * lanes;
    const int here = static_cast<int>(std::min<int64_t>(lanes, call.count - first));
    for (int i = 0; i < here; ++i)
      counters.set(i, node_counter(call.epoch, shuffling_stream, static_cast<uint64_t>(call.ids[first + i]), 0));
    counters.draw(here, call.seed);
    for (int i = 0; i < here; ++i)
      call.keys[first + i] = uint64_t(counters.word[4 * i]) << 32 | counters.word[4 * i + 1];
  }
}

}  // namespace MGG_ISA
}  // namespace mgg
