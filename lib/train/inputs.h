// What a job reads: token files and the tokenizer that names their tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/tokens/tokenizer.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/data/dataset.h"
#include "lib/parallel/mesh.h"

namespace tri {

struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Dataset> dataset;  // of a rank that reads (node_loader.h)
  OrderFields order;               // the same on all ranks

  int64_t num_samples(Split split) const { return SampleOrder(order).num_samples(split); }
};

// Opens config.data.sources and config.data.tokenizer, and checks that they and model.vocab belong together. For one
// process.
Result<void> open_inputs(const Config& config, Inputs& inputs);

// The same for a job: token files are opened by the ranks that read them, and by no other; these agree that they have
// the same contents as world rank 0's. Collective; the first error that any rank met, on all.
Result<void> open_inputs(const Config& config, const Mesh& mesh, Job& job, Inputs& inputs);

// Whether a run that has consumed so many samples goes on from a checkpoint in the order that it was begun in.
// `stored`: the checkpoint's word on that order (a text of to_text; none: it has none), `name`: its folder. A change
// is an error, unless config.checkpoint.accept_changes names every field that makes it: then it is logged.
Result<void> check_order(const Config& config, const OrderFields& now, const std::optional<std::string>& stored,
                         const std::string& name, int64_t consumed);

}  // namespace tri
