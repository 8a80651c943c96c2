#include "lib/report/metrics_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/base/file.h"

namespace tri {
namespace {

using Json = nlohmann::json;

constexpr int64_t kPiece = 4 << 20;  // bytes that are read at once

// The fields of a line of metrics. Lines of steps are flat objects that MetricsFile writes, hundreds of bytes each and
// perhaps a million of them: they are searched, not parsed. Fields come in the order in which they are asked for, so
// each search goes on from the one before.
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
  // Behind `"key":`.
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
  step.loss = fields.number("loss");
  step.grad_norm = fields.number("grad_norm");
  step.learning_rate = fields.number("lr");
  step.step_ms = fields.number("step_ms");
  step.tokens_per_s = fields.number("tokens_per_s");
  step.tflops_per_rank = fields.number("tflops_per_rank");
  step.mfu = fields.number("mfu");
  for (size_t i = 0; i < time_fields().size(); ++i) {
    const double ms = fields.number(time_fields()[i]);
    step.times_ms[i] = std::isfinite(ms) ? std::max(0.0, ms) : 0;
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

}  // namespace

void RunMetrics::undo_after(int64_t step) {
  const auto keep =
      std::partition_point(steps.begin(), steps.end(), [&](const StepRecord& s) { return s.step <= step; });
  lost.insert(lost.end(), keep, steps.end());
  steps.erase(keep, steps.end());
  std::erase_if(evaluations, [&](const EvaluationRecord& e) { return e.step > step; });
}

void RunMetrics::take(std::string_view line) {
  if (line.empty()) return;
  if (line.front() != '{' || line.back() != '}') {
    ++strange_lines;
    return;
  }
  if (line.find("\"step_ms\":") != line.npos) {
    StepRecord step = step_of(line);
    if (step.step <= 0) {
      ++strange_lines;
      return;
    }
    if (!steps.empty() && steps.back().step >= step.step) undo_after(step.step - 1);
    step.start = static_cast<int>(restarts.size());
    steps.push_back(step);
    return;
  }
  const Json object = Json::parse(line, nullptr, false);
  if (!object.is_object()) {
    ++strange_lines;
    return;
  }
  const int64_t step = whole(object, "step");
  const double time = number(object, "time");
  if (object.contains("restart")) {
    undo_after(step);
    restarts.push_back({.step = step, .lost_steps = whole(object, "lost_steps"), .time = time});
  } else if (object.contains("validation_loss")) {
    std::erase_if(evaluations, [&](const EvaluationRecord& e) { return e.step >= step; });
    evaluations.push_back({.step = step, .time = time, .loss = number(object, "validation_loss", kUnknown)});
  } else if (object.contains("checkpoint_bytes")) {
    checkpoints.push_back({.step = step,
                           .bytes = whole(object, "checkpoint_bytes"),
                           .time = time,
                           .stall_seconds = number(object, "checkpoint_stall_ms") / 1000,
                           .seconds = number(object, "checkpoint_ms") / 1000});
  } else if (object.contains("not_finite")) {
    not_finite.push_back({.step = step, .time = time, .places = places_of(object["not_finite"])});
  }
}

void MetricsReader::poll() {
  const auto file = InputFile::open(path_);
  if (!file) return;
  const int64_t bytes = file.value().bytes();
  if (bytes < at_) {
    metrics_ = {};
    at_ = 0;
  }
  std::string piece;
  size_t begun = 0;  // bytes of an unfinished line at the beginning of `piece`
  for (int64_t at = at_; at < bytes;) {
    const int64_t more = std::min(kPiece, bytes - at);
    piece.resize(begun + static_cast<size_t>(more));
    if (!file.value().read(piece.data() + begun, more, at)) return;
    at += more;
    size_t from = 0;
    for (size_t end; (end = piece.find('\n', std::max(from, begun))) != piece.npos; from = end + 1)
      metrics_.take(std::string_view(piece).substr(from, end - from));
    piece.erase(0, from);
    begun = piece.size();
    at_ = at - static_cast<int64_t>(begun);
  }
}

}  // namespace tri
