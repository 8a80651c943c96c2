// Batches, and how they are copied from token files into the memory that the device copies from.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "io/base/mutex.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/dims.h"
#include "lib/config/batch_sizes.h"
#include "lib/data/batch_ring.h"
#include "lib/data/dataset.h"
#include "lib/data/documents.h"
#include "lib/parallel/sequence_chunks.h"

namespace tri {

// A step trains on GB consecutive global samples. Microbatch m of dp rank d holds samples (m·dp + d)·B + j of them, so
// neither the samples of a step nor their order over microbatches depend on dp.
struct BatchShape {
  int global_batch = 1, micro_batch = 1;
  int dp_rank = 0, dp_size = 1;
  int num_microbatches() const { return global_batch / (micro_batch * dp_size); }
  int samples() const { return num_microbatches() * micro_batch; }  // of one dp rank
  // Returns the same without the last microbatches, as far as they have none of the first `samples` >= 1 samples.
  BatchShape for_samples(int64_t samples) const {
    BatchShape shape = *this;
    const int64_t of_microbatch = int64_t{micro_batch} * dp_size;
    shape.global_batch = static_cast<int>(std::min(int64_t{global_batch}, round_up(samples, of_microbatch)));
    return shape;
  }
};

// Host memory for a step's tokens, (M, B, T / cp) each, with M of that step; empty if they are not needed.
struct StepTokens {
  std::span<int32_t> inputs, targets;  // of samples beyond the last: see LoaderPart::num_samples
  // With data.document_mask: the position in its sample at which each token's document starts, (M, B, T) of whole
  // samples.
  std::span<int32_t> document_starts = {};
  std::vector<AttentionPairs> pairs = {};  // [LoaderPlan::windows] of this rank's samples
};

// Batches of one split, the first `batches` of its samples.
struct LoaderPart {
  const Dataset* dataset = nullptr;  // only on the member that reads
  Split split = Split::kWhole;
  int64_t batches = 0;
  // Samples from this number on are the first ones again, without targets: they fill the last microbatch, after which
  // the batch ends, and real tokens do not all choose the same expert. 0: no limit.
  int64_t num_samples = 0;
};

// Whether a ring also holds where documents start (data.document_mask). kOnly: instead of tokens, if its members are
// ranks of middle pipeline stages; nothing is then read from token files.
enum class Documents { kIgnored, kRead, kOnly };

// What the ranks that share a ring agree on, and this rank's part in it.
struct LoaderPlan {
  BatchShape shape;             // of this rank; of the largest step
  std::vector<int> dp_ranks;    // the dp ranks whose samples a slot holds, each once; this rank's is among them
  int seq_len = 1;              // T
  Axis cp;                      // the ranks that divide each sample, and this rank's place among them
  int member = 0, members = 1;  // member 0 reads for all
  Split split = Split::kTrain;  // the split to read
  int64_t first_step = 0, end_step = 0;  // [first, end)
  // The sizes of the steps, the first of which begins at `first_sample`. None: each has shape.global_batch samples, and
  // step s begins at sample s · shape.global_batch.
  std::optional<BatchSizes> sizes;
  int64_t first_sample = 0;
  int64_t period = 0;       // after so many steps the samples repeat from step 0; 0: never
  int64_t num_samples = 0;  // as in LoaderPart
  Documents documents = Documents::kIgnored;
  std::vector<int> windows = {};       // of attention, for which pairs are counted; needs documents
  std::vector<LoaderPart> parts;       // their batches replace those above: one part after the other, repeating
  int prefetch = 1;                    // steps in the ring
  FlightRecorder* recorder = nullptr;  // of this rank; null: none

  BatchRing::Shape ring() const;
  // Elements of a slot for each sample: its tokens, then where its documents start.
  int64_t sample_tokens() const { return documents == Documents::kOnly ? 0 : int64_t{seq_len} + 1; }
  int64_t sample_elements() const { return sample_tokens() + (documents == Documents::kIgnored ? 0 : seq_len); }
  SequenceChunks chunks() const { return {seq_len, cp}; }
};

// One rank's side of a ring of batches. Member 0 has a thread that reads every sample of a step once, (dp ranks, M, B,
// T + 1), with masks (target_mask.h), and the T starts of its documents after each sample if they are wanted. Each
// member has a thread that copies its rank's tokens into the unused one of two buffers. So a step finds its tokens
// ready for the device while the next ones are being loaded.
class Loader {
 public:
  // `memory`: BatchRing::bytes(plan.ring()), zero before any member begins; it and the buffers outlive the loader.
  // `dataset`: only member 0 needs it, unless there are parts; the loader keeps copies of datasets. next() calls
  // `check` now and then while it waits; an exception from it ends the wait.
  Loader(const Dataset* dataset, LoaderPlan plan, void* memory, std::array<StepTokens, 2> buffers,
         std::function<void()> check = nullptr);
  // The members may end in any order. Those that still wait for a step that was not read then fail, unless an exception
  // unwinds, whose message comes first. If storage does not answer a read within kReaderTimeout, the reading thread is
  // detached; it touches nothing of the loader when it returns.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the next step's tokens, valid until the following call. Throws Fatal with the reading member's status and
  // message. Call only from the training thread.
  const StepTokens& next();
  // Returns how many targets that are not masked (!= kNoTarget) the following call of next() returns; 0 if it returns
  // none, or no step is left. Waits and fails like next(), whose result stays valid.
  int64_t next_targets();
  double wait_seconds() const { return wait_seconds_; }  // spent in next() and next_targets() so far
  int64_t bytes_read() const { return bytes_read_; }     // read by this rank from files for the steps returned so far

 private:
  class Reader;
  static constexpr std::chrono::seconds kReaderTimeout{2};

  int64_t num_batches() const { return plan_.end_step - plan_.first_step; }
  void take_all();
  void take(int64_t batch, const BatchShape& shape);
  void await(int64_t batch) TRI_REQUIRES(mutex_);

  const LoaderPlan plan_;
  BatchRing ring_;
  const std::array<StepTokens, 2> buffers_;
  std::array<StepTokens, 2> filled_parts_;  // of the buffers: what their batches fill
  const std::function<void()> check_;
  std::atomic<bool> closing_ = false;

  Mutex mutex_;
  ConditionVariable changed_;
  int64_t filled_ TRI_GUARDED_BY(mutex_) = 0;          // batches copied into the buffers
  int64_t released_ TRI_GUARDED_BY(mutex_) = 0;        // batches whose buffer may be overwritten
  int64_t read_for_[2] TRI_GUARDED_BY(mutex_) = {};    // bytes, of the batches in the buffers
  int64_t targets_[2] TRI_GUARDED_BY(mutex_) = {};     // that are not masked, of the batches in the buffers
  std::exception_ptr failure_ TRI_GUARDED_BY(mutex_);  // of the consumer thread

  int64_t batch_ = 0;  // of the next call of next()
  int64_t bytes_read_ = 0;
  double wait_seconds_ = 0;
  std::shared_ptr<Reader> reader_;  // of member 0, shared with its thread
  std::thread reading_, consumer_;
};

}  // namespace tri
