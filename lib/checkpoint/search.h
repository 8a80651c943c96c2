// Finds the checkpoint from which a run resumes. World rank 0 alone lists the folder and reads manifests, and sends the
// others what they need. It needs none of a rank's memory, so a checkpoint that the run may not resume from is refused
// before memory is allocated.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/folder.h"
#include "lib/comm/job/job.h"

namespace tri {

// The names of RunProgress::fp8_history, recent_steps and router_bias in a checkpoint.
inline constexpr const char* kFp8History = "fp8_history";
inline constexpr const char* kRecentSteps = "recent_steps";
inline constexpr const char* kRouterBias = "router_bias";

// How far a run has progressed.
struct RunProgress {
  int64_t steps = 0, samples = 0;  // completed, consumed
  // The remembered amax from which FP8 scales are derived after these steps, by slot (lib/model/fp8_tensors.h); empty:
  // there are none. Rank 0's are stored.
  std::vector<float> fp8_history = {};
  std::vector<float> recent_steps = {};  // SpikeWindow::values (lib/train/spikes.h); empty: spikes are not skipped
  std::vector<float> router_bias = {};   // of layers with experts, by layer and expert; empty: there are none
};

// A checkpoint that can be read and may be loaded, according to its manifest.
struct FoundCheckpoint {
  std::string folder;
  RunProgress progress;
  bool weights_alone = false;
  bool has_average = false;  // of the weights (optimizer.ema)
};

class CheckpointSearch {
 public:
  // Called on rank 0 before a checkpoint is accepted; an error ends the search.
  using MayLoad = std::function<Result<void>(const std::string& folder, const Manifest& manifest)>;

  // Searches the folder `dir`, which `attempt`, this start of the run, has locked.
  CheckpointSearch(std::string dir, std::string attempt, Job& job, MayLoad may = {});

  // Finds the newest checkpoint that can be read, and with each further call the next older one; logs why others are
  // skipped. found() is none if the folder holds no checkpoint. Fails if it holds checkpoints and none of the rest can
  // be read, if `may` refuses this one, or with kDrained if storage does not answer after several tries, so that damage
  // cannot be judged. Collective; all ranks get the same result.
  Result<void> next();

  const std::optional<FoundCheckpoint>& found() const { return found_; }
  // Returns the manifest of found() on rank 0, until next() or forget_manifest(); else null. It may be large.
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
  size_t next_ = 0;                              // index of the next candidate
  std::optional<Manifest> manifest_;
  std::optional<FoundCheckpoint> found_;
};

// Returns the FP8 history of a checkpoint; empty: it has none. Earlier versions stored a text of eight hexadecimal
// digits per number, which may end in " guard " and the layers excluded from FP8, which is ignored. Fails if the text
// has another form.
Result<std::vector<float>> fp8_history_of(const CheckpointInfo& info);

std::vector<float> router_bias_of(const CheckpointInfo& info);  // empty: it has none

// Returns the error that ends a run which could not load. It is restartable if the trouble is transient.
Error load_error(const Error& error);

}  // namespace tri
