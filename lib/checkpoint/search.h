// Which checkpoint a run goes on from. World rank 0 alone lists the folder and reads manifests; the others are told
// what they need. Nothing of a rank's memory takes part, so a checkpoint that the run may not go on from is refused
// before there is any.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/folder.h"
#include "lib/comm/job.h"

namespace tri {

inline constexpr const char* kFp8History = "fp8_history";  // a list of a checkpoint: RunProgress::fp8_history

// How far a run has come.
struct RunProgress {
  int64_t steps = 0, samples = 0;  // completed, consumed
  // The largest magnitudes that FP8's scales are made of after these steps, by slot (lib/model/fp8_tensors.h); empty:
  // there are none. Rank 0's is stored.
  std::vector<float> fp8_history = {};
};

// A checkpoint that can be read and may be loaded, as far as its manifest says.
struct FoundCheckpoint {
  std::string folder;
  RunProgress progress;
  bool weights_alone = false;
};

class CheckpointSearch {
 public:
  // Asked on rank 0 before a checkpoint is found; an error ends the search.
  using MayLoad = std::function<Result<void>(const std::string& folder, const Manifest& manifest)>;

  // Of the folder `dir`, which this start of the run, `attempt`, has locked.
  CheckpointSearch(std::string dir, std::string attempt, Job& job, MayLoad may = {});

  // Finds the newest checkpoint that can be read, and the next older one each time it is called again; the log says why
  // others are passed over. None: the folder holds no checkpoint. Error: it holds some, and none that is left can be
  // read; this one may not be loaded; kDrained: storage does not answer, also after several tries, so that what is
  // damaged and what is not can't be known. Collective; the same on all ranks.
  Result<void> next();

  const std::optional<FoundCheckpoint>& found() const { return found_; }
  // Of what was found, on rank 0 until next() or forget_manifest(); else null. It may be large.
  const Manifest* manifest() const { return manifest_ ? &*manifest_ : nullptr; }
  void forget_manifest() { manifest_.reset(); }
  const std::string& dir() const { return dir_; }

 private:
  Result<void> list();

  const std::string dir_, attempt_;
  Job& job_;
  const MayLoad may_load_;
  bool listed_ = false;
  std::vector<CheckpointCandidate> candidates_;  // rank 0: newest first
  size_t next_ = 0;                              // of them
  std::optional<Manifest> manifest_;
  std::optional<FoundCheckpoint> found_;
};

// The FP8 history that a checkpoint holds; empty: none. Checkpoints of earlier versions hold it as a text of eight
// hexadecimal digits a number, which may end in " guard " and what layers were excluded from FP8, which is ignored.
// Error: the text is not of this form.
Result<std::vector<float>> fp8_history_of(const CheckpointInfo& info);

// What ends a run that could not load: where the trouble may pass, so that it is started again and forgets nothing.
Error load_error(const Error& error);

}  // namespace tri
