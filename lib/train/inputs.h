// The inputs of a job: token files and the tokenizer of their tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/tokens/tokenizer.h"
#include "lib/comm/job/job.h"
#include "lib/config/config.h"
#include "lib/data/dataset.h"
#include "lib/parallel/mesh.h"

namespace tri {

// A file of data.validation.
struct ValidationInput {
  std::string name;
  std::optional<Dataset> dataset;  // only on ranks that read
  OrderFields order;               // the same on all ranks

  int64_t num_samples() const { return SampleOrder(order).num_samples(Split::kWhole); }
};

struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Dataset> dataset;  // only on ranks that read (node_loader.h)
  OrderFields order;               // the same on all ranks
  std::vector<ValidationInput> validation;

  int64_t num_samples(Split split) const { return SampleOrder(order).num_samples(split); }
  // Returns whether training samples may have masked targets (kNoTarget). The same on all ranks.
  bool has_masked_targets(const Config& config) const;
};

// Opens the token files of config.data (sources or stages, and validation) and data.tokenizer, and checks that they and
// model.vocab match. Fails with kFile or
// kUsage. Not collective.
Result<void> open_inputs(const Config& config, Inputs& inputs);

// The same for a job: only the ranks that read token files open them, and they agree that the contents are those of
// world rank 0. All ranks return the first error of any rank. Collective.
Result<void> open_inputs(const Config& config, const Mesh& mesh, Job& job, Inputs& inputs);

// Checks that a run that has consumed `consumed` samples resumes in the sample order of its checkpoint. `stored`: the
// order saved in the checkpoint (a text of to_text; none: it has none); `name`: the checkpoint's folder. Fails if the
// order has changed, unless config.checkpoint.accept_changes names every changed field: then it logs the change.
Result<void> check_order(const Config& config, const OrderFields& now, const std::optional<std::string>& stored,
                         const std::string& name, int64_t consumed);

}  // namespace tri
