// trireme report: shows what runs have done, from their folders: as a page, as text, or as a breakdown of time.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/version.h"
#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "lib/observe/status/effective_time.h"
#include "lib/observe/timeline/timeline.h"
#include "lib/report/page.h"
#include "lib/report/picture.h"
#include "lib/report/text.h"

namespace tri {
namespace {

struct ReportOptions {
  std::vector<std::string> run_dirs;
  std::string get, output, pictures;
  bool time = false, json = false, text = false;
};

// Returns a share by its name, or the seconds of a category.
Result<double> figure_of(const EffectiveTime& time, const std::string& name) {
  std::string known = "wall";
  if (name == known) return time.wall();
  for (const EffectiveShare& share : effective_shares(time)) {
    if (share.name == name) return share.share;
    known += fmt::format(", {}", share.name);
  }
  if (const auto category = enum_from_name<WallTime>(name)) return time.of(*category);
  for (const auto& [category, category_name] : EnumNames<WallTime>::table) known += fmt::format(", {}", category_name);
  return usage_error("--get {}: no such value; the values are {}", name, known);
}

Result<void> show_time(const ReportOptions& options) {
  if (options.run_dirs.size() > 1) return usage_error("--time accepts only one run");
  const std::string& run_dir = options.run_dirs.front();
  const auto history = read_events_and_steps(run_dir);
  if (!history && history.error().os_error == ENOENT)
    return usage_error("{}: has no events.jsonl; give the folder (run.dir) of a run that was started", run_dir);
  if (!history) return history.error();
  const auto time = effective_time(history.value());
  if (!time)
    return usage_error("{}: events.jsonl contains no start of the run, so no time can be reported; start the run first",
                       run_dir);
  if (!options.get.empty()) {
    const auto figure = figure_of(*time, options.get);
    if (!figure) return figure.error();
    print_out("{:.6g}\n", figure.value());
  } else {
    options.json ? print_answer(effective_time_json(*time)) : print_text(effective_time_text(*time));
  }
  return {};
}

// The page is next to the run's files or, for several runs, in the current folder.
std::string page_path(const ReportOptions& options) {
  if (!options.output.empty()) return options.output;
  return options.run_dirs.size() == 1 ? options.run_dirs.front() + "/report.html" : "report.html";
}

Result<void> show_runs(const ReportOptions& options) {
  if (options.run_dirs.size() > kMostRuns)
    return usage_error("{} runs were given, but a report shows at most {}; omit some", options.run_dirs.size(),
                       kMostRuns);
  std::vector<RunData> runs;
  for (const std::string& dir : options.run_dirs) {
    auto run = read_run_data(dir, kHeatBytes / static_cast<int64_t>(options.run_dirs.size()));
    if (!run) return run.error();
    runs.push_back(std::move(run).value());
  }
  const std::string text = report_text(runs);
  if (options.text) {
    print_out("{}", text);
    return {};
  }
  const std::string page = report_page(runs, {.made = wall_seconds(), .version = version_line()}, text);
  const std::string path = page_path(options);
  if (auto written = write_file(path, page); !written) {
    Error error = written.error();
    error.message += "; --output FILE writes the page elsewhere";
    return error;
  }
  print_out("wrote {} ({}); open it in a browser\n", path, format_bytes(static_cast<int64_t>(page.size())));
  return {};
}

// Draws the first step of the newest recording; prints a message if there is no recording.
Result<void> draw_recorded_step(const RunData& run, const std::string& path) {
  const auto recorded = list_timelines(run.dir);
  if (recorded.empty()) {
    print_out("{}: not drawn, since no step of the run was recorded; set metrics.timeline to record steps\n", path);
    return {};
  }
  const auto segments = read_timeline(run.dir, recorded.back(), {});
  if (!segments) return segments.error();
  const int64_t step = recorded.back().first;
  const auto picture =
      step_picture(segments.value(), static_cast<int>(step), fmt::format("Step {} of {}", step, run.name));
  return picture ? write_file(path, picture.value()) : picture.error();
}

Result<void> draw_run(const ReportOptions& options) {
  if (options.run_dirs.size() > 1) return usage_error("--pictures accepts only one run");
  const auto run = read_run_data(options.run_dirs.front());
  if (!run) return run.error();
  std::error_code problem;
  std::filesystem::create_directories(options.pictures, problem);  // if this fails, the write reports it
  const auto loss = loss_picture(run.value());
  if (!loss) return loss.error();
  if (auto written = write_file(options.pictures + "/loss.svg", loss.value()); !written) return written;
  return draw_recorded_step(run.value(), options.pictures + "/step.svg");
}

Result<void> show(const ReportOptions& options) {
  if (options.time) return show_time(options);
  return options.pictures.empty() ? show_runs(options) : draw_run(options);
}

}  // namespace

void add_report_command(Command& app, int& status) {
  auto* command = app.add_subcommand("report", "Report what a run did across all of its attempts and jobs");
  auto options = std::make_shared<ReportOptions>();
  command->add_option("run_dir", options->run_dirs, "Folder of a run (run.dir); several runs are shown side by side")
      ->required();
  auto* text =
      command->add_flag("--text", options->text, "Print at most 40 lines on the terminal instead of writing the page");
  auto* output = command->add_option(
      "-o,--output", options->output,
      "File to which the page is written; default: RUN_DIR/report.html, or report.html for several runs");
  output->excludes(text);
  auto* pictures = command->add_option("--pictures", options->pictures,
                                       "Write SVG pictures into this folder instead: loss.svg and, where steps were "
                                       "recorded (metrics.timeline), step.svg");
  pictures->excludes(text)->excludes(output);
  auto* time = command->add_flag("--time", options->time,
                                 "Print the run's wall time by category; each second is in exactly one");
  time->excludes(text)->excludes(output)->excludes(pictures);
  command->add_flag("--json", options->json, "Print one JSON object")->needs(time);
  command
      ->add_option("--get", options->get, "Print one value: wall, effective, megascale, goodput, ettr, or a category")
      ->needs(time);
  command->footer(
      "The page is one HTML file without external resources. It shows curves, the use of time, a heat map of all\n"
      "ranks, checkpoints, incidents, and the config with its changes, for one run or for several side by side.\n"
      "--time counts from the first submission, or from the first start if no scheduler is known, to the last\n"
      "recorded event. lib/observe/README.md defines the shares, app/JSON.md the fields of --json: begin, end,\n"
      "wall_s, seconds {by category}, startup_s {by phase}, shares {effective, megascale, goodput, ettr},\n"
      "google_badput_s {by name}, kept_steps, lost_steps, median_step_ms, data_wait_s, attempts [{attempt, job,\n"
      "begin, end, first_step, last_step, kept_steps, lost_steps, productive_s, code, failed, outcome}]; null if\n"
      "unknown.\n"
      "Exit status: 0 = reported; 2 = RUN_DIR is not the folder of a run that was started; 3 = a file cannot be read.");
  on_run(command, status, [options] { return show(*options); });
}

}  // namespace tri
