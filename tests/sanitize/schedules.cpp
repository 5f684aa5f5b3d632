// The host schedules under the thread sanitizer: ranks are threads of this process, each with threads of its own.
//
//   schedules THREADS near|far FAULT FILE...
//
// Each FILE (written by plans.py) is a graph in parts, its plans and its sums in whole numbers. All ranks aggregate
// again and again while their rows change; every sum is checked. FAULT is "none", or breaks a rule of the caller, so
// that a race must be reported:
//   unpublished  rows change while peers still read them
//   shared       threads of a rank are given the same destination to store
//   early        a transport sets a signal before its bytes are there
#include <pthread.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "cpu/schedule.h"
#include "runtime/halo_exchange.h"
#include "transports.h"

namespace {

enum Transfer : int64_t { direct, get, halo };

// Arrays one after another, each behind its number of bytes.
class Reader {
 public:
  explicit Reader(const char* path) : file_(path, std::ios::binary) {}
  template <class T>
  std::vector<T> take() {
    int64_t bytes = 0;
    file_.read(reinterpret_cast<char*>(&bytes), sizeof bytes);
    std::vector<T> values(bytes / sizeof(T));
    file_.read(reinterpret_cast<char*>(values.data()), bytes);
    if (!file_) throw std::runtime_error("a file of plans ends early");
    return values;
  }

 private:
  std::ifstream file_;
};

struct Part {
  mgg::Schedule schedule;
  std::vector<int32_t> indices;
  std::vector<float> rows, out, partials;
  std::vector<float> staging;     // two
  std::vector<uint64_t> signals;  // zero at first
  mgg::HaloExchange::Layout layout;
};

// What the ranks of one process share. Symmetric allocations are of the same size on each.
struct World {
  int64_t ranks, transfer, calls, stride, rounds, capacity;
  std::vector<int64_t> bounds, degree;
  std::vector<float> first;  // the sums of the first call
  std::vector<Part> parts;
  std::vector<uint64_t> rows_at, staging_at, signals_at;
  size_t rows_bytes, staging_bytes, signals_bytes;
  pthread_barrier_t barrier;
};

template <class T>
uint64_t address(const std::vector<T>& memory) {
  return reinterpret_cast<uint64_t>(memory.data());
}

void read_part(World& world, Reader& file, const std::vector<int64_t>& geometry, const std::vector<float>& x,
               int rank) {
  Part& part = world.parts[rank];
  mgg::Schedule& schedule = part.schedule;
  schedule.chunks = file.take<mgg::Chunk>();
  auto segments = file.take<mgg::Segment>();
  part.indices = file.take<int32_t>();
  schedule.indices = part.indices.data();
  schedule.edges = static_cast<int64_t>(part.indices.size());
  const int64_t low = world.bounds[rank], high = world.bounds[rank + 1];
  schedule.destinations = high - low;
  schedule.dist = geometry[1];
  mgg::make_schedule(schedule, segments, {geometry[0] * geometry[2], 4 * geometry[0] * geometry[2]},
                     world.transfer == get);
  part.rows.assign(x.begin() + low * world.stride, x.begin() + high * world.stride);
  part.rows.resize(world.rows_bytes / sizeof(float));
  part.out.resize((high - low) * world.stride);
  part.partials.resize(int64_t(schedule.slots) * world.stride);
  part.staging.resize(2 * world.staging_bytes / sizeof(float));
  part.signals.resize(world.signals_bytes / sizeof(uint64_t));
  if (world.transfer != halo) return;
  auto rows = file.take<int32_t>();
  auto counts = file.take<int64_t>(), places = file.take<int64_t>(), receives = file.take<int64_t>();
  part.layout = {rank, int(world.ranks), int(world.rounds), rows, counts, places, receives,
                 reinterpret_cast<char*>(part.staging.data()), int64_t(world.staging_bytes), part.signals.data()};
}

World read_world(const char* path) {
  Reader file(path);
  World world;
  const auto meta = file.take<int64_t>(), geometry = file.take<int64_t>();
  world.ranks = meta[0], world.transfer = meta[1], world.calls = meta[2], world.stride = meta[3];
  world.rounds = meta[4], world.capacity = meta[5];
  world.bounds = file.take<int64_t>();
  const auto x = file.take<float>();
  world.first = file.take<float>(), world.degree = file.take<int64_t>();
  int64_t most = 0;
  for (int64_t rank = 0; rank < world.ranks; ++rank)
    most = std::max(most, world.bounds[rank + 1] - world.bounds[rank]);
  world.rows_bytes = most * world.stride * sizeof(float);
  world.staging_bytes = world.capacity * world.stride * sizeof(float);
  world.signals_bytes = mgg::HaloExchange::signal_count(world.rounds, world.ranks) * sizeof(uint64_t);
  world.parts = std::vector<Part>(world.ranks);
  for (int rank = 0; rank < world.ranks; ++rank) read_part(world, file, geometry, x, rank);
  for (const Part& part : world.parts) {
    world.rows_at.push_back(address(part.rows));
    world.staging_at.push_back(address(part.staging));
    world.signals_at.push_back(address(part.signals));
  }
  return world;
}

// Rows grow by one a call, so each sum grows by its number of edges.
void check(const World& world, int rank, int64_t call) {
  const int64_t first = world.bounds[rank] * world.stride;
  const auto& out = world.parts[rank].out;
  for (size_t i = 0; i < out.size(); ++i) {
    const float wanted = world.first[first + i] + float(call * world.degree[(first + i) / world.stride]);
    if (out[i] == wanted) continue;
    std::fprintf(stderr, "rank %d, call %d: %g at %zu instead of %g\n", rank, int(call), out[i], i, wanted);
    std::exit(1);
  }
}

void aggregate(World& world, int rank, int threads, mgg::HaloExchange* exchange, mgg::Transport* transport,
               std::mutex* calling) {
  Part& part = world.parts[rank];
  std::vector<const float*> sources;
  for (const mgg::Chunk& chunk : part.schedule.chunks) {
    // As in module_host.cpp: rows that gets fetch are named by this rank's own address.
    if (chunk.kind == mgg::Chunk::halo) {
      sources.push_back(reinterpret_cast<const float*>(exchange->rows_of(0, chunk.first_row)));
      continue;
    }
    const uint64_t base = world.rows_at[world.transfer == get ? rank : chunk.pe];
    sources.push_back(reinterpret_cast<const float*>(base) + chunk.first_row * world.stride);
  }
  mgg::Aggregation<float> call{};
  call.schedule = &part.schedule;
  call.sources = sources.data();
  call.out = part.out.data();
  call.partials = part.partials.data();
  call.accumulators = exchange ? part.out.data() : nullptr;
  call.indices = world.transfer == get ? part.schedule.place.data() : part.schedule.indices;
  call.edges = part.schedule.edges;
  call.stride = world.stride;
  call.sweep = world.transfer == get ? world.stride : std::min<int64_t>(world.stride, 16);
  call.reduce = mgg::Reduce::sum;
  call.prefetch = part.schedule.dist;
  call.threads = threads;
  call.exchange = exchange;
  call.transport = world.transfer == get ? transport : nullptr;
  call.calling = calling;
  mgg::baseline::aggregate(call);
}

void play(World& world, int rank, int threads, bool far, const std::string& fault, std::atomic<int64_t>& playing) {
  Part& part = world.parts[rank];
  mgg::PointerTransport near(rank);
  near.add(world.rows_at.data(), world.rows_bytes);
  near.add(world.staging_at.data(), 2 * world.staging_bytes);
  near.add(world.signals_at.data(), world.signals_bytes);
  FarTransport remote(near, rank, fault == "early");
  mgg::Transport* transport = far ? static_cast<mgg::Transport*>(&remote) : &near;
  std::unique_ptr<mgg::HaloExchange> exchange;
  if (world.transfer == halo) exchange = std::make_unique<mgg::HaloExchange>(part.layout, transport);
  std::mutex calling;
  if (fault == "shared")
    for (mgg::Segment& segment : part.schedule.segments) segment.destination = 0;
  // Where peers read rows, the caller keeps them as they are meanwhile; a halo is pushed by who owns it.
  const bool published = world.transfer != halo && fault != "unpublished";
  for (int64_t call = 0; call < world.calls; ++call) {
    if (published) pthread_barrier_wait(&world.barrier);
    if (call > 0)
      for (float& value : part.rows) ++value;
    if (published) pthread_barrier_wait(&world.barrier);
    if (exchange) exchange->begin(reinterpret_cast<char*>(part.rows.data()), world.stride * sizeof(float));
    aggregate(world, rank, threads, exchange.get(), transport, &calling);
    if (exchange) exchange->end();
    if (fault == "none") check(world, rank, call);
  }
  // What a rank has put is under way when its last call ends; in a job a barrier follows, and keeps it going.
  for (--playing; playing > 0; sched_yield()) transport->progress();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const int threads = std::atoi(argv[1]);
  const bool far = std::string(argv[2]) == "far";
  for (int i = 4; i < argc; ++i) {
    World world = read_world(argv[i]);
    pthread_barrier_init(&world.barrier, nullptr, world.ranks);
    std::atomic<int64_t> playing{world.ranks};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world.ranks; ++rank)
      ranks.emplace_back([&, rank] { play(world, rank, threads, far, argv[3], playing); });
    for (std::thread& rank : ranks) rank.join();
    pthread_barrier_destroy(&world.barrier);
  }
  std::printf("%d\n", argc - 4);  // a run that did nothing is no success
}
