// Small kernels that use what the shim plays of a transport: several PEs exchange rows and check what they find.
#include "exercises.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/transport_device.h"

namespace mgg {
namespace {

constexpr int lanes = shim::warp_lanes, rounds = 5;

// A PE's symmetric memory.
struct Board {
  uint64_t arrived[rounds];     // signals, one each round
  int32_t inbox[rounds][lanes];
  int32_t outbox[rounds][lanes];
  int32_t rows[rounds][lanes];  // for gets
  int32_t staging[2][lanes];
};

int32_t value_of(int pe, int round, int lane) { return 10000 * pe + 100 * round + lane; }

struct Call {
  Board* mine;
  int me, pes;
  int32_t* wrong;  // values that were not what they should be
};

// Rows go round: each PE puts one to the next and waits for that of the one before. Every round is another block's.
MGG_KERNEL void ring(Call call) {
  const int round = device::block(), lane = device::thread();
  Board& board = *call.mine;
  board.outbox[round][lane] = value_of(call.me, round, lane);
  device::sync_lanes(~0u);
  if (lane == 0)
    device::put_signal_nbi(board.inbox[round], board.outbox[round], sizeof board.inbox[round], &board.arrived[round],
                           1, (call.me + 1) % call.pes);
  while (!device::test_signal(&board.arrived[round], 1)) device::rest();
  const int32_t wanted = value_of((call.me + call.pes - 1) % call.pes, round, lane);
  if (board.inbox[round][lane] != wanted) ++*call.wrong;
  device::sync_lanes(~0u);
  if (lane == 0) device::quiet_puts();
  device::sync_lanes(~0u);
  board.outbox[round][lane] = -1;  // it may be written again
}

// The next PE's rows are fetched one ahead of the one that is looked at.
MGG_KERNEL void fetch(Call call) {
  const int lane = device::thread(), next = (call.me + 1) % call.pes;
  Board& board = *call.mine;
  if (lane == 0) device::get_nbi(board.staging[0], board.rows[0], sizeof board.rows[0], next, 0);
  for (int round = 0; round < rounds; ++round) {
    if (lane == 0) device::quiet(round % 2);
    device::sync_lanes(~0u);  // the row is there for all, and all have seen the one before
    if (lane == 0 && round + 1 < rounds)
      device::get_nbi(board.staging[(round + 1) % 2], board.rows[round + 1], sizeof board.rows[0], next,
                      (round + 1) % 2);
    if (board.staging[round % 2][lane] != value_of(next, round, lane)) ++*call.wrong;
  }
}

// What is counted, as often as the comments say of a warp; a test adds them up. `loads` and `stores` begin a line.
struct Counted {
  char* loads;
  char* stores;
  uint64_t* counter;
};
MGG_KERNEL void counted(Counted call) {
  const int lane = device::thread() % lanes, worker = lane / 4;
  const device::Pack whole = device::load_pack(call.loads + 16 * lane);                      // 16 sectors, 4 lines
  const device::Pack part = device::load_pack(call.loads + 80 * worker + 16 * (lane % 4));  // eight spans of 64 bytes
  device::store_pack(device::shared() + 16 * device::thread(), whole);  // shared memory is not counted
  device::store_pack(call.stores + 16 * lane, device::load_pack(device::shared() + 16 * device::thread()));
  device::copy_pack(device::shared() + 16 * device::thread(), call.loads);  // 32 of the same pack
  device::commit_copies();
  device::wait_copies<0>();
  for (int again = 0; again < 3 - lane; ++again) device::fence();  // 3 + 2 + 1
  device::add(call.counter, part.word[0] ? 1 : 2);                 // 32
  if (lane == 0) device::lower(call.counter + 1, 0);
}

void play_counted(uint64_t seed) {
  alignas(128) static char loads[1024] = {}, stores[512];
  uint64_t counter[2] = {0, 1};
  const Counted call{loads, stores, counter};
  shim::run({{0, 3, 2 * lanes, 2 * lanes * 16, 2, [=] { counted(call); }}}, seed);
}

}  // namespace

void exercise(const std::string& name, int pes, uint64_t seed) {
  if (name == "counted") return play_counted(seed);
  std::vector<Board> boards(pes);
  std::vector<char*> bases;
  std::vector<shim::Launch> launches;
  std::memset(static_cast<void*>(boards.data()), 0, pes * sizeof(Board));
  int32_t wrong = 0;
  const bool ringing = name == "ring";
  for (int pe = 0; pe < pes; ++pe) {
    bases.push_back(reinterpret_cast<char*>(&boards[pe]));
    for (int round = 0; round < rounds; ++round)
      for (int lane = 0; lane < lanes; ++lane) boards[pe].rows[round][lane] = value_of(pe, round, lane);
    const Call call{&boards[pe], pe, pes, &wrong};
    launches.push_back({pe, ringing ? rounds : 1, lanes, 0, rounds, [=] { ringing ? ring(call) : fetch(call); }});
  }
  shim::forget_symmetric();
  shim::add_symmetric(bases, sizeof(Board));
  try {
    shim::run(launches, seed);
  } catch (...) {
    shim::forget_symmetric();
    throw;
  }
  shim::forget_symmetric();
  if (wrong) throw std::runtime_error(std::to_string(wrong) + " values are wrong");
}

}  // namespace mgg
