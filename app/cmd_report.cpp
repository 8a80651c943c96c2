// trireme report: what a run has done, from its folder; each view is an option.
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "app/commands.h"
#include "lib/observe/effective_time.h"

namespace tri {
namespace {

struct Options {
  std::string run_dir, get;
  bool time = false, json = false;
};

// A share by its name, or seconds of a category.
Result<double> figure_of(const EffectiveTime& time, const std::string& name) {
  std::string known = "wall";
  if (name == known) return time.wall();
  for (const EffectiveShare& share : effective_shares(time)) {
    if (share.name == name) return share.share;
    known += fmt::format(", {}", share.name);
  }
  if (const auto category = enum_from_name<WallTime>(name)) return time.of(*category);
  for (const auto& [category, category_name] : EnumNames<WallTime>::table) known += fmt::format(", {}", category_name);
  return usage_error("--get {}: no such figure; known: {}", name, known);
}

Result<void> show_time(const Options& options) {
  const auto history = read_events_and_steps(options.run_dir);
  if (!history && history.error().os_error == ENOENT)
    return usage_error("{}: no events.jsonl; name the folder of a run (run.dir) that has been started",
                       options.run_dir);
  if (!history) return history.error();
  const auto time = effective_time(history.value());
  if (!time) return usage_error("{}: no start of this run is on record in events.jsonl", options.run_dir);
  if (!options.get.empty()) {
    const auto figure = figure_of(*time, options.get);
    if (!figure) return figure.error();
    fmt::print("{:.6g}\n", figure.value());
  } else {
    fmt::print("{}", options.json ? effective_time_json(*time) : effective_time_text(*time));
  }
  return {};
}

Result<void> show(const Options& options) {
  if (options.time) return show_time(options);
  return usage_error("trireme report {}: say what to report: --time", options.run_dir);
}

}  // namespace

void add_report_command(CLI::App& app, int& status) {
  auto* command = app.add_subcommand("report", "What a run has done, across all of its attempts and jobs");
  auto options = std::make_shared<Options>();
  command->add_option("run_dir", options->run_dir, "run.dir of a run")->required();
  command->add_flag("--time", options->time, "Where its wall time went, every second in one category");
  command->add_flag("--json", options->json, "For machines: one object");
  command->add_option("--get", options->get, "One figure: wall, effective, megascale, goodput, ettr, or a category")
      ->needs("--time");
  command->footer(
      "Time runs from the first submission, or the first start where no scheduler is known, to the last sign of life.\n"
      "lib/observe/README.md defines the categories and the fields of --json: begin, end, wall_s, seconds {by category},\n"
      "startup_s {by phase}, shares {effective, megascale, goodput, ettr}, google_badput_s {by name}, kept_steps,\n"
      "lost_steps, median_step_ms, data_wait_s, attempts [{attempt, job, begin, end, first_step, last_step, kept_steps, lost_steps, productive_s,\n"
      "code, failed, outcome}]; null where it is not known.\n"
      "Exit status: 0; 2: not the folder of a run that was started; 3: its files can't be read.");
  on_run(command, status, [options] { return show(*options); });
}

}  // namespace tri
