// Python classes of streamed chunks (runtime/streaming/chunk_stream.h) and of their sources.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <system_error>
#include <thread>

#include "python/module_host.h"
#include "runtime/streaming/chunk_stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace mgg;

class HostStream final : public HostExchange {
 public:
  HostStream(Flat<const uint8_t> steps, Flat<const int64_t> calls, uint64_t slots, int64_t slot_bytes,
             int64_t slot_count, int64_t row_bytes, std::shared_ptr<ChunkSource> source, bool ahead,
             std::optional<Flat<const uint64_t>> chain)
      : stream_({checked(structs<Step>(steps, "steps: not a whole number of structs"), slot_count),
                 {calls.data(), calls.data() + calls.size()},
                 reinterpret_cast<char*>(slots),
                 slot_bytes,
                 row_bytes,
                 ahead,
                 chain_of(chain)},
                std::move(source)) {}
  ChunkStream& exchange() override { return stream_; }
  void check(const std::vector<Chunk>& chunks, int64_t, int64_t row_bytes) const override {
    require(stream_.ended() < stream_.calls(), "stream: all calls of the pass have been made");
    require(row_bytes == stream_.row_bytes(), "stream: rows of another width");
    require(static_cast<int64_t>(chunks.size()) == 1 + stream_.rounds(), "stream: the pass has another call next");
    for (int64_t i = 0; i < stream_.rounds(); ++i) {
      const Chunk& chunk = chunks[i + 1];
      const Step& step = stream_.step(i);
      require(chunk.kind == Chunk::streamed && chunk.first_row == step.first_row && chunk.rows == step.rows,
              "stream: the pass has other chunks next");
    }
  }
  void close() {
    nb::gil_scoped_release release;
    stream_.stop();
  }

 private:
  static ChunkStream::Chain chain_of(const std::optional<Flat<const uint64_t>>& chain) {
    if (!chain) return {};
    require(chain->size() == 5 && chain->data()[0], "chain: five numbers");
    const uint64_t* at = chain->data();
    return {reinterpret_cast<ChunkStream::Signals*>(at[0]), reinterpret_cast<const ChunkStream::Signals*>(at[1]),
            reinterpret_cast<const ChunkStream::Signals*>(at[2]), reinterpret_cast<const char*>(at[3]), at[4]};
  }
  static std::vector<Step> checked(std::vector<Step> steps, int64_t slot_count) {
    for (const Step& step : steps) require(step.slot < slot_count, "stream: no such slot");
    return steps;
  }
  ChunkStream stream_;
};

// Translates errors of the system into OSError with their number.
void as_os_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
  }
}

}  // namespace

void bind_streams(nb::module_& m) {
  nb::register_exception_translator(as_os_error);
  nb::class_<Pace>(m, "Pace", "Limits the rate of transfers to and from stores, in bytes per second in sum.")
      .def(nb::init<double>(), "rate"_a)
      .def(
          "took",
          [](Pace& self, int64_t nbytes, double seconds) {
            nb::gil_scoped_release release;
            using std::chrono::duration_cast;
            const std::chrono::duration<double> gone(seconds);
            const auto began = Pace::Clock::now() - duration_cast<Pace::Clock::duration>(gone);
            std::this_thread::sleep_until(self.due(nbytes, began));
          },
          "nbytes"_a, "seconds"_a, "Sleep until bytes are there whose transfer began so many seconds ago.");
  nb::class_<ChunkSource>(m, "ChunkSource", "Rows of a store, in memory or in a file.");
  m.def(
      "memory_source",
      [](uint64_t address, int64_t rows, int64_t row_bytes,
         std::shared_ptr<Pace> pace) -> std::shared_ptr<ChunkSource> {
        return std::make_shared<MemorySource>(reinterpret_cast<const char*>(address), rows, row_bytes,
                                              std::move(pace));
      },
      "address"_a, "rows"_a, "row_bytes"_a, "pace"_a.none() = nb::none(),
      "Return rows in memory that stays. pace: None: they are read as fast as they can be.");
  m.def(
      "file_source",
      [](int file, int64_t offset, int64_t rows, int64_t row_bytes, bool direct, const std::string& name,
         std::shared_ptr<Pace> pace) -> std::shared_ptr<ChunkSource> {
        return std::make_shared<FileSource>(file, offset, rows, row_bytes, direct, name, std::move(pace));
      },
      "file"_a, "offset"_a, "rows"_a, "row_bytes"_a, "direct"_a = false, "name"_a = "",
      "pace"_a.none() = nb::none(),
      "Return rows of an open file, which stays open. direct: it was opened with O_DIRECT. name: for errors.");
  nb::class_<HostStream, HostExchange>(m, "ChunkStream", R"(Brings the chunks of one pass into slots, ahead of the sums.

steps: structs of the pass as uint8. calls: int64, the number of steps of each call. slots: address of slot_count slots,
slot_bytes each, which stay. row_bytes: between rows of a slot. ahead: chunks are loaded before they are waited for.
chain: None, or uint64 [5]: addresses of the two words of this rank, of the rank before and of the rank after in the
chain, and of the slots of the rank before, each 0 where there is no such rank; and the number of steps of the chain's
passes so far. The words are zero at first.)")
      .def(nb::init<Flat<const uint8_t>, Flat<const int64_t>, uint64_t, int64_t, int64_t, int64_t,
                    std::shared_ptr<ChunkSource>, bool, std::optional<Flat<const uint64_t>>>(),
           "steps"_a.noconvert(), "calls"_a.noconvert(), "slots"_a, "slot_bytes"_a, "slot_count"_a, "row_bytes"_a,
           "source"_a, "ahead"_a = true, "chain"_a.noconvert().none() = nb::none())
      .def("close", &HostStream::close, "End the thread that loads, wherever the pass is.")
      .def_prop_ro("ended", [](HostStream& self) { return self.exchange().ended(); }, "Number of calls that have ended.");
}
