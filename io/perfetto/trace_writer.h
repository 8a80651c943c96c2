// Writes a trace for Perfetto (ui.perfetto.dev and its trace processor): processes with tracks, on which slices nest,
// and flows from slice to slice. Protocol Buffers; names are written once.
// https://perfetto.dev/docs/reference/trace-packet-proto
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/base/file.h"
#include "io/base/protobuf.h"

namespace tri {

class PerfettoWriter {
 public:
  struct Argument {
    std::string_view name;
    std::variant<int64_t, std::string_view> value;
  };
  // A flow has a unique number; it goes from the slice that has it in `out` to the one that has it in `in`, which must
  // begin later.
  struct Flows {
    std::span<const uint64_t> out, in;
  };

  // Replaces the file at `path` in commit().
  static Result<PerfettoWriter> create(const std::string& path);

  // `id`: of the process, not 0. `labels` are shown next to the name. Returns the process's own track, above its other
  // tracks.
  uint64_t add_process(int id, std::string_view name, const std::vector<std::string>& labels);
  uint64_t add_track(uint64_t process, int order, std::string_view name);  // sorted by `order`

  // Times are nanoseconds of any one clock. On a track slices begin and end in the order of the calls; over all tracks
  // the times of the calls do not decrease.
  void begin(uint64_t track, int64_t time, std::string_view name, std::span<const Argument> arguments = {},
             const Flows& flows = {});
  void end(uint64_t track, int64_t time);
  void instant(uint64_t track, int64_t time, std::string_view name, std::span<const Argument> arguments = {});

  int64_t bytes() const { return bytes_; }
  Result<void> commit();

 private:
  explicit PerfettoWriter(AtomicFile file) : file_(std::move(file)) {}
  void event(int type, uint64_t track, int64_t time, std::string_view name, std::span<const Argument> arguments,
             const Flows& flows);
  void packet(ProtobufMessage& packet);
  // Returns the number of a name; adds a new one to `interned`, a list of (number, name) under `field`.
  static uint64_t number_of(std::map<std::string, uint64_t, std::less<>>& known, std::string_view name, int field,
                            ProtobufMessage& interned);

  AtomicFile file_;
  uint64_t last_track_ = 0;
  bool begun_ = false;
  int64_t bytes_ = 0;
  std::map<std::string, uint64_t, std::less<>> event_names_, argument_names_;
};

}  // namespace tri
