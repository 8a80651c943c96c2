// The typed run config. lib/config/fields.def defines fields, defaults, limits and consequences once. Errors are for
// the user to fix: one Error lists all of them, one per line, then "N errors".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "kernels/core/dtype.h"
#include "kernels/core/kinds.h"
#include "kernels/router.h"
#include "lib/config/kinds.h"
#include "lib/schedule/plan.h"

namespace tri {

inline constexpr int kMostRanks = 1 << 20;  // of a job, including planned and simulated ones

// A token file. Sources are mixed in proportion to their weights.
struct Source {
  std::string path;
  double weight = 1.0;
  bool operator==(const Source&) const = default;
};

// A part of a run with a mixture of its own (data.stages).
struct DataStage {
  int64_t until_tokens = 0;          // the tokens trained in the run when the part ends; 0: it lasts to the end
  std::vector<std::string> sources;  // token files
  std::vector<double> weights;       // of the sources; empty: all are 1
  bool operator==(const DataStage&) const = default;
};

// A token file that evaluations read whole.
struct NamedSource {
  std::string name, path;
  bool operator==(const NamedSource&) const = default;
};

// RunConfig, ModelConfig, DataConfig, ...: plain structs, one per section.
#define SECTION(type, name, title) struct type {
#define FIELD(type, name, default_value, allowed, consequence) type name = default_value;
#define FIXED_FIELD FIELD
#define FREE_FIELD FIELD
#define END_SECTION(type)                       \
  bool operator==(const type&) const = default; \
  }                                             \
  ;
#include "lib/config/fields.def"

struct Config {
#define SECTION(type, name, title) type name;
#define FIELD(type, name, default_value, allowed, consequence)
#define FIXED_FIELD FIELD
#define FREE_FIELD FIELD
#define END_SECTION(type)
#include "lib/config/fields.def"
  bool operator==(const Config&) const = default;
};

// Returns the token files of a run: data.sources, or those of data.stages, each once, with weight 1.
std::vector<Source> all_sources(const DataConfig& data);
// Whether samples must say where their documents start.
bool needs_documents(const DataConfig& data);

// Fills the sizes of the model whose 0 means "derived", as far as the others allow: kv_heads, head_dim, ffn_hidden,
// expert_hidden.
// resolve_config calls it, and so do readers of configs that an older version resolved, which lack newer sizes.
void fill_derived(ModelConfig& model);
// Lowers a model.window that is not below seq_len: to seq_len with a layer_pattern, else to 0, full attention.
void fit_window(ModelConfig& model);
bool has_qkv_bias(const ModelConfig& model);     // whether queries, keys and values have biases
int64_t padded_vocab(const ModelConfig& model);  // V: the vocabulary up to a multiple of kVocabMultiple

// A size of the model that parallel.tp must divide.
struct SizeOverTp {
  int64_t size = 0;
  std::string text;  // "model.heads 12"
};
std::vector<SizeOverTp> sizes_over_tp(const ModelConfig& model);

// Returns why GPUs can't multiply FP8 at a rank's sizes, which must be multiples of 16; none if they can. The sizes are
// those of the layers' linears (lib/model/layer_spec.h), named by config fields.
std::vector<std::string> fp8_obstacles(const ModelConfig& model, int micro_batch, int tp, int cp = 1);

// Returns run.device for a job on `kind`.
inline DeviceChoice device_choice(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? DeviceChoice::kCuda : DeviceChoice::kCpu;
}

// Whether an axis of `size` ranks whose transfers are `planned` (lib/engine/job_plan.h: not auto) copies into the
// peers' memory.
inline bool by_peer_copies(Transfers planned, int size) {
  TRI_REQUIRE(size == 1 || planned != Transfers::kAuto, "the transfers of an axis of {} ranks are not planned", size);
  return size > 1 && planned == Transfers::kCopies;
}
// Whether experts' rows are copied into peers' memory; false while parallel.ep_transfers is auto.
inline bool ep_by_copies(const Config& config) {
  return config.parallel.ep > 1 && config.parallel.ep_transfers == Transfers::kCopies;
}

// Returns the text of a config file. Fails with kUsage if it is missing or unreadable.
Result<std::string> read_config_text(const std::string& path);

// Parses a config. Fields that are not named keep their defaults. `overrides` are "section.key=value", applied in
// order; the last one wins. The value of a text field is used verbatim, any other as YAML. Paths and names may contain
// variables of this process's environment (environment.h), so only one rank of a job parses. Messages start with
// "file_name:line: " or "--set section.key=value: ". A removed setting (removed.h) is an error; only a file may have
// its neutral value, since config.yaml of an earlier version names every field.
Result<Config> parse_config(std::string_view yaml_text, const std::string& file_name,
                            const std::vector<std::string>& overrides);
// The same for a config that a run, perhaps of an earlier version, has saved: a removed setting keeps the default of
// its field, with a warning unless its value was the neutral one.
Result<Config> parse_saved_config(std::string_view yaml_text, const std::string& file_name);

// Whether one of the overrides, in the form that parse_config takes, sets `field`, such as "data.micro_batch".
bool names_field(const std::vector<std::string>& overrides, std::string_view field);

// Fills every field whose 0 or "" means "derived", and checks all rules over several fields. Each field must be within
// its own limits, as after parse_config. Resolving twice changes nothing. The meaning of `auto` also depends on the
// job's machines: lib/engine/job_plan.h.
Result<Config> resolve_config(Config config, int world_size);

// Returns the number of ranks for which to plan `parsed`: `requested`, or if that is 0 the size of its mesh. Fails with
// kUsage if parallel.dp 0 leaves it open, or if there are more than kMostRanks.
Result<int> planned_ranks(const Config& parsed, int requested);

// Writes every field of every section, except for a default that run.tokens or data.batch_ramp replaces; parse_config
// returns an equal Config.
std::string to_yaml(const Config& config);

// Returns one field's value by its name, "run.dir": text verbatim, any other value as in to_yaml. For scripts.
// Fails with kUsage if there is no such field.
Result<std::string> config_value(const Config& config, const std::string& name);

// Lists every field by section: default, allowed values, consequence.
std::string config_help();

}  // namespace tri
