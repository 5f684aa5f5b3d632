// Declarations that the parts of the Python module _host share: the instruction set in use, exchanges and schedules.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "python/bindings.h"
#include "cpu/edges.h"
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
    MGG_IF_BASELINE(return mgg::baseline::kernel(call))                  \
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
#if MGG_HAVE_BASELINE
#define MGG_IF_BASELINE(statement) statement;
#else
#define MGG_IF_BASELINE(statement)
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

// Base class of the exchanges that Python makes, which bring the chunks of a call.
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

Reduce reduction_of(const std::string& name);  // host_schedule.cpp

// Where a call's rows lie, and how rows of other PEs reach it. arrived: the exchange is over, and its rows are summed.
struct Reach {
  Flat<const uint64_t> addresses;
  Flat<const int64_t> counts;
  int rank, threads;
  HostExchange* exchange;
  bool arrived;
  uint64_t transport;
};

// Member functions without a body here are in host_schedule.cpp.
class HostSchedule {
 public:
  HostSchedule(Flat<const uint8_t> chunks, Flat<const uint8_t> segments, Flat<const int32_t> indices,
               int64_t destinations, int64_t block_edges, int64_t part_edges, bool gets);

  // S: storage type of rows; T: type of the arrays that hold them (uint16 for halves).
  template <class S, class T>
  void aggregate(const Reach& reach, std::optional<Flat<const Accumulator<S>>> weight, Matrix<T> out,
                 std::optional<Flat<const Accumulator<S>>> scale, std::optional<Flat<const Accumulator<S>>> bias,
                 bool relu, const std::string& reduce);

  // Runs kernel(EdgeCall) over rows of `values` columns of S and a tail of `tail` accumulator values. id: 8 bytes of an
  // id follow. state: values that the kernel keeps for a destination.
  template <class S>
  void over_edges(const Reach& reach, int64_t values, int64_t tail, bool id, int64_t state,
                  const std::function<void(const EdgeCall<S>&)>& kernel);

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

 private:
  int prefetched(int64_t row_bytes) const;
  void check(const Reach& reach, int64_t row_bytes) const;
  template <class S, class Kernel>
  void over(const Reach& reach, int64_t row_bytes, Kernel&& kernel);

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
