// `trireme plan`: the layouts of a model on a cluster that fit into memory, ranked by predicted tokens per second.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/simulate/step_memory.h"
#include "lib/simulate/step_model.h"

namespace tri {

struct PlannedLayout {
  Workload workload;
  StepPrediction step;
  int64_t memory_bytes = 0;  // of the fullest rank, from the program's own plan, as in simulate and check
};

struct PlanSearch {
  std::vector<PlannedLayout> best;  // best first
  int64_t tried = 0;                // layouts that the config's rules allow
  int64_t fitted = 0;               // those that fit into memory, by an estimate
  double seconds = 0;               // duration of the search
  std::vector<std::string> notes;   // sentences that qualify the answer (plan_notes)
};

// Returns `parsed` with its derived fields, and with tp, cp, pp and dp of 1: the starting point of the search. Does not
// check its layout, or that its micro-batch divides the batch. Fails with kUsage, like resolve_config.
Result<Config> without_layout(Config parsed);

// Whether a search chooses a field ("parallel.tp") itself, whatever the config says.
bool chosen_by_search(std::string_view field);

// Fields that a search keeps; it tries all values of the others.
struct PinnedLayout {
  std::optional<int> tp, cp, pp, dp, ep, chunks, zero;
  std::optional<Schedule> schedule;
  std::optional<std::string> layers_per_chunk;
  std::optional<Recompute> recompute;
  bool buckets = false;  // keeps parallel.bucket_elements
};
// Returns the fields of `config` that `overrides` ("section.key=value") name. parallel.dp: 0 and recompute: auto are
// not pinned.
PinnedLayout pinned_by(const std::vector<std::string>& overrides, const Config& config);

// The limits of a search. The config's batch, model and optimizer are kept.
struct PlanOptions {
  int ranks = 0;
  int keep = 10;  // layouts to return; does not affect the first one
  int max_chunks = 16;
  int micro_batch = 0;       // 0: any up to max_micro_batch
  int max_micro_batch = 64;  // the config's own is tried as well
  PinnedLayout pinned;
  std::shared_ptr<const DocumentSamples> documents;  // as in Workload
};

// Searches the layouts for `config`, which must be resolved. Of its parallel section it keeps overlaps, transfers and
// the axes other than those of a layout; it also keeps the precision. parallel.bucket_elements may grow by powers of
// two: a bucket's ring has latency in proportion to dp, so small buckets of many replicas are slow. Fails with kUsage
// if no layout fits into memory, or none divides the model or matches what is pinned.
Result<PlanSearch> search_layouts(const Config& config, const Cluster& cluster, const PlanOptions& options);

// Returns what other numbers of ranks or layers would give, if that matters: far fewer ranks that are hardly slower, or
// a nearby number that divides better.
std::vector<std::string> plan_notes(const Config& config, const Cluster& cluster, const PlanOptions& options,
                                    const PlanSearch& search);
// The same where no layout was found: "\n" and what nearby numbers of layers or ranks would give, or "".
std::string without_layout_note(const Config& config, const Cluster& cluster, const PlanOptions& options);

// Returns whether the layout's step equals the best one's within the cluster file's uncertainty.
bool equals_best(const PlannedLayout& layout, const PlannedLayout& best, const Cluster& cluster);

// Formats a table of the best layouts, how the first and the second one differ, and what limits each.
std::string to_text(const PlanSearch& search, const Cluster& cluster);
std::string to_json(const PlanSearch& search, const Cluster& cluster);

// Returns `config` with the layout's fields, and with its buckets.
Config with_planned(Config config, const Workload& layout);

// Returns `config` with the cluster file's constants of the machines, for the estimates of `trireme check`, and a
// rank's speed as `step` predicts it. Keeps fields that the file omits or `overrides` names.
Config on_cluster(Config config, const Cluster& cluster, const StepPrediction& step,
                  const std::vector<std::string>& overrides);

}  // namespace tri
