// Collects the facts about a run that its report shows first.
#include <algorithm>
#include <cmath>
#include <map>

#include "io/base/date.h"
#include "io/base/format.h"
#include "lib/config/axis_fields.h"
#include "lib/config/config.h"
#include "lib/model/parameter.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/report/run_data.h"

namespace tri {
namespace {

constexpr int kMaxLayers = 10000;  // larger models are not counted

// Lists the fields that have values, each after its word: "tp 2, pp 2".
using NamedFields = std::vector<std::pair<std::string, std::string>>;
std::string listed(const RunData& run, const NamedFields& fields) {
  std::string text;
  for (const auto& [word, name] : fields)
    if (const std::string value = run.field(name); !value.empty())
      text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", word, word.empty() ? "" : " ", value);
  return text;
}

// Computes the count from the config fields that this version knows; returns "" for a file of another version.
std::string parameters_of(const RunData& run) {
  std::string yaml;
  for (const FlatField& field : run.config) {
    if (!field.name.starts_with("model.")) continue;
    yaml += fmt::format("{}{}: {}", yaml.empty() ? "" : ", ", field.name.substr(6), field.value);
  }
  auto config = parse_config("model: {" + yaml + "}", "", {});
  if (yaml.empty() || !config) return "";
  ModelConfig& model = config.value().model;
  if (model.ffn_hidden <= 0 || model.kv_heads <= 0 || model.layers > kMaxLayers)
    return "";          // the config is not
                        // resolved
  fill_derived(model);  // a resolved config of an earlier version has no head_dim
  if (model.head_dim <= 0) return "";
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config.value())) parameters += spec.numel();
  return format_count(static_cast<double>(parameters)) + " parameters";
}

std::string model_of(const RunData& run) {
  const std::string shape = listed(run, {{"layers", "model.layers"},
                                         {"hidden", "model.hidden"},
                                         {"heads", "model.heads"},
                                         {"sequences of", "model.seq_len"},
                                         {"vocabulary", "model.vocab"}});
  const std::string kind = listed(run, {{"", "model.norm"}, {"", "model.activation"}, {"", "model.position"}});
  const std::string parameters = parameters_of(run);
  return parameters + (parameters.empty() || shape.empty() ? "" : ": ") + shape + (kind.empty() ? "" : "; ") + kind;
}

std::string state_of(const RunData& run) {
  const RunEvent* start = run.last_start();
  const int64_t done = run.metrics.steps.empty() ? 0 : run.metrics.steps.back().step;
  const auto steps = start == nullptr ? 0 : static_cast<int64_t>(start->number("steps", 0));
  std::string text = fmt::format("step {}{}", done, steps > 0 ? fmt::format(" of {}", steps) : "");
  if (!run.time || run.time->attempts.empty()) return text;
  const AttemptTime& last = run.time->attempts.back();
  if (last.outcome.empty()) return text + "; still running, or killed without a message";
  return text + "; " + last.outcome.substr(0, last.outcome.find('\n'));
}

std::string speed_of(const RunData& run) {
  const RecentSpeed speed = recent_speed(run.metrics);
  if (!std::isfinite(speed.step_ms)) return "";
  std::string text = fmt::format("{:.4g} ms per step", speed.step_ms);
  if (std::isfinite(speed.tokens_per_s))
    text += fmt::format(", {} tokens/s (90 % of steps: {} to {})", format_count(speed.tokens_per_s),
                        format_count(speed.tokens_low), format_count(speed.tokens_high));
  if (std::isfinite(speed.mfu)) text += fmt::format(", MFU {:.1f} %", 100 * speed.mfu);
  if (const std::string imbalance = imbalance_text(speed.imbalance); !imbalance.empty()) text += ", " + imbalance;
  return text + fmt::format("; medians of the last {}", counted(int64_t(speed.steps), "step"));
}

std::string experts_of(const RunData& run) {
  if (run.metrics.experts.empty()) return "";
  const ExpertRecord& last = run.metrics.experts.back();
  return fmt::format("{}, at step {}", balance_text(worst_of(last.layers)), last.step);
}

std::string time_of(const RunData& run) {
  if (!run.time) return "";
  return fmt::format("{} to {} ({})", local_date(run.time->begin), local_date(run.time->end),
                     format_duration(run.time->wall()));
}

std::string attempts_of(const RunData& run) {
  if (!run.time) return "";
  return fmt::format("{}, {} kept, {} lost; {:.1f} % of the time was effective",
                     counted(static_cast<int64_t>(run.time->attempts.size()), "attempt"),
                     counted(run.time->kept_steps, "step"), run.time->lost_steps, 100 * run.time->effective());
}

std::string layout_of(const RunData& run) {
  std::string text;
  if (const RunEvent* start = run.last_start(); start != nullptr && start->number("ranks", 0) > 0)
    text = fmt::format("{:.0f} rank{}: ", start->number("ranks", 0), start->number("ranks", 0) == 1 ? "" : "s");
  NamedFields fields;
  for (const auto& [axis, size] : kAxisFields) {
    const std::string word(axis.text()), name = "parallel." + word;
    if (kAxes[axis.index()].always_named || run.field(name) != "1") fields.emplace_back(word, name);
  }
  for (const auto& [word, name] :
       NamedFields{{"", "parallel.schedule"}, {"chunks", "parallel.chunks"}, {"zero", "parallel.zero"}})
    fields.emplace_back(word, name);
  return text + listed(run, fields);
}

// Returns the executable's version at the last start.
std::string version_of(const RunData& run) {
  const RunEvent* start = run.last_start();
  return start == nullptr ? "" : start->string("version");
}

std::string machines_of(const RunData& run) {
  std::string text = run.field("run.device");
  if (const std::string compute = run.field("precision.compute"); !compute.empty()) text += ", " + compute;
  const RunEvent* start = run.last_start();
  if (const double nodes = start == nullptr ? 0 : start->number("nodes", 0); nodes > 0)
    text += fmt::format(", {:.0f} machine{}", nodes, nodes == 1 ? "" : "s");
  for (auto step = run.metrics.steps.rbegin(); step != run.metrics.steps.rend(); ++step) {
    if (!(step->mfu > 0) || !std::isfinite(step->tflops_per_rank)) continue;
    return text + fmt::format(", peak {:.0f} TFLOP/s per rank", step->tflops_per_rank / step->mfu);
  }
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool ended_badly(const EffectiveTime& time, size_t i) {
  const AttemptTime& attempt = time.attempts[i];
  return attempt.failed || (attempt.outcome.empty() && i + 1 < time.attempts.size());
}

// Seconds that failures cost: until each was noticed and its successor launched, started, and back at the lost step.
double lost_to_failures(const EffectiveTime& time) {
  double seconds = 0;
  for (const WallInterval& interval : time.intervals) {
    const WallTime what = interval.category;
    bool lost = what == WallTime::kDetection || what == WallTime::kDiagnosis || what == WallTime::kRestart;
    if (what == WallTime::kRepeated || what == WallTime::kStartup || what == WallTime::kLoad)
      for (size_t i = 0; i + 1 < time.attempts.size(); ++i)
        lost |=
            ended_badly(time, i) && interval.begin >= time.attempts[i].end && interval.begin < time.attempts[i + 1].end;
    if (lost) seconds += interval.end - interval.begin;
  }
  return seconds;
}

void add_failures(const RunData& run, std::vector<RunSentence>& story) {
  if (!run.time) return;
  int64_t failures = 0;
  const AttemptTime* last = nullptr;
  for (size_t i = 0; i < run.time->attempts.size(); ++i)
    if (ended_badly(*run.time, i)) ++failures, last = &run.time->attempts[i];
  if (failures == 0) return;
  const std::string what = last->outcome.empty() ? "an attempt ended without a message" : first_line(last->outcome);
  const double lost = lost_to_failures(*run.time);
  story.push_back(
      {fmt::format("{}{}: {}, after step {}{}", counted(failures, "failure"), failures > 1 ? ", the last" : "", what,
                   last->last_step,
                   lost > 0 ? fmt::format("; {} and {} lost{}", format_duration(lost),
                                          counted(run.time->lost_steps, "step"), failures > 1 ? " in total" : "")
                            : ""),
       true});
}

}  // namespace

std::vector<RunSentence> run_story(const RunData& run) {
  const bool failed = run.time && !run.time->attempts.empty() && run.time->attempts.back().failed;
  std::vector<RunSentence> story{{state_of(run), failed}};
  add_failures(run, story);
  std::map<int, const StragglerRecord*> slow;
  for (const StragglerRecord& record : run.stragglers) slow[record.world_rank] = &record;
  std::erase_if(slow, [](const auto& entry) { return entry.second->over; });
  if (!slow.empty()) {
    const auto slowest = std::max_element(
        slow.begin(), slow.end(), [](const auto& a, const auto& b) { return a.second->slowdown < b.second->slowdown; });
    story.push_back(
        {fmt::format("{} slow: {}", slow.size() == 1 ? "1 rank is" : fmt::format("{} ranks are", slow.size()),
                     slowest->second->text),
         true});
  }
  if (const size_t count = run.metrics.not_finite.size(); count > 0)
    story.push_back({fmt::format("the loss or the gradients were not finite in {}, the newest of which is step {}",
                                 counted(int64_t(count), "step"), run.metrics.not_finite.back().step),
                     true});
  if (story.size() == 1) story.push_back({"no failure, hang or slow rank is recorded", false});
  return story;
}

std::vector<RunFact> run_facts(const RunData& run) {
  const RunMetrics& metrics = run.metrics;
  std::vector<RunFact> facts{{"State", state_of(run)}, {"Model", model_of(run)}, {"Layout", layout_of(run)}};
  facts.push_back({"Machines", machines_of(run)});
  const bool has_stages = !run.field("data.stages").empty() && run.field("data.stages") != "[]";
  facts.push_back({"Data", listed(run, {has_stages ? std::pair<std::string, std::string>{"stages", "data.stages"}
                                                   : std::pair<std::string, std::string>{"", "data.sources"},
                                        {"global batch", "data.global_batch"},
                                        {"ramp", "data.batch_ramp"},
                                        {"microbatch", "data.micro_batch"}})});
  facts.push_back({"Optimizer", listed(run, {{"", "optimizer.name"}, {"peak", "lr.peak"}, {"", "lr.rule"}})});
  std::string loss;
  if (const StepRecord* const last = metrics.last_with_targets()) {
    loss = std::isfinite(last->loss) ? fmt::format("{:.4f}", last->loss) : "not finite";
    loss += fmt::format(" after {} tokens", format_count(static_cast<double>(last->tokens)));
  }
  facts.push_back({"Loss", loss});
  const auto evaluation = metrics.evaluations.empty() ? nullptr : &metrics.evaluations.back();
  facts.push_back({"Validation loss",
                   evaluation == nullptr ? "" : fmt::format("{:.4f} at step {}", evaluation->loss, evaluation->step)});
  std::string named_losses;
  if (!metrics.named_evaluations.empty()) {
    const NamedEvaluationRecord& named = metrics.named_evaluations.back();
    for (const auto& [name, value] : named.losses)
      named_losses += fmt::format("{}{} {:.4f}", named_losses.empty() ? "" : ", ", name, value);
    named_losses += fmt::format(" at step {}", named.step);
  }
  facts.push_back({"Losses by name", named_losses});
  facts.push_back({"Experts", experts_of(run)});
  facts.push_back({"Speed", speed_of(run)});
  facts.push_back({"GPU of rank 0", metrics.steps.empty() ? "" : gpu_text(metrics.steps.back())});
  facts.push_back({"Time", time_of(run)});
  facts.push_back({"Attempts", attempts_of(run)});
  facts.push_back({"Version", version_of(run)});
  facts.push_back({"Folder", run.dir});
  return facts;
}

}  // namespace tri
