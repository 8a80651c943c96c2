// ranks.h5: the times of all ranks of a run, attempt after attempt, window after window. Any HDF5 program reads it,
// also while it grows:
//
//   /attempt_0001          a group an attempt of the run, in their order. Attributes: attempt, schedule, quantities
//                          ("step,forward,..."), axes (their names, slowest first: "pp,dp,tp"; absent in files of
//                          earlier versions, which have these), mesh (their sizes), num_microbatches, chunks
//     first_step, last_step  (N) i64     of a window; last_step 0: the window is not there, nor any behind it
//     time                   (N) f64     of its end, seconds since 1970
//     times                  (N, pp, dp, tp, quantities) f32, seconds a step: rank_times.h
//     host, gpu              (pp, dp, tp) text
//     stage_flops            (pp) f64    of a step, a rank
//
// A writer may be killed at any moment. HDF5's structures are written once, before the file takes its name; from then
// on only numbers are written, in places that are laid out already, and a window's last_step after all else of it. For
// a new attempt, and when the N windows are full, the file is laid out again under another name and takes the old one's
// place. Where it would grow beyond kMostBytes, neighbouring windows become one: their means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/base/file.h"
#include "io/ranks/rank_times.h"

namespace tri {

inline constexpr const char* kRanksFile = "ranks.h5";  // in run.dir

// Reads what was there when it was opened, and windows that came since. Movable.
class RanksReader {
 public:
  // Error: the file can't be read (os_error ENOENT: there is none), or is no such file.
  static Result<RanksReader> open(const std::string& path);

  int num_attempts() const { return static_cast<int>(attempts_.size()); }
  const RankMesh& mesh(int attempt) const { return at(attempt).mesh; }  // attempts count from 0
  // That are there by now.
  Result<int64_t> num_windows(int attempt) const;
  Result<RankWindow> read(int attempt, int64_t window) const;
  // The last `count` windows of an attempt, or as many as there are.
  Result<std::vector<RankWindow>> last(int attempt, int64_t count) const;

 private:
  friend class RanksWriter;
  struct Attempt {
    RankMesh mesh;
    int64_t capacity = 0;                                        // N
    int64_t first_step = 0, last_step = 0, time = 0, times = 0;  // where each dataset begins in the file
    int num_quantities = 0;
    std::vector<int> columns;  // [RankQuantity] its column; -1: the file has none
  };
  const Attempt& at(int attempt) const { return attempts_.at(static_cast<size_t>(attempt)); }
  static Attempt read_attempt(int64_t group, const std::string& path);

  std::string path_;
  InputFile file_;
  std::vector<Attempt> attempts_;
};

// Appends to the file, as the only writer. Movable.
class RanksWriter {
 public:
  static constexpr int64_t kMostBytes = int64_t{1} << 30;  // of all windows

  // Appends a new attempt to those in the file. A file that cannot be read is renamed to PATH.damaged, with a warning.
  static Result<RanksWriter> open(const std::string& path, const RankMesh& mesh, int64_t most_bytes = kMostBytes);

  // `window` has mesh.world_size() ranks and at least one step.
  Result<void> append(const RankWindow& window);
  // Makes all windows durable. Fails where storage reports only now that it has not taken them.
  Result<void> sync();

 private:
  Result<void> lay_out(int64_t windows);  // again, with room for so many more

  std::string path_;
  RankMesh mesh_;
  int64_t most_bytes_ = kMostBytes;
  bool begun_ = false;  // the last attempt of the file is this one
  Descriptor file_;
  RanksReader::Attempt layout_;  // of this attempt
  int64_t used_ = 0;             // windows of it
};

}  // namespace tri
