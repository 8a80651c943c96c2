// Reads the output of `trireme bench … --json` and checks its structure: prints one line per fault and exits with 1.
//   bench_json sweep RANKS LIMIT     prints each layout's settings and bytes, for `trireme check`
//   bench_json overlap AXES          "tp,dp,pp"
//   bench_json step STAGES AXES      for one step: its parts, none for an axis of one rank; "tp,pp", or "" for none
#include <fmt/core.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace {

using Json = nlohmann::json;
int faults = 0;

void expect(bool holds, const std::string& claim, const Json& at) {
  if (holds) return;
  ++faults;
  fmt::print(stderr, "not so: {}: {}\n", claim, at.dump());
}

void check_sweep(const Json& sweep, int ranks, size_t limit) {
  expect(sweep.at("ranks") == ranks, "ranks", sweep);
  const Json& layouts = sweep.at("layouts");
  expect(!layouts.empty() && layouts.size() <= limit, "1 to limit layouts", layouts);
  std::set<std::string> settings;
  double previous = 0;
  int own = 0;
  for (const Json& l : layouts) {
    const int tp = l.at("tp"), cp = l.at("cp"), pp = l.at("pp"), dp = l.at("dp"), micro = l.at("micro_batch");
    expect(tp * cp * pp * dp == ranks, "tp x cp x pp x dp are the ranks", l);
    expect(sweep.at("global_batch").get<int>() % (micro * dp) == 0, "the same global batch", l);
    std::string text;
    for (const char* field : {"tp", "pp", "dp", "chunks", "zero"})
      text += "--set parallel." + std::string(field) + "=" + l.at(field).dump() + " ";
    for (const char* field : {"schedule", "recompute"})
      text += "--set parallel." + std::string(field) + "=" + l.at(field).get<std::string>() + " ";
    text += "--set parallel.cp=" + std::to_string(cp) + " --set data.micro_batch=" + std::to_string(micro);
    expect(settings.insert(text).second, "each layout once", l);
    own += l.at("own").get<bool>();
    const bool failed = l.contains("problem");
    if (!failed) {
      const double ms = l.at("ms"), speed = l.at("tokens_per_s");
      expect(std::isfinite(previous) && ms > 0 && ms >= previous, "best first, failures last", layouts);
      expect(speed > 0 && l.contains("mfu"), "speed", l);
      previous = ms;
    } else {
      previous = INFINITY;
    }
    expect(l.at("memory_bytes").get<int64_t>() <= sweep.at("most_bytes").get<int64_t>(), "it fits", l);
    fmt::print("{} {}\n", l.at("memory_bytes").dump(), text);
  }
  expect((own == 1) == sweep.at("own_problem").is_null(), "the own layout, or why it is not there", sweep);
}

void check_overlap(const Json& rows, const std::string& axes) {
  std::set<std::string> expected, found;
  for (size_t at = 0; at < axes.size(); at += 3) expected.insert(axes.substr(at, 2));
  for (const Json& row : rows) {
    found.insert(row.at("axis").get<std::string>());
    const double transfer = row.at("transfer_us"), compute = row.at("compute_us"), together = row.at("together_us");
    const double hidden = row.at("hidden"), raw = row.at("raw_hidden");
    expect(transfer > 0 && compute > 0 && together > 0, "three times", row);
    expect(std::fabs(raw - (1 - (together - compute) / transfer)) < 1e-6 * (1 + std::fabs(raw)), "the formula", row);
    expect(hidden >= 0 && hidden <= 1, "within 0 and 1", row);
    expect(row.at("clamped").get<bool>() == (raw < 0 || raw > 1), "marked where it was not", row);
    expect(row.at("uncertain").is_boolean() && row.at("ranks") > 1 && row.at("bytes") > 0, "the other fields", row);
  }
  expect(found == expected, "all axes of several ranks, " + axes, rows);
}

void check_step(const Json& step, size_t stages, const std::string& axes) {
  const Json& spent = step.at("spent_ms");
  expect(spent.size() == stages, "a row a stage", spent);
  for (const Json& stage : spent) {
    double sum = 0;
    for (const Json& part : stage) sum += part.get<double>();
    expect(stage.at("compute") > 0 && stage.at("optimizer") > 0, "work", stage);
    for (const std::string axis : {"tp", "pp", "dp"})
      expect(stage.at(axis) == 0 || axes.find(axis) != std::string::npos, "no waits for an axis of one rank", stage);
    expect(stage.at("bubble") == 0 || stages > 1, "no bubble without stages", stage);
    if (&stage == &spent.front())
      expect(std::fabs(sum / step.at("ms").get<double>() - 1) < 1e-3, "the parts are the step", step);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const Json input = Json::parse(std::cin);
  const std::string kind = argc > 1 ? argv[1] : "";
  if (kind == "sweep" && argc == 4)
    check_sweep(input, std::stoi(argv[2]), std::stoul(argv[3]));
  else if (kind == "overlap" && argc == 3)
    check_overlap(input, argv[2]);
  else if (kind == "step" && argc == 4)
    check_step(input, std::stoul(argv[2]), argv[3]);
  else
    return 2;
  return faults == 0 ? 0 : 1;
} catch (const std::exception& problem) {
  fmt::print(stderr, "{}\n", problem.what());
  return 1;
}
