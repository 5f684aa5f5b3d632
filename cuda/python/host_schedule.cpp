// Calls over a schedule: checks of their arguments, and addresses of rows. The bindings are in other files, which are
// compiled without optimisation.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/schedule.h"
#include "python/module_host.h"

namespace mgg {
namespace {

Exchange* exchange_of(const Reach& reach) {
  return reach.exchange && !reach.arrived ? &reach.exchange->exchange() : nullptr;
}

template <class S>
void run_here(const Aggregation<S>& call) {
  MGG_DISPATCH(aggregate, call);
}

}  // namespace

Reduce reduction_of(const std::string& name) {
  require(name == "sum" || name == "mean" || name == "max", "reduce: sum, mean or max");
  return name == "sum" ? Reduce::sum : name == "mean" ? Reduce::mean : Reduce::max;
}

HostSchedule::HostSchedule(Flat<const uint8_t> chunks, Flat<const uint8_t> segments, Flat<const int32_t> indices,
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

// Rows of 16 KiB are on their way then, which covers a memory's latency: few wide rows, or many narrow ones.
int HostSchedule::prefetched(int64_t row_bytes) const {
  const int64_t fitting = std::min<int64_t>(256, std::max<int64_t>(8, 16384 / std::max<int64_t>(1, row_bytes)));
  return schedule_.dist >= 0 ? schedule_.dist : static_cast<int>(fitting);
}

void HostSchedule::check(const Reach& reach, int64_t row_bytes) const {
  require(reach.rank >= 0 && static_cast<size_t>(reach.rank) < reach.addresses.size(), "rank: not a PE");
  require((reach.transport != 0) == gets_, "a schedule for gets needs a transport, and no other does");
  HostExchange* exchange = reach.exchange;
  if (exchange) exchange->check(schedule_.chunks, reach.counts.data()[reach.rank], row_bytes);
  require(static_cast<int64_t>(schedule_.stages.size()) == 1 + (exchange ? exchange->exchange().rounds() : 0),
          "a plan with rounds needs its exchange, and no other does");
  check_sources(reach.addresses, reach.counts, reach.rank);
}

// Rows that are read through pointers must exist.
void HostSchedule::check_sources(const Flat<const uint64_t>& addresses, const Flat<const int64_t>& counts,
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

// Calls kernel(row 0 of each chunk, rows of edges within them), between the begin and the end of the exchange.
template <class S, class Kernel>
void HostSchedule::over(const Reach& reach, int64_t row_bytes, Kernel&& kernel) {
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

template <class S, class T>
void HostSchedule::aggregate(Flat<const uint64_t> addresses, Flat<const int64_t> counts, int rank,
                             std::optional<Flat<const Accumulator<S>>> weight, Matrix<T> out,
                             std::optional<Flat<const Accumulator<S>>> scale,
                             std::optional<Flat<const Accumulator<S>>> bias, bool relu, const std::string& reduce,
                             int threads, HostExchange* exchange, bool arrived, uint64_t transport) {
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

template <class S>
void HostSchedule::over_edges(const Reach& reach, int64_t values, int64_t tail, bool id, int64_t state,
                              const std::function<void(const EdgeCall<S>&)>& kernel) {
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

int64_t HostSchedule::bytes() const {
  return static_cast<int64_t>(schedule_.segments.size() * sizeof(Segment) +
                              schedule_.blocks.size() * sizeof(Block) +
                              (schedule_.place.size() + schedule_.degree.size()) * sizeof(int32_t));
}

#define MGG_INSTANTIATE(S, T)                                                                                         \
  template void HostSchedule::aggregate<S, T>(                                                                        \
      Flat<const uint64_t>, Flat<const int64_t>, int, std::optional<Flat<const Accumulator<S>>>, Matrix<T>,           \
      std::optional<Flat<const Accumulator<S>>>, std::optional<Flat<const Accumulator<S>>>, bool, const std::string&, \
      int, HostExchange*, bool, uint64_t);                                                                            \
  template void HostSchedule::over_edges<S>(const Reach&, int64_t, int64_t, bool, int64_t,                            \
                                            const std::function<void(const EdgeCall<S>&)>&);
MGG_INSTANTIATE(float, float)
MGG_INSTANTIATE(double, double)
MGG_INSTANTIATE(Float16, uint16_t)
MGG_INSTANTIATE(BFloat16, uint16_t)
#undef MGG_INSTANTIATE

}  // namespace mgg
