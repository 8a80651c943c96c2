#include "lib/train/inputs.h"

#include <fmt/ranges.h>
#include <algorithm>

#include "io/base/hash.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/tokens/prepare.h"
#include "kernels/core/dims.h"
#include "lib/config/changes.h"
#include "lib/train/node_loader.h"

namespace tri {

template <class Archive>
void fields(Archive& archive, OrderedSource& source) {
  archive(source.path, source.weight, source.fingerprint, source.shuffle_key, source.tokens, source.trained);
}
template <class Archive>
void fields(Archive& archive, OrderedStage& stage) {
  archive(stage.end, stage.sources, stage.weights);
}
template <class Archive>
void fields(Archive& archive, OrderFields& order) {
  archive(order.seed, order.validation_fraction, order.seq_len, order.sources, order.stages, order.packing);
}

namespace {

Result<void> open_job_tokenizer(const Config& config, Inputs& inputs) {
  if (all_sources(config.data).empty())
    return usage_error("data.sources: training needs at least one token file; make one with `trireme data prepare`");
  auto tokenizer = open_tokenizer(config.data.tokenizer, OtherClass::kWarn);
  if (!tokenizer) return tokenizer.error();
  inputs.tokenizer = std::move(tokenizer).value();
  if (inputs.tokenizer->vocab_size() > config.model.vocab)
    return usage_error("model.vocab: {} is smaller than the {} tokens of data.tokenizer {}; set model.vocab: {}",
                       config.model.vocab, inputs.tokenizer->vocab_size(), config.data.tokenizer,
                       inputs.tokenizer->vocab_size());
  return {};
}

// Checks that the files were prepared with the tokenizer of the job.
Result<void> check_tokenizer(const Config& config, const Tokenizer& tokenizer, const std::string& path) {
  const auto made_with = prepared_with(path);
  if (!made_with) return made_with.error();
  const TokenOrigin& origin = made_with.value();
  if (origin.fingerprint.empty() || origin.fingerprint == tokenizer.fingerprint()) return {};
  if (origin.tokenizer == config.data.tokenizer)
    return usage_error(
        "data.tokenizer: {} ({}) is the one that prepared {}, but it was {} then: since then the file or a file in its "
        "folder (tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json) has changed, or this "
        "version of trireme reads them differently; prepare {} again, or continue with the version of trireme and the "
        "files that prepared it",
        config.data.tokenizer, tokenizer.fingerprint(), path, origin.fingerprint, path);
  return usage_error("data.tokenizer: {} ({}), but {} was prepared with {} ({}); set data.tokenizer to that one",
                     config.data.tokenizer, tokenizer.fingerprint(), path,
                     origin.tokenizer.empty() ? "another" : origin.tokenizer, origin.fingerprint);
}

// Returns data.stages with the indices of their sources in `sources`.
std::vector<OrderedStage> ordered_stages(const Config& config, const std::vector<SourceSpec>& sources) {
  std::vector<OrderedStage> stages;
  for (const DataStage& stage : config.data.stages) {
    const bool last = &stage == &config.data.stages.back();
    OrderedStage& made = stages.emplace_back();
    made.end = last ? 0 : ceil_div(stage.until_tokens, int64_t{config.model.seq_len});
    for (const std::string& path : stage.sources)
      made.sources.push_back(static_cast<int>(std::ranges::find(sources, path, &SourceSpec::path) - sources.begin()));
    made.weights = stage.weights.empty() ? std::vector<double>(stage.sources.size(), 1.0) : stage.weights;
  }
  return stages;
}

Result<void> open_sources(const Config& config, Inputs& inputs) {
  std::vector<SourceSpec> sources;
  for (const Source& source : all_sources(config.data)) {
    if (auto known = check_tokenizer(config, *inputs.tokenizer, source.path); !known) return known;
    sources.push_back({source.path, source.weight});
  }
  auto dataset = Dataset::open(sources, config.model.seq_len, config.data.validation_fraction, config.data.seed,
                               config.model.vocab,
                               {.stages = ordered_stages(config, sources),
                                .packing = config.data.packing,
                                .field = config.data.stages.empty() ? "data.sources" : "data.stages",
                                .documents = needs_documents(config.data),
                                .eod_loss = config.data.eod_loss});
  std::vector<std::string> problems;
  if (!dataset) problems.push_back(dataset.error().message);
  constexpr uint64_t kSeed = 0;  // every run evaluates the same samples
  for (const NamedSource& source : config.data.validation) {
    if (auto known = check_tokenizer(config, *inputs.tokenizer, source.path); !known) return known;
    auto opened = Dataset::open(
        {{source.path, 1.0}}, config.model.seq_len, 0, kSeed, config.model.vocab,
        {.field = "data.validation", .documents = needs_documents(config.data), .eod_loss = config.data.eod_loss});
    if (!opened) {
      problems.push_back(opened.error().message);
      continue;
    }
    const OrderFields order = opened.value().order_fields();
    inputs.validation.push_back({source.name, std::move(opened).value(), order});
  }
  if (!problems.empty()) return Error{fmt::format("{}", fmt::join(problems, "\n")), ExitCode::kFile};
  inputs.dataset = std::move(dataset).value();
  inputs.order = inputs.dataset->order_fields();
  return {};
}

// What world rank 0 found, with which the other ranks compare their sources.
struct FoundSources {
  std::string host;
  std::vector<OrderFields> orders;  // of the run, then of data.validation
};
template <class Archive>
void fields(Archive& archive, FoundSources& found) {
  archive(found.host, found.orders);
}

// Returns the orders that a rank has found.
std::vector<OrderFields> orders_of(const Inputs& inputs) {
  std::vector<OrderFields> orders{inputs.order};
  for (const ValidationInput& input : inputs.validation) orders.push_back(input.order);
  return orders;
}

// Checks that this rank's sources have the same contents as world rank 0's.
Result<void> check_same(const FoundSources& of_rank_0, const std::vector<OrderFields>& mine) {
  for (size_t set = 0; set < mine.size(); ++set)
    for (size_t i = 0; i < mine[set].sources.size(); ++i) {
      const OrderedSource &first = of_rank_0.orders[set].sources[i], &source = mine[set].sources[i];
      if (source.fingerprint == first.fingerprint) continue;
      return file_error(
          "{}: {} on {} has {} tokens, fingerprint {}, but world rank 0 on {} reads {} with {} tokens, fingerprint {}: "
          "one of them is a stale copy; copy .bin, .idx and .json again, or name files that all nodes see",
          set > 0                        ? "data.validation"
          : !mine.front().stages.empty() ? "data.stages"
                                         : "data.sources",
          source.path, host_name(), source.tokens, hex64(source.fingerprint), of_rank_0.host, first.path, first.tokens,
          hex64(first.fingerprint));
    }
  return {};
}

}  // namespace

bool Inputs::has_masked_targets(const Config& config) const {
  return !config.data.eod_loss ||
         std::ranges::any_of(order.sources, [](const OrderedSource& source) { return source.trained.has_value(); });
}

Result<void> open_inputs(const Config& config, Inputs& inputs) {
  if (auto opened = open_job_tokenizer(config, inputs); !opened) return opened;
  return open_sources(config, inputs);
}

Result<void> open_inputs(const Config& config, const Mesh& mesh, Job& job, Inputs& inputs) {
  const bool reads = reads_tokens(config, mesh, job.node_ranks());
  const auto opened = reads ? open_inputs(config, inputs) : open_job_tokenizer(config, inputs);
  if (auto agreed = agree(job, opened); !agreed) return agreed;
  // World rank 0 always reads: it is on the first stage and is the lowest rank of its node.
  const FoundSources of_rank_0 = job.broadcast(FoundSources{host_name(), orders_of(inputs)});
  const Result<void> same = reads ? check_same(of_rank_0, orders_of(inputs)) : Result<void>{};
  inputs.order = of_rank_0.orders.front();
  if (!reads)
    for (const NamedSource& source : config.data.validation) inputs.validation.push_back({source.name, {}, {}});
  for (size_t i = 0; i < inputs.validation.size(); ++i) inputs.validation[i].order = of_rank_0.orders[i + 1];
  return agree(job, same);
}

Result<void> check_order(const Config& config, const OrderFields& now, const std::optional<std::string>& stored,
                         const std::string& name, int64_t consumed) {
  if (!stored) {
    const std::string unknown = fmt::format(
        "{} does not contain the settings that determine the order of its samples, so it is unknown whether the order "
        "differs from sample {} on",
        name, consumed);
    if (!accepts_change(config, "data.sources"))
      return usage_error("{}; if data.* is unchanged, set checkpoint.accept_changes to data.sources", unknown);
    log_warn("{}\naccepted by checkpoint.accept_changes", unknown);
    return {};
  }
  const auto before = order_fields_from_text(*stored);
  if (!before) return file_error("{}: {}", name, before.error().message);
  const auto change = order_change(before.value(), now, consumed);
  if (!change) return {};
  const bool accepted = std::all_of(change->fields.begin(), change->fields.end(),
                                    [&](const std::string& field) { return accepts_change(config, field); });
  if (!accepted)
    return usage_error(
        "{}: {}\nso some samples would be read twice or never; restore the settings or, if the change is intended, set "
        "checkpoint.accept_changes to {}",
        name, change->text, fmt::join(change->fields, ","));
  log_warn("{}: {}\naccepted by checkpoint.accept_changes", name, change->text);
  return {};
}

}  // namespace tri
