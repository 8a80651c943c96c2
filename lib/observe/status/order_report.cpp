#include "lib/observe/status/order_report.h"

#include <algorithm>

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/config/batch_sizes.h"

namespace tri {

std::vector<StageShare> stage_shares(const Config& config, const OrderFields& fields) {
  const SampleOrder order(fields);
  const int64_t run = samples_of_run(config);
  const BatchSizes sizes = batch_sizes(config);
  std::vector<StageShare> shares;
  int64_t begin = 0;
  for (size_t stage = 0; stage < std::max<size_t>(1, fields.stages.size()) && begin < run; ++stage) {
    const bool last = stage + 1 >= fields.stages.size();
    StageShare share{.begin = begin, .end = last ? run : std::min(run, fields.stages[stage].end), .sources = {}};
    share.first_step = sizes.steps_until(0, share.begin + 1);
    share.last_step = sizes.steps_until(0, share.end);
    std::vector<int> sources;
    if (!fields.stages.empty()) sources = fields.stages[stage].sources;
    for (size_t i = 0; fields.stages.empty() && i < fields.sources.size(); ++i) sources.push_back(static_cast<int>(i));
    for (const int source : sources) {
      const int64_t before = order.consumed(source, share.begin), after = order.consumed(source, share.end);
      const auto epoch = static_cast<double>(order.num_samples(Split::kTrain, source));
      share.sources.push_back(
          {source, after - before, static_cast<double>(before) / epoch, static_cast<double>(after) / epoch});
    }
    begin = share.end;
    shares.push_back(std::move(share));
  }
  return shares;
}

std::string trained_share(const OrderedSource& source) {
  if (!source.trained) return "all";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(*source.trained) / static_cast<double>(source.tokens));
}

std::string order_report(const Config& config, const OrderFields& order) {
  // Shows the column only if there are loss masks.
  const bool has_masks =
      std::ranges::any_of(order.sources, [](const OrderedSource& source) { return source.trained.has_value(); });
  const auto trained = [&](const std::string& text) { return has_masks ? fmt::format("  {:>7}", text) : ""; };
  const auto tokens = [&](int64_t samples) {
    return format_count(static_cast<double>(samples) * config.model.seq_len);
  };
  size_t width = 6;
  for (const OrderedSource& source : order.sources) width = std::max(width, source.path.size());
  std::string text;
  const std::vector<StageShare> stages = stage_shares(config, order);
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageShare& stage = stages[i];
    text += fmt::format("stage {}: tokens {} to {}, samples {} to {}, steps {} to {}\n", i + 1, tokens(stage.begin),
                        tokens(stage.end), stage.begin, stage.end, stage.first_step, stage.last_step);
    text += fmt::format("  {:<{}}  {:>14}  {:>10}  {:>7}  {:>19}{}\n", "source", width, "samples", "tokens", "share",
                        "epochs", trained("trained"));
    for (const SourceShare& share : stage.sources) {
      const OrderedSource& source = order.sources[static_cast<size_t>(share.source)];
      text += fmt::format(
          "  {:<{}}  {:>14}  {:>10}  {:>5.1f} %  {:>19}{}\n", source.path, width, share.samples, tokens(share.samples),
          100.0 * static_cast<double>(share.samples) / static_cast<double>(stage.end - stage.begin),
          fmt::format("{:.3g} to {:.3g}", share.first_epoch, share.last_epoch), trained(trained_share(source)));
    }
  }
  for (size_t i = stages.size(); i < order.stages.size(); ++i)
    text += fmt::format("stage {}: from {} tokens on, which the run does not reach\n", i + 1,
                        tokens(order.stages[i - 1].end));
  return text;
}

std::string order_json(const Config& config, const OrderFields& order) {
  using Json = nlohmann::ordered_json;
  const int64_t length = config.model.seq_len, run = samples_of_run(config);
  Json object = {
      {"samples", run}, {"tokens", tokens_of_run(config)}, {"steps", config.run.steps}, {"stages", Json::array()}};
  for (const StageShare& stage : stage_shares(config, order)) {
    Json sources = Json::array();
    for (const SourceShare& share : stage.sources) {
      const OrderedSource& source = order.sources[static_cast<size_t>(share.source)];
      sources.push_back({{"path", source.path},
                         {"samples", share.samples},
                         {"tokens", share.samples * length},
                         {"share", static_cast<double>(share.samples) / static_cast<double>(stage.end - stage.begin)},
                         {"first_epoch", share.first_epoch},
                         {"last_epoch", share.last_epoch}});
      if (source.trained)
        sources.back()["trained_share"] = static_cast<double>(*source.trained) / static_cast<double>(source.tokens);
    }
    object["stages"].push_back({{"first_sample", stage.begin},
                                {"samples", stage.end - stage.begin},
                                {"first_token", stage.begin * length},
                                {"tokens", (stage.end - stage.begin) * length},
                                {"first_step", stage.first_step},
                                {"last_step", stage.last_step},
                                {"sources", std::move(sources)}});
  }
  return object.dump() + "\n";
}

}  // namespace tri
