#include <algorithm>
#include <cmath>

#include "io/base/format.h"
#include "lib/report/curves.h"
#include "lib/report/picture.h"

namespace tri {
namespace {

constexpr double kLossWidth = 720, kLossHeight = 300, kLossLeft = 52, kLossRight = 20, kLossTop = 44, kLossBottom = 44;
constexpr size_t kPoints = 600;

// Returns 1, 2 or 5 times a power of ten, so that about `marks` marks cover `range`.
double round_distance(double range, double marks) {
  const double power = std::pow(10, std::floor(std::log10(range / marks)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (power * factor * marks >= range) return power * factor;
  return power * 10;
}

struct Scale {
  double low, high, begin, end;  // values, and the pixels at which they are drawn
  double operator()(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

}  // namespace

Result<std::string> loss_picture(const RunData& run) {
  const auto& steps = run.metrics.steps;
  const Points points = points_of(steps.size(), kPoints);
  const Curve loss = curve_of(std::span(steps), points, [](const StepRecord& step) { return step.loss; });
  double low = kUnknown, high = kUnknown;
  size_t known = 0;
  const auto take = [&](double value) {
    if (!std::isfinite(value)) return;
    low = known == 0 ? value : std::min(low, value);
    high = known++ == 0 ? value : std::max(high, value);
  };
  for (const double value : loss.mean) take(value);
  if (known < 2)
    return usage_error("{}: no curve can be drawn, since fewer than two steps with a loss are recorded", run.dir);
  for (const EvaluationRecord& evaluation : run.metrics.evaluations) take(evaluation.loss);

  // Prevents a zero range for a constant loss, so that the marks' six digits differ.
  const double least = 1e-4 * std::max({1.0, std::abs(low), std::abs(high)});
  const double distance = round_distance(std::max(high - low, least), 6);
  const Scale x{0, std::max(1.0, static_cast<double>(steps.back().step)), kLossLeft, kLossWidth - kLossRight};
  double first = std::floor(low / distance), last = std::ceil(high / distance);  // marks
  if (first == last) --first, ++last;
  const Scale y{first * distance, last * distance, kLossHeight - kLossBottom, kLossTop};
  const std::string title = fmt::format("{}: loss, nats per token", run.name);
  Picture picture(kLossWidth, kLossHeight, title);
  picture.text(16, 26, title, "ink head");
  for (int i = 0; i <= static_cast<int>(last - first); ++i) {
    const double value = (first + i) * distance;
    picture.line(kLossLeft, y(value), kLossWidth - kLossRight, y(value), "grid");
    picture.text(kLossLeft - 6, y(value) + 4, fmt::format("{:.6g}", value), "faint small", "end");
  }
  const double stride = std::max(1.0, round_distance(x.high, 8));
  for (double step = 0; step <= x.high; step += stride)
    picture.text(x(step), kLossHeight - kLossBottom + 16, fmt::format("{:.0f}", step), "faint small", "middle");
  picture.text(kLossWidth - kLossRight, kLossHeight - 10, "step", "faint small", "end");

  std::string path;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(loss.mean[i])) continue;
    const auto& [begin, end] = points[i];
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L",
                        x(static_cast<double>(steps[begin].step + steps[end - 1].step) / 2), y(loss.mean[i]));
  }
  picture.path(path, "curve");
  for (const EvaluationRecord& evaluation : run.metrics.evaluations)
    if (std::isfinite(evaluation.loss)) {
      const double at = x(static_cast<double>(evaluation.step)), height = y(evaluation.loss);
      picture.rect(at - 3, height - 3, 6, 6, "backward", fmt::format("validation: {:.4f}", evaluation.loss));
    }
  if (!run.metrics.evaluations.empty()) {
    picture.rect(kLossLeft + 4, kLossHeight - 19, 8, 8, "backward");
    picture.text(kLossLeft + 18, kLossHeight - 11, "validation", "faint small");
  }
  return picture.svg();
}

}  // namespace tri
