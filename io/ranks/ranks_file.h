// ranks.h5: the times of all ranks of a run, by attempt and window. Any HDF5 program can read it, also while it grows:
//
//   /                      attribute schema: kRanksSchema; absent in files of earlier versions
//   /attempt_0001          a group per attempt of the run, in order. Attributes: attempt, schedule, quantities
//                          ("step,forward,..."), axes (slowest first: "pp,dp,tp", or "pp,dp,cp,tp" if cp exceeds 1;
//                          absent in files of earlier versions), mesh (their sizes), num_microbatches, chunks
//     first_step, last_step  (N) i64     of a window; last_step 0: this window and later ones are not written
//     time                   (N) f64     end of the window, seconds since 1970
//     times                  (N, pp, dp, tp, quantities) f32, seconds per step: rank_times.h
//     host, gpu              (pp, dp, tp) text
//     stage_flops            (pp) f64    per step and rank
//
// A writer may be killed at any moment. HDF5's structures are written once, before the file gets its name. After that
// only numbers are written, in places that are laid out already, and a window's last_step comes last. For a new
// attempt, and when the N windows are full, the file is laid out again under another name and replaces the old one. If
// it would grow beyond kMostBytes, neighbouring windows are merged into their means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/base/file.h"
#include "io/ranks/rank_times.h"

namespace tri {

inline constexpr int64_t kRanksSchema = 1;
inline constexpr const char* kRanksFile = "ranks.h5";  // in run.dir

// Reads the attempts present when the file was opened, and windows added since. Movable. Not thread-safe.
class RanksReader {
 public:
  // Fails if the file cannot be read (os_error ENOENT: there is none), or is not such a file.
  static Result<RanksReader> open(const std::string& path);

  int num_attempts() const { return static_cast<int>(attempts_.size()); }
  const RankMesh& mesh(int attempt) const { return at(attempt).mesh; }  // attempts count from 0
  // Returns the number of windows present now.
  Result<int64_t> num_windows(int attempt) const;
  Result<RankWindow> read(int attempt, int64_t window) const;
  // Returns the last `count` windows of an attempt, or fewer if there are fewer.
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

// Appends to the file, as the only writer. Movable. Not thread-safe.
class RanksWriter {
 public:
  static constexpr int64_t kMostBytes = int64_t{1} << 30;  // of all windows

  // Appends a new attempt to those in the file. A file that cannot be read is renamed to PATH.damaged, with a warning.
  static Result<RanksWriter> open(const std::string& path, const RankMesh& mesh, int64_t most_bytes = kMostBytes);

  // `window` must have mesh.world_size() ranks and at least one step.
  Result<void> append(const RankWindow& window);
  // Makes all windows durable. Fails if storage reports only now that it has not accepted them.
  Result<void> sync();

 private:
  Result<void> lay_out(int64_t windows);  // again, for so many windows

  std::string path_;
  RankMesh mesh_;
  int64_t most_bytes_ = kMostBytes;
  bool begun_ = false;  // this attempt is the last one of the file
  Descriptor file_;
  RanksReader::Attempt layout_;  // of this attempt
  int64_t used_ = 0;             // windows of it
};

}  // namespace tri
