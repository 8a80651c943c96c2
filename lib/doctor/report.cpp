// Formats the doctor's report as text and as JSON.
#include <cmath>

#include "io/base/json.h"
#include "lib/doctor/doctor.h"
#include "lib/doctor/judge.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

std::vector<const Measurement*> measurements_of(const DoctorReport& report, size_t row) {
  std::vector<const Measurement*> list;
  for (const Measurement& m : report.measurements)
    if (m.rule == static_cast<int>(row)) list.push_back(&m);
  return list;
}

std::string figures_of(const DoctorReport& report, size_t row) {
  const DoctorReport::Row& check = report.checks[row];
  if (!check.skipped.empty()) return "skipped: " + check.skipped;
  const auto list = measurements_of(report, row);
  const auto summary = summarize(check.rule, list);
  if (summary) {
    const std::string median = number_text(summary->median), worst = number_text(summary->worst);
    return median + (*check.rule.unit == '\0' ? "" : std::string(" ") + check.rule.unit) +
           (worst == median ? "" : ", worst " + worst);
  }
  for (const Measurement* m : list)
    if (!m->text.empty()) return m->text;
  return "not measured";
}

// "; suspect below 8, bad below 4": what the worst value is judged against; "": nothing limits it.
std::string limits_of(const DoctorReport& report, size_t row) {
  const Rule& rule = report.checks[row].rule;
  if (!report.checks[row].skipped.empty() || rule.better == Better::kEqual) return "";
  const Limits& limits = rule.limits(report.device);
  const char* const side = rule.better == Better::kHigher ? "below" : "above";
  std::string text;
  const auto add = [&](std::string_view verdict, std::optional<double> at, double times) {
    std::string limit = at && std::isfinite(*at) ? fmt::format("{} {}", side, number_text(*at)) : "";
    if (times > 0)
      limit += fmt::format("{}{} times worse than the median", limit.empty() ? "" : " or ", number_text(times));
    if (!limit.empty()) text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", verdict, limit);
  };
  add("suspect", limits.suspect_at, limits.suspect_times);
  add("bad", limits.bad_at, limits.bad_times);
  return text.empty() ? "" : text + ")";
}

size_t counted(const DoctorReport& report, Verdict verdict) {
  return static_cast<size_t>(std::count_if(report.checks.begin(), report.checks.end(), [&](const auto& row) {
    return row.skipped.empty() && row.verdict == verdict;
  }));
}

Json known(std::optional<double> value) {
  if (!value) return Json();
  return std::isfinite(*value) ? Json(*value) : Json("unlimited");
}
Json known(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json json_of(const DoctorReport& report, size_t row) {
  const DoctorReport::Row& check = report.checks[row];
  const Limits& limits = check.rule.limits(report.device);
  const auto list = measurements_of(report, row);
  const auto summary = summarize(check.rule, list);
  const auto times = [](double value) { return value > 0 ? Json(value) : Json(); };
  return {{"name", check.rule.name},
          {"measures", check.rule.measures},
          {"unit", check.rule.unit},
          {"better", check.rule.better == Better::kEqual    ? "equal"
                     : check.rule.better == Better::kHigher ? "higher"
                                                            : "lower"},
          {"verdict", check.skipped.empty() ? Json(enum_name(check.verdict)) : Json()},
          {"skipped", known(check.skipped)},
          {"limits",
           {{"suspect_at", known(limits.suspect_at)},
            {"bad_at", known(limits.bad_at)},
            {"suspect_times", times(limits.suspect_times)},
            {"bad_times", times(limits.bad_times)}}},
          {"best", summary ? known(summary->best) : Json()},
          {"median", summary ? known(summary->median) : Json()},
          {"worst", summary ? known(summary->worst) : Json()}};
}

}  // namespace

std::string doctor_text(const DoctorReport& report) {
  std::string text;
  for (size_t row = 0; row < report.checks.size(); ++row) {
    const DoctorReport::Row& check = report.checks[row];
    text += fmt::format("{:<8} {:<21} {:<68} {}\n", check.skipped.empty() ? enum_name(check.verdict) : "-",
                        check.rule.name, check.rule.measures, figures_of(report, row) + limits_of(report, row));
  }
  if (!report.findings.empty()) text += "\n";
  for (const Finding& finding : report.findings)
    text += fmt::format("{}: {}\n", enum_name(finding.verdict), finding.text);
  const size_t healthy = counted(report, Verdict::kHealthy), suspect = counted(report, Verdict::kSuspect),
               bad = counted(report, Verdict::kBad);
  return text + fmt::format("\n{}: {} node{}, {} rank{}, {} checks ({}) in {:.1f} s: {} healthy, {} suspect, {} bad\n",
                            enum_name(report.verdict), report.hosts.size(), report.hosts.size() == 1 ? "" : "s",
                            report.ranks, report.ranks == 1 ? "" : "s", healthy + suspect + bad,
                            enum_name(report.depth), report.seconds, healthy, suspect, bad);
}

std::string doctor_json(const DoctorReport& report) {
  Json nodes = Json::array(), checks = Json::array(), findings = Json::array(), measurements = Json::array();
  for (const std::string& host : report.hosts) {
    Verdict verdict = Verdict::kHealthy;
    for (const Finding& finding : report.findings)
      if (finding.host == host) verdict = std::max(verdict, finding.verdict);
    nodes.push_back({{"host", host}, {"verdict", enum_name(verdict)}});
  }
  for (size_t row = 0; row < report.checks.size(); ++row) checks.push_back(json_of(report, row));
  for (const Finding& f : report.findings)
    findings.push_back({{"verdict", enum_name(f.verdict)},
                        {"check", report.checks[static_cast<size_t>(f.rule)].rule.name},
                        {"host", f.host},
                        {"rank", f.world_rank},
                        {"part", known(f.part)},
                        {"value", known(f.value)},
                        {"median", known(f.median)},
                        {"limit", known(f.limit)},
                        {"text", f.text}});
  for (const Measurement& m : report.measurements)
    measurements.push_back({{"check", report.checks[static_cast<size_t>(m.rule)].rule.name},
                            {"host", m.host},
                            {"rank", m.world_rank},
                            {"part", known(m.part)},
                            {"group", known(m.group)},
                            {"value", known(m.value)},
                            {"wanted", known(m.wanted)},
                            {"text", known(m.text)},
                            {"problem", known(m.problem)}});
  const Json object = {{"verdict", enum_name(report.verdict)},
                       {"status", exit_status(report.verdict)},
                       {"depth", enum_name(report.depth)},
                       {"device", enum_name(report.device)},
                       {"seconds", report.seconds},
                       {"ranks", report.ranks},
                       {"nodes", nodes},
                       {"findings", findings},
                       {"checks", checks},
                       {"measurements", measurements}};
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tri
