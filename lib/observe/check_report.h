// `trireme check`: what a config will do on a given number of ranks, without starting it.
#pragma once

#include <string>

#include "io/tokens/tokenizer.h"
#include "lib/data/dataset.h"
#include "lib/engine/job_plan.h"

namespace tri {

// Topology, the plan, batch arithmetic, layers, parameters, bytes by name, FLOPs, bubble, traffic over dp, and how
// often to save (estimates.h). `config` resolved for `ranks`, `plan` made of it and of facts on paper (job_plan.h). The
// bytes come from running the set-up on a measuring arena: what a run's own table prints.
std::string check_report(const Config& config, const JobPlan& plan, int ranks);

// The tokenizer against model.vocab, and a line a source: tokens, samples, its share of the run's samples, and how
// often the run passes through those that it trains on. `dataset`: of config.data.sources.
std::string data_report(const Config& config, const Tokenizer& tokenizer, const Dataset& dataset);

// The same for machines: one object on one line; app/JSON.md names its fields. `tokenizer` and `dataset` may be null.
std::string check_json(const Config& config, const JobPlan& plan, const Tokenizer* tokenizer, const Dataset* dataset);

}  // namespace tri
