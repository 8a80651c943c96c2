#include "lib/observe/metrics/metrics_reader.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/schema.h"

namespace tri {
namespace {

using Json = nlohmann::json;

constexpr int64_t kReadBytes = 4 << 20;  // bytes per read

// The fields of a line of metrics. Lines of steps are flat objects that MetricsFile writes, hundreds of bytes each and
// perhaps a million of them: they are searched, not parsed. Callers request fields in the order of the line, so each
// search continues from the previous one.
class FlatLine {
 public:
  explicit FlatLine(std::string_view line) : line_(line) {}

  double number(std::string_view key) {
    const size_t found = find(key);
    if (found == line_.npos) return kUnknown;
    char* end = nullptr;  // the line ends in '}', where strtod stops
    const double value = std::strtod(line_.data() + found, &end);
    return end == line_.data() + found ? kUnknown : value;
  }
  int64_t whole(std::string_view key) {
    const double value = number(key);
    return std::isfinite(value) && std::abs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
  }

 private:
  // Returns the position after `"key":`.
  size_t find(std::string_view key) {
    for (const size_t from : {at_, size_t{0}}) {
      for (size_t i = line_.find(key, from); i != line_.npos; i = line_.find(key, i + 1)) {
        const size_t end = i + key.size();
        if (i == 0 || line_[i - 1] != '"' || line_.substr(end, 2) != "\":") continue;
        return at_ = end + 2;
      }
    }
    return line_.npos;
  }

  std::string_view line_;
  size_t at_ = 0;
};

const std::array<std::string, StepTimes::kKinds>& time_fields() {
  static const auto names = [] {
    std::array<std::string, StepTimes::kKinds> made;
    for (size_t i = 0; i < made.size(); ++i) made[i] = std::string(StepTimes::names()[i]) + "_ms";
    return made;
  }();
  return names;
}

StepRecord step_of(std::string_view line) {
  FlatLine fields(line);
  StepRecord step;
  step.step = fields.whole("step");
  step.tokens = fields.whole("tokens");
  step.no_targets = line.find("\"no_targets\":true") != line.npos;
  step.loss = fields.number("loss");
  step.grad_norm = fields.number("grad_norm");
  step.learning_rate = fields.number("lr");
  step.step_ms = fields.number("step_ms");
  step.tokens_per_s = fields.number("tokens_per_s");
  step.tflops_per_rank = fields.number("tflops_per_rank");
  step.mfu = fields.number("mfu");
  if (line.find("\"imbalance\"") != line.npos) step.imbalance = fields.number("imbalance");
  for (size_t i = 0; i < time_fields().size(); ++i) {
    const double ms = fields.number(time_fields()[i]);
    step.times_ms[i] = std::isfinite(ms) ? std::max(0.0, ms) : 0;
  }
  if (line.find("\"gpu_") != line.npos) {
    step.gpu_mhz = fields.number("gpu_mhz");
    step.gpu_watts = fields.number("gpu_watts");
    step.gpu_celsius = fields.number("gpu_celsius");
    step.gpu_memory_bytes = fields.number("gpu_memory_bytes");
  }
  step.time = fields.number("time");
  if (!std::isfinite(step.time)) step.time = 0;
  return step;
}

double number(const Json& object, const char* name, double otherwise = 0) {
  const auto field = object.find(name);
  return field != object.end() && field->is_number() ? field->get<double>() : otherwise;
}

int64_t whole(const Json& object, const char* name) {
  const double value = number(object, name);
  return std::isfinite(value) && std::abs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
}

std::string places_of(const Json& list) {
  std::string text;
  if (list.is_array())
    for (const Json& place : list)
      if (place.is_string()) text += (text.empty() ? "" : ", ") + place.get<std::string>();
  return text;
}

// Returns a record without layers if `object` is not one that expert_json() (lib/observe/status) writes.
ExpertRecord experts_of(const Json& object, double time) {
  ExpertRecord record{.step = whole(object, "step"), .time = time, .layers = {}, .loads = {}};
  const auto layers = object.find("layers");
  if (layers == object.end() || !layers->is_array()) return record;
  for (const Json& layer : *layers) {
    if (!layer.is_object()) continue;
    record.layers.push_back({.layer = static_cast<int>(whole(layer, "layer")),
                             .max_load = number(layer, "max_load"),
                             .dead = static_cast<int>(whole(layer, "dead")),
                             .entropy = number(layer, "entropy")});
    std::vector<uint16_t>& loads = record.loads.emplace_back();
    const auto list = layer.find("loads");
    if (list == layer.end() || !list->is_array()) continue;
    for (const Json& load : *list)
      loads.push_back(static_cast<uint16_t>(load.is_number() ? std::clamp(load.get<double>(), 0.0, 65535.0) : 0));
  }
  return record;
}

}  // namespace

void RunMetrics::undo_after(int64_t step) {
  const auto keep =
      std::partition_point(steps.begin(), steps.end(), [&](const StepRecord& s) { return s.step <= step; });
  lost.insert(lost.end(), keep, steps.end());
  steps.erase(keep, steps.end());
  std::erase_if(evaluations, [&](const EvaluationRecord& e) { return e.step > step; });
  std::erase_if(named_evaluations, [&](const NamedEvaluationRecord& e) { return e.step > step; });
  std::erase_if(experts, [&](const ExpertRecord& e) { return e.step > step; });
}

MetricsLine read_metrics_line(std::string_view line) {
  if (line.empty()) return OtherLine();
  if (line.front() != '{' || line.back() != '}') return StrangeLine();
  if (line.find("\"step_ms\":") != line.npos) {
    StepRecord step = step_of(line);
    if (step.step <= 0) return StrangeLine();
    return step;
  }
  const Json object = try_parse_json<Json>(line);
  if (!object.is_object()) return StrangeLine();
  const int64_t step = whole(object, "step");
  const double time = number(object, "time");
  if (object.contains("restart"))
    return RestartRecord{.step = step, .lost_steps = whole(object, "lost_steps"), .time = time};
  if (object.contains("validation_loss"))
    return EvaluationRecord{.step = step, .time = time, .loss = number(object, "validation_loss", kUnknown)};
  if (object.contains("validation") && object["validation"].is_object()) {
    NamedEvaluationRecord record{.step = step, .time = time, .losses = {}};
    for (const auto& [name, loss] : object["validation"].items())
      record.losses.emplace_back(name, loss.is_number() ? loss.get<double>() : kUnknown);
    return record;
  }
  if (object.contains("checkpoint_bytes"))
    return CheckpointRecord{.step = step,
                            .bytes = whole(object, "checkpoint_bytes"),
                            .time = time,
                            .stall_seconds = number(object, "checkpoint_stall_ms") / 1000,
                            .seconds = number(object, "checkpoint_ms") / 1000};
  if (const auto experts = object.find("experts"); experts != object.end() && experts->is_object())
    if (ExpertRecord record = experts_of(*experts, time); !record.layers.empty()) return record;
  if (object.contains("not_finite"))
    return NotFiniteRecord{.step = step, .time = time, .places = places_of(object["not_finite"])};
  return OtherLine();
}

Result<int64_t> read_whole_lines(const std::string& path, int64_t from,
                                 const std::function<void(std::string_view line, int64_t at)>& take) {
  const auto file = InputFile::open(path);
  if (!file) return file.error();
  const int64_t bytes = file.value().bytes();
  int64_t done = bytes < from ? 0 : from;
  std::string segment;
  size_t begun = 0;  // bytes of an unfinished line at the beginning of `segment`
  for (int64_t at = done; at < bytes;) {
    const int64_t more = std::min(kReadBytes, bytes - at);
    segment.resize(begun + static_cast<size_t>(more));
    if (auto read = file.value().read(segment.data() + begun, more, at); !read) return read.error();
    at += more;
    size_t line = 0;
    for (size_t end; (end = segment.find('\n', std::max(line, begun))) != segment.npos; line = end + 1) {
      const std::string_view text = std::string_view(segment).substr(line, end - line);
      if (auto readable = check_schema(path, schema_of_line(text), kMetricsSchema); !readable) return readable.error();
      take(text, done + static_cast<int64_t>(line));
    }
    done += static_cast<int64_t>(line);
    segment.erase(0, line);
    begun = segment.size();
  }
  return done;
}

std::optional<int64_t> last_step_in(const std::string& path, int64_t from) {
  constexpr int64_t kTail = 256 << 10;
  const auto file = InputFile::open(path);
  if (!file || file.value().bytes() <= from) return std::nullopt;
  std::optional<int64_t> last;
  // The first of these lines may be truncated at its beginning; then it does not parse as a step.
  (void)read_whole_lines(path, std::max(from, file.value().bytes() - kTail), [&](std::string_view text, int64_t) {
    const MetricsLine line = read_metrics_line(text);
    if (const auto* step = std::get_if<StepRecord>(&line)) last = step->step;
  });
  return last;
}

const StepRecord* RunMetrics::last_with_targets() const {
  const auto last = std::find_if(steps.rbegin(), steps.rend(), [](const StepRecord& s) { return !s.no_targets; });
  return last == steps.rend() ? nullptr : &*last;
}

void RunMetrics::take(std::string_view line) {
  const auto take_step = [&](StepRecord step) {
    if (!steps.empty() && steps.back().step >= step.step) undo_after(step.step - 1);
    step.start = static_cast<int>(restarts.size());
    steps.push_back(step);
  };
  const MetricsLine read = read_metrics_line(line);
  if (const auto* step = std::get_if<StepRecord>(&read)) {
    take_step(*step);
  } else if (const auto* restart = std::get_if<RestartRecord>(&read)) {
    undo_after(restart->step);
    restarts.push_back(*restart);
  } else if (const auto* evaluation = std::get_if<EvaluationRecord>(&read)) {
    std::erase_if(evaluations, [&](const EvaluationRecord& e) { return e.step >= evaluation->step; });
    evaluations.push_back(*evaluation);
  } else if (const auto* named = std::get_if<NamedEvaluationRecord>(&read)) {
    std::erase_if(named_evaluations, [&](const NamedEvaluationRecord& e) { return e.step >= named->step; });
    named_evaluations.push_back(*named);
  } else if (const auto* balance = std::get_if<ExpertRecord>(&read)) {
    std::erase_if(experts, [&](const ExpertRecord& e) { return e.step >= balance->step; });
    experts.push_back(*balance);
  } else if (const auto* checkpoint = std::get_if<CheckpointRecord>(&read)) {
    checkpoints.push_back(*checkpoint);
  } else if (const auto* wrong = std::get_if<NotFiniteRecord>(&read)) {
    not_finite.push_back(*wrong);
  } else if (std::holds_alternative<StrangeLine>(read)) {
    ++strange_lines;
  }
}

Result<void> MetricsReader::poll() {
  const auto end = read_whole_lines(path_, at_, [&](std::string_view line, int64_t at) {
    if (at == 0) metrics_ = {};
    metrics_.take(line);
    at_ = at + static_cast<int64_t>(line.size()) + 1;
  });
  if (!end && end.error().os_error != ENOENT) return end.error();
  if (end && end.value() > 0) return {};
  metrics_ = {};
  at_ = 0;
  return {};
}

}  // namespace tri
