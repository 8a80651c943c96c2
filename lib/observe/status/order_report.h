// What each source contributes to a run, by stage: `trireme data order`, and `trireme check` if there are stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/data/order.h"

namespace tri {

struct SourceShare {
  int source = 0;                          // in OrderFields::sources
  int64_t samples = 0;                     // exact
  double first_epoch = 0, last_epoch = 0;  // epochs of its training samples before and after the stage
};

// The part of a stage that a run reaches.
struct StageShare {
  int64_t begin = 0, end = 0;             // training samples
  int64_t first_step = 0, last_step = 0;  // that have samples of it, counted from 1; two stages may share a step
  std::vector<SourceShare> sources;
};

// Returns the stages that a run of `config`, which is resolved, reaches; one if data.stages is empty.
std::vector<StageShare> stage_shares(const Config& config, const OrderFields& order);

// Returns "31.2 %", the share of the source's tokens that are trained as targets; "all" without a loss mask.
std::string trained_share(const OrderedSource& source);

std::string order_report(const Config& config, const OrderFields& order);
// The same as one JSON object: {samples, tokens, steps, stages [{first_sample, samples, first_token, tokens,
// first_step, last_step, sources [{path, samples, tokens, share, first_epoch, last_epoch}]}]}; with a loss mask a
// source also has trained_share.
std::string order_json(const Config& config, const OrderFields& order);

}  // namespace tri
