#include "lib/doctor/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace tri {
namespace {

using Group = std::vector<const Measurement*>;

bool is_better(const Rule& rule, double a, double b) { return rule.better == Better::kLower ? a < b : a > b; }

// Returns the median; of an even number, the better of the two middle values.
double middle(const Rule& rule, std::vector<double> values) {
  std::sort(values.begin(), values.end(), [&](double a, double b) { return is_better(rule, a, b); });
  return values[(values.size() - 1) / 2];
}

// Returns how many times worse than the median the value is; 1 if that is undefined.
double times_worse(const Rule& rule, double value, double median) {
  const double more = rule.better == Better::kLower ? value : median,
               less = rule.better == Better::kLower ? median : value;
  if (more <= 0 || (rule.better == Better::kLower && less <= 0)) return 1;
  return less <= 0 ? std::numeric_limits<double>::infinity() : more / less;
}

// Returns the value with which a group is compared.
std::optional<double> median_of(const Rule& rule, const Group& group) {
  std::vector<double> values;
  std::map<std::string, double> best_of_part;
  for (const Measurement* m : group) {
    if (!m->value) continue;
    values.push_back(*m->value);
    for (const std::string* end : {&m->end_a, &m->end_b}) {
      if (end->empty()) continue;
      const auto [at, is_new] = best_of_part.emplace(*end, *m->value);
      if (!is_new && is_better(rule, *m->value, at->second)) at->second = *m->value;
    }
  }
  if (values.empty()) return std::nullopt;
  if (best_of_part.empty()) return middle(rule, std::move(values));
  std::vector<double> bests;
  for (const auto& [part, best] : best_of_part) bests.push_back(best);
  return middle(rule, std::move(bests));
}

std::string place_of(const std::string& host, const std::string& part) {
  return part.empty() ? host : host + ": " + part;
}

std::string quantity(const Rule& rule, double value) {
  return number_text(value) + (*rule.unit == '\0' ? "" : std::string(" ") + rule.unit);
}

Finding finding_of(const Measurement& m, Verdict verdict) {
  return {
      .verdict = verdict, .rule = m.rule, .world_rank = m.world_rank, .host = m.host, .part = m.part, .value = m.value};
}

// Compares a value with fixed limits, with what the hardware reports, and with the median. Returns the worst finding.
std::optional<Finding> judge_number(const Rule& rule, const Limits& limits, const Measurement& m, double median) {
  const double value = *m.value;
  std::optional<Finding> found;
  const auto consider = [&](bool fails, Verdict verdict, std::optional<double> limit, const char* kind) {
    if (!fails || (found && found->verdict >= verdict)) return;
    found = finding_of(m, verdict);
    found->median = median;
    found->limit = limit;
    found->text = fmt::format(
        "{}: {}{} ({})", place_of(m.host, m.part), quantity(rule, value),
        limit ? fmt::format("{} {}", kind, number_text(*limit)) : ", but the median is " + number_text(median),
        rule.name);
  };
  const double worse = times_worse(rule, value, median);
  const char* kind = rule.better == Better::kLower ? " is above the limit of" : " is below the limit of";
  consider(limits.bad_times > 0 && worse >= limits.bad_times, Verdict::kBad, std::nullopt, "");
  consider(limits.bad_at && is_better(rule, *limits.bad_at, value), Verdict::kBad, limits.bad_at, kind);
  consider(limits.suspect_times > 0 && worse >= limits.suspect_times, Verdict::kSuspect, std::nullopt, "");
  consider(m.wanted && is_better(rule, *m.wanted, value), Verdict::kSuspect, m.wanted, ", but the hardware supports");
  consider(limits.suspect_at && is_better(rule, *limits.suspect_at, value), Verdict::kSuspect, limits.suspect_at, kind);
  return found;
}

// Replaces findings about transfers by the part that most of them share.
void name_slow_parts(const Rule& rule, const Group& group, std::map<const Measurement*, Finding>& slow,
                     std::vector<Finding>& out) {
  while (true) {
    std::map<std::string, std::pair<int, std::vector<const Measurement*>>> parts;  // transfers, and the slow ones among
                                                                                   // them
    for (const Measurement* m : group)
      for (const std::string* end : {&m->end_a, &m->end_b}) {
        if (end->empty()) continue;
        auto& [transfers, slow_ones] = parts[*end];
        ++transfers;
        if (slow.count(m)) slow_ones.push_back(m);
      }
    const auto share = [](const auto& part) {
      return static_cast<double>(part.second.second.size()) / part.second.first;
    };
    const auto worst_part = std::max_element(parts.begin(), parts.end(), [&](const auto& a, const auto& b) {
      return std::pair(share(a), a.second.second.size()) < std::pair(share(b), b.second.second.size());
    });
    if (worst_part == parts.end() || worst_part->second.second.size() < 2 || share(*worst_part) <= 0.5) return;
    const auto& [name, counts] = *worst_part;
    const Measurement* slowest = counts.second.front();
    Verdict verdict = Verdict::kSuspect;
    for (const Measurement* m : counts.second) {
      if (is_better(rule, *slowest->value, *m->value)) slowest = m;
      verdict = std::max(verdict, slow.at(m).verdict);
    }
    Finding found = slow.at(slowest);
    const size_t colon = name.find(": ");
    found.host = name.substr(0, colon);
    found.part = colon == name.npos ? "" : name.substr(colon + 2);
    found.verdict = verdict;
    found.text =
        fmt::format("{}: {} of its {} transfers are slow; the slowest, {}, reaches {}, but the median is {} ({})", name,
                    counts.second.size(), counts.first, slowest->part, quantity(rule, *slowest->value),
                    number_text(*found.median), rule.name);
    for (const Measurement* m : counts.second) slow.erase(m);
    out.push_back(std::move(found));
  }
}

void judge_numbers(const Rule& rule, const Limits& limits, const Group& group, std::vector<Finding>& out) {
  const auto median = median_of(rule, group);
  std::map<const Measurement*, Finding> slow;
  for (const Measurement* m : group)
    if (m->value)
      if (auto found = judge_number(rule, limits, *m, *median)) slow.emplace(m, std::move(*found));
  name_slow_parts(rule, group, slow, out);
  for (const Measurement* m : group)  // in the order of the measurements
    if (const auto found = slow.find(m); found != slow.end()) out.push_back(found->second);
}

// Finds texts that differ from the one that more than half of the group has, or all texts if no text has a majority.
void judge_texts(const Rule& rule, const Group& group, std::vector<Finding>& out) {
  std::map<std::string, size_t> counts;
  size_t total = 0;
  for (const Measurement* m : group)
    if (m->problem.empty()) ++counts[m->text], ++total;
  if (counts.size() < 2) return;
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool majority = 2 * most->second > total;
  for (const Measurement* m : group) {
    if (!m->problem.empty() || (majority && m->text == most->first)) continue;
    Finding found = finding_of(*m, rule.unequal);
    found.text = place_of(m->host, m->part) + ": " + m->text +
                 (majority ? fmt::format(", but {} of {} have {}", most->second, total, most->first)
                           : fmt::format("; no majority among {} different values", counts.size())) +
                 fmt::format(" ({})", rule.name);
    out.push_back(std::move(found));
  }
}

}  // namespace

std::string number_text(double value) {
  if (!std::isfinite(value)) return "unlimited";
  if (std::abs(value) >= 100) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

std::vector<Finding> judge(std::span<const Rule> rules, DeviceKind kind, std::span<const Measurement> measurements) {
  std::vector<Finding> found;
  std::map<std::pair<int, std::string>, Group> groups;
  for (const Measurement& m : measurements) {
    groups[{m.rule, m.group}].push_back(&m);
    if (m.problem.empty()) continue;
    Finding& broken = found.emplace_back(finding_of(m, Verdict::kBad));
    broken.text =
        fmt::format("{}: {} ({})", place_of(m.host, m.part), m.problem, rules[static_cast<size_t>(m.rule)].name);
  }
  for (const auto& [key, group] : groups) {
    const Rule& rule = rules[static_cast<size_t>(key.first)];
    if (rule.better == Better::kEqual)
      judge_texts(rule, group, found);
    else
      judge_numbers(rule, rule.limits(kind), group, found);
  }
  std::stable_sort(found.begin(), found.end(), [](const Finding& a, const Finding& b) {
    return std::pair(-static_cast<int>(a.verdict), a.rule) < std::pair(-static_cast<int>(b.verdict), b.rule);
  });
  return found;
}

Verdict worst(std::span<const Finding> findings) {
  Verdict verdict = Verdict::kHealthy;
  for (const Finding& found : findings) verdict = std::max(verdict, found.verdict);
  return verdict;
}

std::optional<Summary> summarize(const Rule& rule, std::span<const Measurement* const> measurements) {
  std::vector<double> values;
  for (const Measurement* m : measurements)
    if (m->value) values.push_back(*m->value);
  if (values.empty() || rule.better == Better::kEqual) return std::nullopt;
  std::sort(values.begin(), values.end(), [&](double a, double b) { return is_better(rule, a, b); });
  return Summary{.best = values.front(), .median = middle(rule, values), .worst = values.back()};
}

void keep_better(std::span<const Rule> rules, std::vector<Measurement>& first, const std::vector<Measurement>& again) {
  using Check = std::pair<int, int>;  // rule and rank
  using Key = std::tuple<int, int, std::string, std::string>;
  const auto key = [](const Measurement& m) { return Key(m.rule, m.world_rank, m.group, m.part); };
  std::set<Check> broken;
  for (const Measurement& m : first)
    if (!m.problem.empty()) broken.emplace(m.rule, m.world_rank);
  std::erase_if(first, [&](const Measurement& m) { return broken.count({m.rule, m.world_rank}) > 0; });
  std::map<Key, size_t> kept;
  for (size_t i = 0; i < first.size(); ++i) kept.emplace(key(first[i]), i);
  for (const Measurement& m : again) {
    const auto at = kept.find(key(m));
    if (at == kept.end()) {
      if (m.problem.empty() || broken.count({m.rule, m.world_rank}) > 0) first.push_back(m);
      continue;
    }
    Measurement& old = first[at->second];
    const bool worse = old.value && m.value && !is_better(rules[static_cast<size_t>(m.rule)], *m.value, *old.value);
    if (!worse && m.problem.empty()) old = m;
  }
}

}  // namespace tri
