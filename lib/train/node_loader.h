// Provides the tokens of a rank's steps. The ranks of a node that need tokens, those of the first and the last stage
// (with data.document_mask of every stage, which needs the documents), share a ring of batches that one of them fills
// (data.shared), so that a node reads every byte once, and no tokens if it has only middle stages.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/device.h"
#include "lib/comm/job/shared_window.h"
#include "lib/config/config.h"
#include "lib/data/loader.h"
#include "lib/parallel/mesh.h"

namespace tri {

// Returns those of the world ranks `node_ranks` of a node that share this rank's ring, including itself, ascending; the
// first of them reads. Empty if this rank's stage needs no tokens.
std::vector<int> ring_members(const Config& config, const Mesh& mesh, const std::vector<int>& node_ranks);
// Whether this rank reads token files, for itself or for its node.
bool reads_tokens(const Config& config, const Mesh& mesh, const std::vector<int>& node_ranks);

// What a loader needs. All references outlive the loader.
struct NodeLoaderContext {
  const Config& config;  // resolved
  const Mesh& mesh;
  Job* job = nullptr;           // may be null on a mesh of one rank
  std::vector<int> node_ranks;  // the world ranks of this node
  Device& device;
  const Dataset* dataset;  // may be null on ranks for which reads_tokens() is false
  Split split = Split::kTrain;
  int64_t first_step = 0, steps = 0;  // data steps [first_step, first_step + steps)
  std::optional<BatchSizes> sizes;    // of the steps; none: all have data.global_batch samples
  int64_t first_sample = 0;           // with sizes: of the first step
  int64_t period = 0;                 // after so many steps the samples repeat from step 0; 0: never
  int64_t num_samples = 0;            // as in LoaderPart
  std::vector<LoaderPart> parts;      // see LoaderPlan
  std::vector<int> windows = {};      // see LoaderPlan
};

class NodeLoader {
 public:
  // Collective over the node.
  explicit NodeLoader(const NodeLoaderContext& context);

  // Returns the next step's tokens in host memory of the device's kind, valid until the following call; empty if this
  // rank's stage needs none. Throws Fatal with the reading rank's message, or with the device's fault.
  StepTokens next();
  // Returns how many targets the following call will return that are not masked (Loader::next_targets).
  int64_t next_targets() { return loader_ ? loader_->next_targets() : 0; }
  double wait_seconds() const { return loader_ ? loader_->wait_seconds() : 0; }
  int64_t bytes_read() const { return loader_ ? loader_->bytes_read() : 0; }  // by this rank, for the steps so far

 private:
  std::unique_ptr<SharedWindow> window_;           // null, like the rest, on stages without tokens
  std::unique_ptr<HostBuffer<int32_t>> h_tokens_;  // two buffers of what its stage needs
  std::unique_ptr<Loader> loader_;
};

}  // namespace tri
