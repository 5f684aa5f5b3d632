// Declarations that the parts of the Python module _host share: the instruction set in use, exchanges and schedules.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "python/bindings.h"
#include "cpu/edges.h"
#include "cpu/schedule.h"
#include "runtime/halo_exchange.h"

namespace mgg {

// Rows contiguous, any stride between them.
template <class T>
using Matrix = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::device::cpu>;

const std::string& instruction_set();  // module_host.cpp

// Calls the kernel that was compiled for the instruction set in use.
#define MGG_DISPATCH(kernel, call)                                       \
  do {                                                                   \
    const std::string& isa = mgg::instruction_set();                     \
    (void)isa;                                                           \
    MGG_IF_AVX512(if (isa == "avx512") return mgg::avx512::kernel(call)) \
    MGG_IF_AVX2(if (isa == "avx2") return mgg::avx2::kernel(call))       \
    return mgg::baseline::kernel(call);                                  \
  } while (false)
#if MGG_HAVE_AVX512
#define MGG_IF_AVX512(statement) statement;
#else
#define MGG_IF_AVX512(statement)
#endif
#if MGG_HAVE_AVX2
#define MGG_IF_AVX2(statement) statement;
#else
#define MGG_IF_AVX2(statement)
#endif

// Sums in float32 or float64 that a call leaves between stages and parts of hubs; kept, since fresh pages cost time.
class Scratch {
 public:
  template <class A>
  A* take(int64_t values) {
    const size_t bytes = static_cast<size_t>(values) * sizeof(A) + 64;
    if (bytes > memory_.size()) memory_ = std::vector<char>(bytes);
    return reinterpret_cast<A*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  }

 private:
  std::vector<char> memory_;
};

inline Transport* transport_at(uint64_t address) { return reinterpret_cast<Transport*>(address); }

// Base of the exchanges that Python makes, which bring the chunks of a call.
class HostExchange {
 public:
  virtual ~HostExchange() = default;
  virtual Exchange& exchange() = 0;
  // Refuses a call over these chunks, and over `rows` rows of this rank, that the exchange was not made for.
  virtual void check(const std::vector<Chunk>& chunks, int64_t rows, int64_t row_bytes) const = 0;
};

class HostHalo final : public HostExchange {
 public:
  HostHalo(int rank, int size, int rounds, Flat<const int32_t> send_rows, Flat<const int64_t> send_counts,
           Flat<const int64_t> send_places, Flat<const int64_t> receive_counts, uint64_t staging,
           int64_t staging_bytes, uint64_t signals, uint64_t transport)
      : staging_bytes_(staging_bytes),
        exchange_({rank, size, rounds, vector_of(send_rows), vector_of(send_counts), vector_of(send_places),
                   vector_of(receive_counts), reinterpret_cast<char*>(staging), staging_bytes,
                   reinterpret_cast<uint64_t*>(signals)},
                  transport_at(transport)) {
    for (const int64_t count : vector_of(receive_counts)) receives_ += count;
    for (const int32_t row : vector_of(send_rows)) last_row_ = std::max<int64_t>(last_row_, row);
  }
  HaloExchange& exchange() override { return exchange_; }
  void check(const std::vector<Chunk>&, int64_t rows, int64_t row_bytes) const override {
    require_room(row_bytes);
    require(last_row_ < rows, "exchange: sends rows that are not there");
  }
  void transfer(uint64_t rows, int64_t row_bytes) {
    require_room(row_bytes);
    nanobind::gil_scoped_release release;
    exchange_.transfer(reinterpret_cast<const char*>(rows), row_bytes);
  }
  uint64_t arrived() const { return reinterpret_cast<uint64_t>(exchange_.rows_of(0, 0)); }
  int64_t take_rows_pushed() { return exchange_.take_rows_pushed(); }
  int64_t take_messages_pushed() { return exchange_.take_messages_pushed(); }
  double take_seconds_waited() { return exchange_.take_seconds_waited(); }
  const std::vector<double>& stamps() const { return exchange_.stamps(); }

 private:
  void require_room(int64_t row_bytes) const {
    require(receives_ * row_bytes <= staging_bytes_, "exchange: rows are wider than the staging was made for");
  }
  template <class T>
  static std::vector<T> vector_of(const Flat<const T>& array) {
    return {array.data(), array.data() + array.size()};
  }
  int64_t staging_bytes_, receives_ = 0, last_row_ = -1;
  HaloExchange exchange_;
};

inline Reduce reduction_of(const std::string& name) {
  require(name == "sum" || name == "mean" || name == "max", "reduce: sum, mean or max");
  return name == "sum" ? Reduce::sum : name == "mean" ? Reduce::mean : Reduce::max;
}

// Where a call's rows lie, and how those of others reach it. arrived: they have, and nothing moves.
struct Reach {
  Flat<const uint64_t> addresses;
  Flat<const int64_t> counts;
  int rank, threads;
  HostExchange* exchange;
  bool arrived;
  uint64_t transport;
};

class HostSchedule {
 public:
  HostSchedule(Flat<const uint8_t> chunks, Flat<const uint8_t> segments, Flat<const int32_t> indices,
               int64_t destinations, int64_t block_edges, int64_t part_edges, bool gets)
      : indices_(indices) {
    require(block_edges > 0 && part_edges > 0, "blocks and parts have at least one edge");
    schedule_.chunks = structs<Chunk>(chunks, "chunks: not a whole number of structs");
    schedule_.indices = indices.data();
    schedule_.edges = static_cast<int64_t>(indices.size());
    schedule_.destinations = destinations;
    make_schedule(schedule_, structs<Segment>(segments, "segments: not a whole number of structs"),
                  {block_edges, part_edges}, gets);
    gets_ = gets;
  }

  // S: what rows are stored in; T: the type of the arrays that hold them (uint16 for halves).
  template <class S, class T>
  void aggregate(Flat<const uint64_t> addresses, Flat<const int64_t> counts, int rank,
                 std::optional<Flat<const Accumulator<S>>> weight, Matrix<T> out,
                 std::optional<Flat<const Accumulator<S>>> scale,
                 std::optional<Flat<const Accumulator<S>>> bias, bool relu, const std::string& reduce, int threads,
                 HostExchange* exchange, bool arrived, uint64_t transport) {
    using A = Accumulator<S>;
    const int64_t dim = static_cast<int64_t>(out.shape(1));
    const int64_t stride = padded_stride(dim, sizeof(S)), row_bytes = stride * sizeof(S);
    const int64_t rows = schedule_.destinations;
    require(static_cast<int64_t>(out.shape(0)) == rows, "out: a row for each destination");
    require(rows == 0 || out.stride(0) == stride, "out: rows must be padded to 16 bytes");
    require(out.size() == 0 || out.stride(1) == 1, "out: columns must be contiguous");
    require(reinterpret_cast<uintptr_t>(out.data()) % row_alignment == 0, "out: not aligned to 16 bytes");
    require(!weight || static_cast<int64_t>(weight->size()) == schedule_.edges, "weight: one for each edge");
    require(!scale || static_cast<int64_t>(scale->size()) == rows, "scale: one for each destination");
    require(!bias || static_cast<int64_t>(bias->size()) == dim, "bias: one for each column");
    const Reduce reduction = reduction_of(reduce);
    const Reach reach{addresses, counts, rank, threads, exchange, arrived, transport};
    check(reach, row_bytes);
    std::vector<A> padded_bias(bias ? stride : 0, A(0));
    if (bias) std::memcpy(padded_bias.data(), bias->data(), dim * sizeof(A));
    A* accumulators = nullptr;
    if constexpr (std::is_same_v<S, A>)
      accumulators = exchange ? reinterpret_cast<A*>(out.data()) : nullptr;
    else
      accumulators = exchange ? stage_memory().take<A>(rows * stride) : nullptr;
    // Results that no cache holds until they are read; rows of whole lines.
    constexpr int64_t line = 64, large = 8 << 20;
    const bool streams = rows * row_bytes >= large && row_bytes % line == 0 &&
                         reinterpret_cast<uintptr_t>(out.data()) % line == 0;
    const int64_t sweep = this->sweep(dim, sizeof(S));
    A* partials = part_memory().take<A>(int64_t(schedule_.slots) * stride);
    over<S>(reach, row_bytes, [&](const S* const* sources, const int32_t* indices) {
      const double began = omp_get_wtime();
      const Aggregation<S> call{&schedule_, sources, indices, schedule_.edges, weight ? weight->data() : nullptr,
                                reinterpret_cast<S*>(out.data()), scale ? scale->data() : nullptr,
                                bias ? padded_bias.data() : nullptr, partials, accumulators, stride, sweep, reduction,
                                prefetched(sweep * sizeof(S)), relu, streams, threads, exchange_of(reach),
                                transport_at(transport), &calling_};
      run_here(call);
      schedule_.sweeps.took(stride, sizeof(S), sweep, omp_get_wtime() - began);
    });
  }

  // Runs kernel(EdgeCall) over rows of `values` columns of S and a tail of `tail` values of what they are summed in;
  // `id`: whether 8 bytes of an id follow. state: values that the kernel keeps for a destination.
  template <class S, class Kernel>
  void over_edges(const Reach& reach, int64_t values, int64_t tail, bool id, int64_t state, Kernel&& kernel) {
    using A = Accumulator<S>;
    const int64_t size = sizeof(A), narrow = values * static_cast<int64_t>(sizeof(S));
    const int64_t bytes = (narrow + size - 1) / size * size + tail * size + (id ? 8 : 0);
    const int64_t row_bytes = padded_stride(bytes, 1), rows = schedule_.destinations;
    check(reach, row_bytes);
    A* partials = part_memory().take<A>(int64_t(schedule_.slots) * state);
    A* states = reach.exchange ? stage_memory().take<A>(rows * state) : nullptr;
    over<S>(reach, row_bytes, [&](const S* const* sources, const int32_t* indices) {
      kernel(EdgeCall<S>{&schedule_, sources, indices, schedule_.edges,
                         row_bytes / static_cast<int64_t>(sizeof(S)), values, tail, partials, states,
                         prefetched(row_bytes), reach.threads, exchange_of(reach), transport_at(reach.transport),
                         &calling_});
    });
  }

  int dist() const { return schedule_.dist; }
  void set_dist(int dist) { schedule_.dist = dist; }
  void sweep_as(const HostSchedule& other) { schedule_.sweeps = other.schedule_.sweeps; }
  int64_t destinations() const { return schedule_.destinations; }
  int64_t edges() const { return schedule_.edges; }
  int64_t blocks() const { return static_cast<int64_t>(schedule_.blocks.size()); }
  int64_t hubs() const { return static_cast<int64_t>(schedule_.hubs.size()); }
  int64_t sweep(int64_t dim, int64_t item_bytes) const {
    const int64_t stride = padded_stride(dim, item_bytes);
    return gets_ ? stride : schedule_.sweeps.columns(stride, item_bytes, schedule_.edges);
  }
  int64_t bytes() const {
    return static_cast<int64_t>(schedule_.segments.size() * sizeof(Segment) +
                                schedule_.blocks.size() * sizeof(Block) +
                                (schedule_.place.size() + schedule_.degree.size()) * sizeof(int32_t));
  }

 private:
  // Rows of 16 KiB are on their way then, which covers a memory's latency: few wide rows, or many narrow ones.
  int prefetched(int64_t row_bytes) const {
    const int64_t fitting = std::min<int64_t>(256, std::max<int64_t>(8, 16384 / std::max<int64_t>(1, row_bytes)));
    return schedule_.dist >= 0 ? schedule_.dist : static_cast<int>(fitting);
  }

  static Exchange* exchange_of(const Reach& reach) {
    return reach.exchange && !reach.arrived ? &reach.exchange->exchange() : nullptr;
  }

  void check(const Reach& reach, int64_t row_bytes) const {
    require(reach.rank >= 0 && static_cast<size_t>(reach.rank) < reach.addresses.size(), "rank: not a PE");
    require((reach.transport != 0) == gets_, "a schedule for gets needs a transport, and no other does");
    HostExchange* exchange = reach.exchange;
    if (exchange) exchange->check(schedule_.chunks, reach.counts.data()[reach.rank], row_bytes);
    require(static_cast<int64_t>(schedule_.stages.size()) == 1 + (exchange ? exchange->exchange().rounds() : 0),
            "a plan with rounds needs its exchange, and no other does");
    check_sources(reach.addresses, reach.counts, reach.rank);
  }

  // Calls kernel(row 0 of each chunk, rows of edges within them), between the begin and the end of the exchange.
  template <class S, class Kernel>
  void over(const Reach& reach, int64_t row_bytes, Kernel&& kernel) {
    nanobind::gil_scoped_release release;
    const uint64_t* addresses = reach.addresses.data();
    Exchange* exchange = exchange_of(reach);
    if (exchange) exchange->begin(reinterpret_cast<const char*>(addresses[reach.rank]), row_bytes);
    std::vector<const S*> sources;
    for (size_t i = 0; i < schedule_.chunks.size(); ++i) {
      const Chunk& chunk = schedule_.chunks[i];
      // A row that is fetched by a get lies on its owner at this PE's own address.
      const char* row = arrives(chunk) ? reach.exchange->exchange().rows_of(static_cast<int>(i) - 1, chunk.first_row)
                                       : reinterpret_cast<const char*>(addresses[gets_ ? reach.rank : chunk.pe]) +
                                             chunk.first_row * row_bytes;
      sources.push_back(reinterpret_cast<const S*>(row));
    }
    kernel(sources.data(), gets_ ? schedule_.place.data() : schedule_.indices);
    if (exchange) exchange->end();
  }

  template <class S>
  static void run_here(const Aggregation<S>& call) {
    MGG_DISPATCH(aggregate, call);
  }

  // Rows that are read through pointers must exist.
  void check_sources(const Flat<const uint64_t>& addresses, const Flat<const int64_t>& counts,
                     int rank) const {
    for (const Chunk& chunk : schedule_.chunks) {
      if (arrives(chunk)) continue;
      require(chunk.pe >= 0 && static_cast<size_t>(chunk.pe) < addresses.size(), "chunk: no such PE");
      require(chunk.first_row + chunk.rows <= counts.data()[chunk.pe], "chunk: more rows than its PE published");
      const auto address = addresses.data()[gets_ ? rank : chunk.pe];
      require(chunk.rows == 0 || (address && address % row_alignment == 0),
              "rows: out of reach, or not aligned to 16 bytes");
    }
  }

  // Each interval of destinations has a schedule of its own, and one call is made at a time: a thread's streamed calls
  // share their memory, so that it does not grow with the number of intervals.
  Scratch& part_memory() { return streams() ? shared_scratch(0) : partials_; }
  Scratch& stage_memory() { return streams() ? shared_scratch(1) : sums_; }
  bool streams() const { return !schedule_.chunks.empty() && schedule_.chunks.back().kind == Chunk::streamed; }
  static Scratch& shared_scratch(int which) {
    static thread_local Scratch scratch[2];
    return scratch[which];
  }

  Schedule schedule_;
  Flat<const int32_t> indices_;  // keeps the array alive
  Scratch partials_, sums_;
  std::mutex calling_;
  bool gets_ = false;
};

}  // namespace mgg
