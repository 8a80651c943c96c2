// `trireme check`: reports what a config will do on a given number of ranks, without starting it.
#pragma once

#include <string>

#include "io/tokens/tokenizer.h"
#include "lib/data/dataset.h"
#include "lib/engine/job_plan.h"

namespace tri {

enum class CheckDetail {
  kSummary,
  kAll,  // with exact counts, and the bytes of each rank by name
};

// Parameters, memory, bubble, batch arithmetic, FLOPs, traffic over dp and how often to save (estimates.h), then
// topology, layers and the plan, warnings last. `config` resolved for `ranks`, `plan` made of it and of facts on paper
// (job_plan.h). The bytes come from running the set-up on a measuring arena: what a run's own table prints.
std::string check_report(const Config& config, const JobPlan& plan, int ranks,
                         CheckDetail detail = CheckDetail::kSummary);

// Compares the tokenizer with model.vocab, and prints one line per source: tokens, samples, its share of the run's
// samples, and how many epochs of its training samples the run consumes. `dataset`: of config.data.sources.
std::string data_report(const Config& config, const Tokenizer& tokenizer, const Dataset& dataset);

// Returns the same as one JSON object on one line; app/JSON.md lists its fields. `tokenizer` and `dataset` may be null.
std::string check_json(const Config& config, const JobPlan& plan, const Tokenizer* tokenizer, const Dataset* dataset);

}  // namespace tri
