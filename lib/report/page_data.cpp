// Generates the data of a report's page. Numbers are rounded to what a picture can show.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <unordered_map>

#include "io/base/json.h"
#include "lib/report/curves.h"
#include "lib/report/page.h"
#include "lib/report/page_frame.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kAllPoints = 4800, kMostPoints = 1600;  // points of curves: of all runs together, of one run
constexpr size_t kLostPoints = 300;
constexpr size_t kWallSlots = 400;
constexpr size_t kMostRows = 400;                                    // of tables; the newest rows are shown
constexpr size_t kMostMarkers = 600;                                 // evaluations and checkpoints
constexpr size_t kExpertBytes = 1'000'000, kMostExpertSlices = 120;  // loads of experts; steps of which they are shown

// Rounds to five digits (six where precision matters); returns null for a value that is not finite.
Json rounded(double value, int digits = 5) {
  if (!std::isfinite(value)) return nullptr;
  const double made = std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
  if (made == std::floor(made) && std::abs(made) < 1e15) return static_cast<int64_t>(made);  // without ".0"
  return made;
}
Json moment(double seconds) { return std::round(1000 * seconds) / 1000; }

Json list(const std::vector<double>& values, int digits = 5) {
  Json made = Json::array();
  for (const double value : values) made.push_back(rounded(value, digits));
  return made;
}

// Includes minimum and maximum if a point covers more than one step.
Json json_of(const Curve& curve, bool extremes, int digits = 5) {
  Json made = {{"mean", list(curve.mean, digits)}};
  if (extremes) made["low"] = list(curve.low, digits), made["high"] = list(curve.high, digits);
  return made;
}

bool any(const Curve& curve) {
  return std::any_of(curve.mean.begin(), curve.mean.end(), [](double v) { return std::isfinite(v); });
}

// Returns the steps as curves; x values are in the order {step, tokens, time}.
Json curves_of(const RunMetrics& metrics, size_t most) {
  const std::span<const StepRecord> steps = metrics.steps;
  const Points points = points_of(steps.size(), most);
  const bool joined = steps.size() > points.size();
  Json x = {{"step", Json::array()}, {"tokens", Json::array()}, {"time", Json::array()}};
  for (const auto& [begin, end] : points) {
    const StepRecord& last = steps[end - 1];
    x["step"].push_back(last.step);
    x["tokens"].push_back(last.tokens);
    x["time"].push_back(moment(last.time));
  }
  Json curves = Json::object();
  const auto add = [&](const char* name, int digits, const auto& value) {
    const Curve curve = curve_of(steps, points, value);
    if (any(curve)) curves[name] = json_of(curve, joined, digits);
  };
  add("loss", 6, [](const StepRecord& s) { return s.loss; });
  add("grad_norm", 5, [](const StepRecord& s) { return s.grad_norm; });
  add("lr", 5, [](const StepRecord& s) { return s.learning_rate; });
  add("step_ms", 5, [](const StepRecord& s) { return s.step_ms; });
  add("tokens_per_s", 5, [](const StepRecord& s) { return s.tokens_per_s; });
  add("mfu", 4, [](const StepRecord& s) { return s.mfu; });
  add("imbalance", 4, [](const StepRecord& s) { return s.imbalance; });
  add("gpu_watts", 4, [](const StepRecord& s) { return s.gpu_watts; });
  add("gpu_ghz", 4, [](const StepRecord& s) { return 1e-3 * s.gpu_mhz; });
  add("gpu_gib", 4, [](const StepRecord& s) { return s.gpu_memory_bytes / (1 << 30); });
  add("gpu_celsius", 4, [](const StepRecord& s) { return s.gpu_celsius; });
  Json parts = Json::object();
  for (size_t i = 0; i < StepTimes::names().size(); ++i) {
    const Curve curve = curve_of(steps, points, [i](const StepRecord& s) { return s.times_ms[i]; });
    if (std::any_of(curve.mean.begin(), curve.mean.end(), [](double v) { return v > 0; }))
      parts[StepTimes::names()[i]] = list(curve.mean, 4);
  }
  return {
      {"x", x},
      {"steps_a_point", points.empty() ? 0 : static_cast<double>(steps.size()) / static_cast<double>(points.size())},
      {"curves", curves},
      {"parts", parts}};
}

// Returns the steps lost to restarts, one segment per restart: {step, tokens, time, loss}.
Json lost_of(const RunMetrics& metrics) {
  Json segments = Json::array();
  const std::span<const StepRecord> lost = metrics.lost;
  const size_t share = std::max<size_t>(1, (lost.size() + kLostPoints - 1) / kLostPoints);
  for (size_t first = 0; first < lost.size() && segments.size() < kLostPoints;) {
    size_t end = first + 1;
    while (end < lost.size() && lost[end].start == lost[first].start && lost[end].step > lost[end - 1].step) ++end;
    const auto segment = lost.subspan(first, end - first);
    const Points points = points_of(segment.size(), std::max<size_t>(2, segment.size() / share));
    Json made = {{"step", Json::array()}, {"tokens", Json::array()}, {"time", Json::array()}};
    for (const auto& [b, e] : points) {
      made["step"].push_back(segment[e - 1].step);
      made["tokens"].push_back(segment[e - 1].tokens);
      made["time"].push_back(moment(segment[e - 1].time));
    }
    made["loss"] = list(curve_of(segment, points, [](const StepRecord& s) { return s.loss; }).mean);
    segments.push_back(std::move(made));
    first = end;
  }
  return segments;
}

// Returns every nth element, always including the last, at most kMostMarkers in all.
template <class Record, class Print>
Json thinned(const std::vector<Record>& records, const Print& print) {
  Json made = Json::array();
  for (const auto& [begin, end] : points_of(records.size(), kMostMarkers)) made.push_back(print(records[end - 1]));
  return made;
}

Json checkpoints_of(const RunMetrics& metrics) {
  Json rows = Json::array();
  const std::span<const CheckpointRecord> all = metrics.checkpoints;
  for (const auto& [begin, end] : points_of(all.size(), kMostMarkers)) {
    CheckpointRecord slowest = all[end - 1];  // of those merged into one point
    for (size_t i = begin; i < end; ++i) {
      slowest.stall_seconds = std::max(slowest.stall_seconds, all[i].stall_seconds);
      slowest.seconds = std::max(slowest.seconds, all[i].seconds);
    }
    rows.push_back(
        {slowest.step, moment(slowest.time), slowest.bytes, rounded(slowest.stall_seconds), rounded(slowest.seconds)});
  }
  return {{"count", all.size()}, {"rows", rows}};
}

Json attempts_of(const EffectiveTime& time) {
  Json rows = Json::array();
  const size_t first = time.attempts.size() > kMostRows ? time.attempts.size() - kMostRows : 0;
  for (size_t i = first; i < time.attempts.size(); ++i) {
    const AttemptTime& attempt = time.attempts[i];
    rows.push_back({{"number", i + 1},
                    {"job", attempt.job},
                    {"begin", moment(attempt.begin)},
                    {"end", moment(attempt.end)},
                    {"first_step", attempt.first_step},
                    {"last_step", attempt.last_step},
                    {"lost", attempt.lost_steps},
                    {"productive_s", rounded(attempt.productive_seconds)},
                    {"failed", attempt.failed},
                    {"code", attempt.code ? Json(*attempt.code) : Json()},
                    {"outcome", attempt.outcome}});
  }
  return rows;
}

// The intervals of wall time that a picture can show: shorter ones are part of the one before them, and of one category
// are one.
Json intervals_of(const EffectiveTime& time) {
  constexpr double kShortest = 0.001;  // of all
  Json made = Json::array();
  for (const WallInterval& interval : time.intervals) {
    const bool begins = std::ranges::binary_search(time.attempts, interval.begin, {}, &AttemptTime::begin);
    const bool is_short = interval.end - interval.begin < kShortest * time.wall();
    if (!made.empty() && (is_short || (!begins && made.back()[2] == enum_name(interval.category))))
      made.back()[1] = moment(interval.end);
    else
      made.push_back({moment(interval.begin), moment(interval.end), enum_name(interval.category)});
  }
  return made;
}

// Wall time in slots of equal length: of each, the seconds of every category that occurs.
Json wall_of(const EffectiveTime& time) {
  const double slot = time.wall() / static_cast<double>(kWallSlots);
  std::vector<std::vector<double>> seconds(kNumWallTimes, std::vector<double>(kWallSlots));
  for (const WallInterval& interval : time.intervals) {
    if (!(slot > 0)) break;
    auto& of_category = seconds[static_cast<size_t>(interval.category)];
    const double begin = interval.begin - time.begin, end = interval.end - time.begin;
    const auto first = static_cast<size_t>(std::clamp(begin / slot, 0.0, double{kWallSlots - 1}));
    for (size_t i = first; i < kWallSlots && static_cast<double>(i) * slot < end; ++i)
      of_category[i] += std::max(
          0.0, std::min(end, static_cast<double>(i + 1) * slot) - std::max(begin, static_cast<double>(i) * slot));
  }
  Json slots = Json::object(), sums = Json::object(), shares = Json::array();
  for (const WallTimeMeaning& known : wall_time_meanings()) {
    const std::string name(enum_name(known.category));
    if (!(time.of(known.category) > 0)) continue;
    sums[name] = {{"seconds", rounded(time.of(known.category))}, {"meaning", known.meaning}};
    slots[name] = list(seconds[static_cast<size_t>(known.category)], 3);
  }
  for (const EffectiveShare& share : effective_shares(time))
    shares.push_back({{"title", share.title}, {"formula", share.formula}, {"share", rounded(share.share)}});
  return {{"begin", moment(time.begin)},
          {"end", moment(time.end)},
          {"slots", slots},
          {"intervals", intervals_of(time)},
          {"sums", sums},
          {"shares", shares},
          {"kept", time.kept_steps},
          {"lost", time.lost_steps},
          {"attempts_in_all", time.attempts.size()},
          {"attempts", attempts_of(time)}};
}

Json incidents_json(const RunData& run) {
  Json rows = Json::array();
  const size_t first = run.incidents.size() > kMostRows ? run.incidents.size() - kMostRows : 0;
  for (size_t i = first; i < run.incidents.size(); ++i) {
    const Incident& incident = run.incidents[i];
    rows.push_back({moment(incident.time), incident.step, incident.kind, incident.text, incident.alarm});
  }
  return {{"count", run.incidents.size()}, {"rows", rows}};
}

Json stragglers_json(const RunData& run) {
  Json rows = Json::array();
  const size_t first = run.stragglers.size() > kMostRows ? run.stragglers.size() - kMostRows : 0;
  for (size_t i = first; i < run.stragglers.size(); ++i) {
    const StragglerRecord& record = run.stragglers[i];
    rows.push_back({moment(record.time), record.step, record.world_rank, rounded(record.slowdown, 3),
                    rounded(record.lost_ms, 3), record.over, record.text});
  }
  return rows;
}

Json config_of(const RunData& run) {
  Json fields = Json::array(), changes = Json::array();
  for (const FlatField& field : run.config) fields.push_back({field.name, field.value});
  const size_t first = run.changes.size() > kMostRows ? run.changes.size() - kMostRows : 0;
  for (size_t i = first; i < run.changes.size(); ++i) {
    const ConfigChange& change = run.changes[i];
    changes.push_back({moment(change.time), change.start + 1, change.name, change.before, change.after, change.step});
  }
  return {{"fields", fields}, {"changes", changes}};
}

std::string base64(const std::vector<uint8_t>& bytes) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) three = three << 8 | (i + k < bytes.size() ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kLetters[three >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

// Returns [[name, size], ...], fastest first, for the class RankGrid of page/grid.js.
Json axes_of(const RankGrid& grid) {
  Json axes = Json::array();
  for (const GridAxis& axis : grid.axes) axes.push_back({axis.name, axis.size});
  return axes;
}

// Returns each distinct name once, and for each rank the index of its name.
template <class Name>
Json dictionary(const RankMesh& mesh, const Name& name) {
  Json names = Json::array(), ranks = Json::array();
  std::unordered_map<std::string, size_t> numbers;
  for (const RankMesh::Place& place : mesh.places) {
    const auto [known, is_new] = numbers.try_emplace(name(place), numbers.size());
    if (is_new) names.push_back(known->first);
    ranks.push_back(known->second);
  }
  return {{"names", names}, {"ranks", ranks}};
}

Json heat_of(const RankHeat& heat) {
  Json slices = Json::array(), quantities = Json::array();
  for (const HeatSlice& slice : heat.slices) slices.push_back({slice.first_step, slice.last_step, moment(slice.time)});
  for (const HeatQuantity& quantity : heat.quantities) {
    Json made = {
        {"name", quantity.name},          {"rate", quantity.is_rate}, {"ratio", quantity.scale == HeatScale::kRatio},
        {"most", rounded(quantity.most)}, {"medians", Json::array()}, {"bytes", Json::array()}};
    for (const auto& medians : quantity.medians) made["medians"].push_back(list({medians.begin(), medians.end()}, 4));
    for (const auto& bytes : quantity.bytes) made["bytes"].push_back(base64(bytes));
    quantities.push_back(std::move(made));
  }
  return {{"axes", axes_of(heat.mesh.grid)},
          {"hosts", dictionary(heat.mesh, [](const RankMesh::Place& place) { return place.host; })},
          {"gpus", dictionary(heat.mesh, [](const RankMesh::Place& place) { return place.gpu; })},
          {"slices", slices},
          {"quantities", quantities}};
}

// Returns edges as [waiter, awaited, index of the awaited object, ms per step].
Json waits_of(const RankWaits& waits) {
  Json what = Json::array(), edges = Json::array();
  std::unordered_map<std::string, size_t> numbers;
  for (const RankWait& wait : waits.waits) {
    const auto [known, is_new] = numbers.try_emplace(wait.what, numbers.size());
    if (is_new) what.push_back(known->first);
    edges.push_back({wait.waiter, wait.awaited, known->second, rounded(1e3 * wait.seconds, 4)});
  }
  return {{"source", waits.source == RankWaits::Source::kDump ? "dump" : "steps"},
          {"title", waits.title},
          {"headline", waits.headline},
          {"axes", axes_of(waits.grid)},
          {"culprits", waits.suspects},
          {"num_waits", waits.num_waits},
          {"what", what},
          {"edges", edges}};
}

// Encodes a load for the page, in steps of 2 %: 0 without rows; 128 is the mean, and 32 more are twice as much.
uint8_t load_byte(uint16_t percent) {
  if (percent == 0) return 0;
  return static_cast<uint8_t>(std::clamp(std::round(128 + 32 * std::log2(percent / 100.0)), 1.0, 255.0));
}

// Returns null if there are no loads. Steps with other layers than the last one, as before a change of the config, are
// not shown.
Json experts_of(const RunMetrics& metrics) {
  std::vector<const ExpertRecord*> records;
  const auto experts_in = [](const ExpertRecord& record) { return record.loads.front().size(); };
  const auto has_shape_of = [&](const ExpertRecord& a, const ExpertRecord& b) {
    return a.layers.size() == b.layers.size() &&
           std::ranges::equal(a.layers, b.layers, {}, &ExpertBalance::layer, &ExpertBalance::layer) &&
           std::ranges::all_of(a.loads, [&](const auto& loads) { return loads.size() == experts_in(b); });
  };
  for (const ExpertRecord& record : metrics.experts)
    if (has_shape_of(record, metrics.experts.back())) records.push_back(&record);
  if (records.empty() || experts_in(*records.back()) == 0) return nullptr;
  const ExpertRecord& last = *records.back();
  const size_t bytes = last.layers.size() * experts_in(last);
  Json layers = Json::array(), slices = Json::array(), loads = Json::array(), balances = Json::array();
  for (const ExpertBalance& layer : last.layers) layers.push_back(layer.layer);
  const size_t most = std::clamp<size_t>(kExpertBytes / bytes, 1, kMostExpertSlices);
  for (const auto& [begin, end] : points_of(records.size(), most)) {
    const ExpertRecord& record = *records[end - 1];
    std::vector<uint8_t> encoded;
    for (const auto& of_layer : record.loads) std::ranges::transform(of_layer, std::back_inserter(encoded), load_byte);
    Json of_layers = Json::array();
    for (const ExpertBalance& layer : record.layers)
      of_layers.push_back({rounded(layer.max_load, 4), layer.dead, rounded(layer.entropy, 4)});
    slices.push_back({record.step, moment(record.time)});
    loads.push_back(base64(encoded));
    balances.push_back(std::move(of_layers));
  }
  return {
      {"layers", layers}, {"experts", experts_in(last)}, {"slices", slices}, {"bytes", loads}, {"balances", balances}};
}

Json recent_json(const RunMetrics& metrics) {
  const RecentSpeed speed = recent_speed(metrics);
  return {{"steps", speed.steps},
          {"step_ms", rounded(speed.step_ms)},
          {"tokens_per_s", rounded(speed.tokens_per_s)},
          {"tokens_low", rounded(speed.tokens_low)},
          {"tokens_high", rounded(speed.tokens_high)},
          {"mfu", rounded(speed.mfu)}};
}

Json run_json(const RunData& run, size_t points) {
  Json facts = Json::array();
  for (const RunFact& fact : run_facts(run)) facts.push_back({fact.label, fact.value});
  const RunMetrics& metrics = run.metrics;
  Json made = {{"name", run.name}, {"dir", run.dir}, {"facts", facts}, {"remarks", run.remarks}};
  made["num_steps"] = metrics.steps.size();
  made["recent"] = recent_json(metrics);
  made["story"] = Json::array();
  for (const RunSentence& sentence : run_story(run)) made["story"].push_back({sentence.text, sentence.alarm});
  made["samples"] = Json::array();
  for (const TextSample& sample : run.samples) made["samples"].push_back({sample.step, sample.text});
  made.update(curves_of(metrics, points));
  made["lost"] = lost_of(metrics);
  made["evaluations"] = thinned(metrics.evaluations, [](const EvaluationRecord& e) {
    return Json{e.step, moment(e.time), rounded(e.loss, 6)};
  });
  if (!metrics.named_evaluations.empty())
    made["named_evaluations"] = thinned(metrics.named_evaluations, [](const NamedEvaluationRecord& e) {
      Json losses = Json::object();
      for (const auto& [name, loss] : e.losses) losses[name] = rounded(loss, 6);
      return Json{e.step, moment(e.time), losses};
    });
  made["restarts"] = thinned(metrics.restarts, [](const RestartRecord& r) {
    return Json{r.step, moment(r.time), r.lost_steps};
  });
  made["not_finite"] = thinned(metrics.not_finite, [](const NotFiniteRecord& n) {
    return Json{n.step, moment(n.time), n.places};
  });
  made["checkpoints"] = checkpoints_of(metrics);
  made["wall"] = run.time ? wall_of(*run.time) : Json();
  made["incidents"] = incidents_json(run);
  made["stragglers"] = stragglers_json(run);
  made["config"] = config_of(run);
  made["heat"] = run.heat ? heat_of(*run.heat) : Json();
  made["experts"] = experts_of(metrics);
  made["waits"] = Json::array();
  for (const RankWaits& waits : run.waits) made["waits"].push_back(waits_of(waits));
  return made;
}

}  // namespace

std::string page_data(const std::vector<RunData>& runs, const PageHead& head) {
  Json all = Json::array();
  const size_t points = std::min(kMostPoints, kAllPoints / std::max<size_t>(1, runs.size()));
  for (const RunData& run : runs) all.push_back(run_json(run, points));
  const Json data = {{"made", moment(head.made)}, {"version", head.version}, {"runs", std::move(all)}};
  return embedded_json(data.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace tri
