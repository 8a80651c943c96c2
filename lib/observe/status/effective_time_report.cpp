// Formats how a run's time was spent, as text and as JSON.
#include <algorithm>
#include <cmath>
#include <map>

#include "io/base/date.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/observe/status/effective_time.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPhases = 5, kMaxAttempts = 8;
constexpr size_t kMaxOutcome = 60;  // characters

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

Json rounded(double value) { return std::round(1e6 * value) / 1e6; }

std::string row(std::string_view name, double seconds, double wall, std::string_view meaning) {
  return fmt::format("  {:<18}{:>10}{:>9.2f} %  {}\n", name, format_duration(seconds), percent(seconds, wall), meaning);
}

std::string table_of_categories(const EffectiveTime& time) {
  std::string text;
  for (const WallTimeMeaning& known : wall_time_meanings()) {
    text += row(enum_name(known.category), time.of(known.category), time.wall(), known.meaning);
    if (known.category != WallTime::kStartup) continue;
    double rest = 0;
    for (size_t i = 0; i < time.startup_phases.size(); ++i) {
      const auto& [phase, seconds] = time.startup_phases[i];
      if (i < kMaxPhases)
        text += row("  " + phase, seconds, time.wall(), "");
      else
        rest += seconds;
    }
    if (rest > 0) text += row("  other phases", rest, time.wall(), "");
  }
  return text + row("sum", time.wall(), time.wall(), "");
}

std::string table_of_attempts(const EffectiveTime& time) {
  std::string text = fmt::format("  {:<20}{:>10}{:>18}{:>8}  {:>10}  {}\n", "attempt from", "duration", "steps", "lost",
                                 "productive", "ended by");
  const size_t first = time.attempts.size() > kMaxAttempts ? time.attempts.size() - kMaxAttempts : 0;
  if (first > 0) text += fmt::format("  ... {}\n", counted(static_cast<int64_t>(first), "earlier attempt"));
  for (size_t i = first; i < time.attempts.size(); ++i) {
    const AttemptTime& attempt = time.attempts[i];
    const bool last = i + 1 == time.attempts.size();
    std::string outcome = attempt.outcome.substr(0, attempt.outcome.find('\n'));
    if (outcome.empty()) outcome = last ? "(still running, or killed)" : "ended without a message";
    if (outcome.size() > kMaxOutcome) outcome = outcome.substr(0, kMaxOutcome - 3) + "...";
    const bool any = attempt.last_step > attempt.first_step;
    const std::string steps = any ? fmt::format("{} to {}", attempt.first_step + 1, attempt.last_step) : "none";
    text += fmt::format("  {:<20}{:>10}{:>18}{:>8}  {:>8.1f} %  {}\n", local_date(attempt.begin),
                        format_duration(attempt.end - attempt.begin), steps, attempt.lost_steps,
                        percent(attempt.productive_seconds, attempt.end - attempt.begin), outcome);
    if (!attempt.origin.empty()) text += fmt::format("  {:<20}{}\n", "", attempt.origin);
  }
  return text;
}

}  // namespace

std::string effective_time_line(const EffectiveTime& time) {
  std::vector<std::pair<double, std::string>> parts;
  for (const WallTimeMeaning& known : wall_time_meanings())
    if (known.category != WallTime::kProductive && percent(time.of(known.category), time.wall()) >= 0.05)
      parts.emplace_back(time.of(known.category), enum_name(known.category));
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [seconds, name] : parts)
    text += fmt::format("{} {} {:.1f} %", text.empty() ? ";" : ",", name, percent(seconds, time.wall()));
  return fmt::format("effective time {:.1f} % of {} since the {}, {} attempt{}{}", 100 * time.effective(),
                     format_duration(time.wall()), time.begin < time.first_began ? "first submission" : "first start",
                     time.attempts.size(), time.attempts.size() == 1 ? "" : "s", text);
}

std::string effective_time_text(const EffectiveTime& time) {
  std::string text =
      fmt::format("{} to {}: {}, {}, {} kept, {} lost\n", local_date(time.begin), local_date(time.end),
                  format_duration(time.wall()), counted(static_cast<int64_t>(time.attempts.size()), "attempt"),
                  counted(time.kept_steps, "step"), time.lost_steps);
  text += table_of_categories(time);
  text += "\n";
  for (const EffectiveShare& share : effective_shares(time))
    text += fmt::format("  {:<44}{:>6.2f} %  {}\n", share.title, 100 * share.share, share.formula);
  std::string badput;
  for (const auto& [name, seconds] : google_badput(time))
    if (const double share = percent(seconds, time.end - time.first_began); share >= 0.005)
      badput += fmt::format("{}{} {:.2f} %", badput.empty() ? "" : ", ", name, share);
  text += fmt::format("  Google: badput: {}\n", badput.empty() ? "none" : badput);
  return text + "\n" + table_of_attempts(time);
}

std::string effective_time_json(const EffectiveTime& time) {
  Json categories = Json::object(), startup = Json::object(), shares = Json::object(), badput = Json::object(),
       attempts = Json::array();
  for (const WallTimeMeaning& known : wall_time_meanings())
    categories[std::string(enum_name(known.category))] = rounded(time.of(known.category));
  for (const auto& [phase, seconds] : time.startup_phases) startup[phase] = rounded(seconds);
  for (const EffectiveShare& share : effective_shares(time)) shares[std::string(share.name)] = rounded(share.share);
  for (const auto& [name, seconds] : google_badput(time)) badput[name] = rounded(seconds);
  for (const AttemptTime& attempt : time.attempts)
    attempts.push_back({{"attempt", attempt.attempt},
                        {"job", attempt.job.empty() ? Json() : Json(attempt.job)},
                        {"begin", rounded(attempt.begin)},
                        {"end", rounded(attempt.end)},
                        {"first_step", attempt.first_step},
                        {"last_step", attempt.last_step},
                        {"kept_steps", attempt.kept_steps},
                        {"lost_steps", attempt.lost_steps},
                        {"productive_s", rounded(attempt.productive_seconds)},
                        {"code", attempt.code ? Json(*attempt.code) : Json()},
                        {"failed", attempt.failed},
                        {"outcome", attempt.outcome.empty() ? Json() : Json(attempt.outcome)},
                        {"origin", attempt.origin.empty() ? Json() : Json(attempt.origin)}});
  const Json object = {{"begin", rounded(time.begin)},
                       {"end", rounded(time.end)},
                       {"wall_s", rounded(time.wall())},
                       {"seconds", categories},
                       {"startup_s", startup},
                       {"shares", shares},
                       {"google_badput_s", badput},
                       {"kept_steps", time.kept_steps},
                       {"lost_steps", time.lost_steps},
                       {"median_step_ms", rounded(1e3 * time.median_step_seconds)},
                       {"data_wait_s", rounded(time.data_wait_seconds)},
                       {"attempts", attempts}};
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tri
