// The screen of `trireme status --watch`.
#include <algorithm>
#include <cmath>

#include "io/base/date.h"
#include "io/base/format.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/report/terminal_chart.h"
#include "lib/report/text.h"

namespace tri {
namespace {

using Lines = std::vector<std::string>;

constexpr size_t kShareSteps = 100;  // last steps whose time the bar shows
constexpr int kWide = 110;           // from this number of columns on, two curves are side by side
constexpr int kLeastCurve = 3, kMostCurve = 16;

std::string state_line(const LiveView& view) {
  const RunStatus& s = view.status;
  std::string text = fmt::format("{}  {}  step {}{}", view.name, state_text(s.state), s.step,
                                 s.steps > 0 ? fmt::format(" of {}", s.steps) : "");
  if (s.steps > 0)
    text += fmt::format(" ({:.0f} %)", 100.0 * static_cast<double>(s.step) / static_cast<double>(s.steps));
  if (const auto left = seconds_left(s); left && s.state == RunState::kRuns)
    text += fmt::format("  ETA {}", format_duration(*left));
  if (s.world_size > 0) text += "  " + counted(s.world_size, "rank");
  if (view.attempts > 1) text += fmt::format("  attempt {}", view.attempts);
  return text;
}

std::string speed_line(const LiveView& view) {
  const RecentSpeed speed = recent_speed(view.metrics);
  if (view.metrics.steps.empty()) return "no step has completed yet";
  const StepRecord& last = view.metrics.steps.back();
  const StepRecord* const with_targets = view.metrics.last_with_targets();
  std::string text = with_targets == nullptr             ? std::string("no targets")
                     : std::isfinite(with_targets->loss) ? fmt::format("loss {:.4f}", with_targets->loss)
                                                         : "loss not finite";
  if (!view.metrics.evaluations.empty())
    text += fmt::format("  validation {:.4f}", view.metrics.evaluations.back().loss);
  if (!view.metrics.named_evaluations.empty())
    for (const auto& [name, loss] : view.metrics.named_evaluations.back().losses)
      text += fmt::format("  {} {:.4f}", name, loss);
  if (std::isfinite(last.learning_rate)) text += fmt::format("  lr {:.2e}", last.learning_rate);
  if (std::isfinite(last.grad_norm)) text += fmt::format("  norm {:.3f}", last.grad_norm);
  if (std::isfinite(speed.step_ms)) text += fmt::format("  {:.4g} ms per step", speed.step_ms);
  if (std::isfinite(speed.tokens_per_s)) text += fmt::format("  {} tok/s", format_count(speed.tokens_per_s));
  if (std::isfinite(speed.mfu)) text += fmt::format("  MFU {:.1f} %", 100 * speed.mfu);
  if (const std::string imbalance = imbalance_text(speed.imbalance); !imbalance.empty()) text += "  " + imbalance;
  if (const SlowRank* slow = view.status.slowest ? &*view.status.slowest : nullptr; slow && slow->of_median > 1.05)
    text += fmt::format("  slowest rank {} ({:.2f} x)", slow->world_rank, slow->of_median);
  return text;
}

std::string checkpoint_line(const LiveView& view) {
  if (view.metrics.checkpoints.empty()) return "";
  const CheckpointRecord& newest = view.metrics.checkpoints.back();
  const std::string age =
      view.now > newest.time ? fmt::format(", {} ago", format_duration(view.now - newest.time)) : "";
  return fmt::format("newest checkpoint: step {}{}", newest.step, age);
}

std::string gpu_line(const LiveView& view) {
  const std::string text = view.metrics.steps.empty() ? "" : gpu_text(view.metrics.steps.back(), "  ");
  return text.empty() ? "" : "GPU of rank 0: " + text;
}

std::string ending_line(const LiveView& view) {
  const RunStatus& s = view.status;
  if (!s.restart.empty()) return s.restart;
  if (s.hang) return s.hang->headline;
  if (s.cause) return "first cause: " + describe(*s.cause);
  if (s.end && !s.end->text.empty()) return "ended: " + s.end->text;
  return "";
}

template <class Value>
std::vector<double> values_of(const RunMetrics& metrics, const Value& value) {
  std::vector<double> values;
  values.reserve(metrics.steps.size());
  for (const StepRecord& step : metrics.steps) values.push_back(value(step));
  return values;
}

// What the slowest rank of this machine does.
Lines slowest_rank(const RunStatus& status, int columns) {
  if (!status.slowest) return {cut("no rank of this machine has completed a step", columns)};
  const auto rank = std::find_if(status.ranks.begin(), status.ranks.end(), [&](const RankRecord& record) {
    return record.world_rank == status.slowest->world_rank;
  });
  Lines lines = wrapped(
      plain(fmt::format("slowest rank {}: {} for its last step, {:.2f} x the median", status.slowest->world_rank,
                        format_duration(status.slowest->seconds), status.slowest->of_median)),
      columns);
  if (rank == status.ranks.end()) return lines;
  for (std::string& line : wrapped(
           plain(fmt::format("  {}  on {}{}  process {} {}  {} in step {}  for {}", rank->grid.place(rank->world_rank),
                             rank->host, rank->gpu.empty() ? "" : "  GPU " + rank->gpu, rank->process,
                             enum_name(rank->process_state), enum_name(rank->host_state), rank->step,
                             format_duration(rank->host_seconds))),
           columns))
    lines.push_back(std::move(line));
  return lines;
}

Lines help(int columns) {
  Lines lines;
  for (const char* line :
       {"m  show the next quantity in the heat map", "l  switch between a linear and a logarithmic loss",
        "p  pause or resume the screen", "s  show what the slowest rank is doing", "?  show these keys", "q  quit"})
    lines.push_back(cut(line, columns));
  return lines;
}

Lines curves(const RunMetrics& metrics, const LiveChoice& choice, int columns, int height) {
  if (metrics.steps.empty() || height < 2) return {};
  const bool two = columns >= kWide;
  const int width = two ? (columns - 2) / 2 : columns;
  const Lines loss = curve_chart(values_of(metrics, [](const StepRecord& s) { return s.loss; }), width, height - 1,
                                 choice.linear ? ChartScale::kLinear : ChartScale::kLogarithmic);
  Lines lines{padded(fmt::format("loss ({}), steps {} to {}", choice.linear ? "linear" : "logarithmic",
                                 metrics.steps.front().step, metrics.steps.back().step),
                     width)};
  lines.insert(lines.end(), loss.begin(), loss.end());
  if (!two) return lines;
  const Lines speed = curve_chart(values_of(metrics, [](const StepRecord& s) { return s.tokens_per_s; }), width,
                                  height - 1, ChartScale::kFromZero);
  lines[0] += "  tokens per second";
  for (size_t i = 1; i < lines.size(); ++i) lines[i] = padded(lines[i], width) + "  " + speed[i - 1];
  return lines;
}

Lines events(const std::vector<Incident>& incidents, int columns, int height) {
  Lines lines;
  const auto most = static_cast<size_t>(std::max(0, height));
  const size_t first = incidents.size() > most ? incidents.size() - most : 0;
  for (size_t i = first; i < incidents.size(); ++i)
    lines.push_back(
        cut(plain(fmt::format("{} {}: {}", local_date(incidents[i].time, "%T"), incidents[i].kind, incidents[i].text)),
            columns));
  return lines;
}

}  // namespace

bool LiveChoice::press(char key, size_t num_quantities) {
  switch (key) {
    case 'm':
      quantity = num_quantities == 0 ? 0 : (quantity + 1) % num_quantities;
      return true;
    case 'l':
      linear = !linear;
      return true;
    case 'p':
      paused = !paused;
      return true;
    case 's':
      slowest = !slowest;
      return true;
    case '?':
      help = !help;
      return true;
    default:
      return false;
  }
}

Lines live_screen(const LiveView& view, ScreenSize size) {
  const int columns = std::max(8, size.columns);
  Lines lines;
  const auto add = [&](Lines more) {
    for (std::string& line : more) lines.push_back(std::move(line));
  };
  for (const std::string& text :
       {state_line(view), speed_line(view), gpu_line(view), checkpoint_line(view), ending_line(view)})
    if (!text.empty()) add(wrapped(plain(text), columns));
  const auto shares = step_shares(view.metrics, kShareSteps);
  if (!shares.empty() && !view.choice.help) {
    lines.push_back(share_bar(shares, columns));
    add(wrapped(share_legend(shares), columns));
  }
  const std::string foot =
      cut(fmt::format("{}{}  ? keys  q quits", view.clock, view.choice.paused ? "  PAUSED" : ""), columns);
  int room = size.lines - static_cast<int>(lines.size()) - 1;  // the last line is the foot's
  if (view.choice.help) add(help(columns));

  // Events get what they need up to a third, the heat map what it needs if a curve of some lines still fits as well,
  // and the log what remains.
  const Lines map = view.choice.slowest ? slowest_rank(view.status, columns) : view.heat;
  const auto wanted_events = static_cast<int>(view.incidents.size());
  const int of_events = std::clamp(wanted_events, 0, std::max(1, room / 3));
  int of_heat = static_cast<int>(map.size());
  if (room - of_events - of_heat < kLeastCurve) of_heat = 0;
  const int of_curve = std::min(kMostCurve, room - of_events - of_heat);
  if (!view.choice.help) {
    const Lines drawn = of_curve < kLeastCurve ? Lines() : curves(view.metrics, view.choice, columns, of_curve);
    add(drawn);
    if (of_heat > 0) add(map);
    room -= static_cast<int>(drawn.size()) + of_heat;
    const Lines shown = events(view.incidents, columns, std::min(room, wanted_events));
    add(shown);
    room -= static_cast<int>(shown.size());
    const size_t of_log = std::min(view.log.size(), static_cast<size_t>(std::max(0, room)));
    for (size_t i = view.log.size() - of_log; i < view.log.size(); ++i)
      lines.push_back(cut(plain(view.log[i]), columns));
  }
  if (static_cast<int>(lines.size()) > size.lines - 1) lines.resize(static_cast<size_t>(std::max(0, size.lines - 1)));
  lines.push_back(foot);
  return lines;
}

}  // namespace tri
