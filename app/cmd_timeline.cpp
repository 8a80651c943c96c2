// trireme timeline: writes a trace for Perfetto of some steps, with the streams of all ranks.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "app/commands.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/fault/dump_folder.h"
#include "lib/observe/status/run_status.h"
#include "lib/observe/timeline/hang_trace.h"
#include "lib/observe/timeline/timeline.h"
#include "lib/train/timeline_recorder.h"

namespace tri {
namespace {

struct TimelineOptions {
  std::string run_dir, steps, ranks, output, dump;
  int record = 0;
  bool json = false;
};

Result<void> ask_for(const TimelineOptions& options) {
  const std::string path = timeline_request_path(options.run_dir);
  std::error_code problem;
  if (!std::filesystem::is_directory(options.run_dir, problem))
    return usage_error("{}: not the folder of a run", options.run_dir);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), problem);
  if (auto written = write_file(path, fmt::format("{}\n", options.record)); !written) return written;
  print_out("if the run is still running, it records {} from now on; then run `trireme timeline {}`\n",
            counted(options.record, "step"), options.run_dir);
  return {};
}

Result<void> show_hang(const TimelineOptions& options) {
  const auto dump = read_hang_dump(options.run_dir, options.dump);
  if (!dump) return dump.error();
  const std::string& folder = dump.value().folder;
  const auto ranks = recorded_ranks(folder);
  const auto records = read_records(folder, ranks);
  if (records.empty()) return file_error("{}: no flight records of ranks", folder);
  const std::string path = options.output.empty() ? folder + "/hang.pftrace" : options.output;
  if (auto written = write_hang_trace(records, path); !written) return written;
  print_out("the last moments of {}: {}\nopen it in https://ui.perfetto.dev\n", counted(std::ssize(records), "rank"),
            path);
  return {};
}

// Returns the recording that contains most of the steps; the last one of equals.
const StepRange* recording_of(const std::vector<StepRange>& recorded, const StepRange& steps) {
  const StepRange* best = nullptr;
  int64_t most = 0;
  for (const StepRange& range : recorded) {
    const int64_t common = std::min(range.last, steps.last) - std::max(range.first, steps.first) + 1;
    if (common > 0 && common >= most) {
      most = common;
      best = &range;
    }
  }
  return best;
}

std::string json_of(const TimelineSummary& s) {
  nlohmann::ordered_json json = {{"path", s.path},
                                 {"bytes", s.bytes},
                                 {"first_step", s.steps.first},
                                 {"last_step", s.steps.last},
                                 {"ranks", s.num_ranks},
                                 {"hosts", s.num_hosts},
                                 {"slices", s.num_slices},
                                 {"flows", s.num_flows},
                                 {"unmatched", s.num_unmatched},
                                 {"early", s.num_early},
                                 {"lost_marks", s.lost_marks},
                                 {"clock_error_us", 1e6 * s.clock_error}};
  json["waits"] = nlohmann::ordered_json::array();
  for (const WaitForRank& wait : s.waits)
    json["waits"].push_back({{"rank", wait.waiter},
                             {"for", wait.awaited},
                             {"axis", wait.axis},
                             {"count", wait.count},
                             {"ms", 1e3 * wait.seconds}});
  return json.dump() + "\n";
}

Result<void> show_steps(const TimelineOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(options.run_dir, ignored))
    return file_error("{}: no such folder; name the folder of a run (run.dir)", options.run_dir);
  const auto recorded = list_timelines(options.run_dir);
  if (recorded.empty())
    return file_error(
        "{}: no steps were recorded; set metrics.timeline, or request steps of a running run with `trireme timeline "
        "{} --record 3`",
        options.run_dir, options.run_dir);
  const auto requested = parse_step_range(options.steps);
  if (!requested && !options.steps.empty()) return usage_error("--steps {}: expected FIRST:LAST", options.steps);
  const StepRange* const recording = requested ? recording_of(recorded, *requested) : &recorded.back();
  if (recording == nullptr) {
    std::string known;
    for (const StepRange& range : recorded)
      known += fmt::format("{}{}:{}", known.empty() ? "" : ", ", range.first, range.last);
    return file_error("--steps {}: these steps were not recorded; recorded are {}", options.steps, known);
  }
  RankRange ranks;
  if (!options.ranks.empty()) {
    const int read = std::sscanf(options.ranks.c_str(), "%d:%d", &ranks.first, &ranks.last);
    if (read < 2) ranks.last = ranks.first;
    if (read < 1 || ranks.first < 0 || ranks.last < ranks.first)
      return usage_error("--ranks {}: expected FIRST:LAST", options.ranks);
  }
  const auto segments = read_timeline(options.run_dir, *recording, ranks);
  if (!segments) return segments.error();
  StepRange steps = *recording;
  if (requested) steps = {std::max(steps.first, requested->first), std::min(steps.last, requested->last)};
  const std::string path = !options.output.empty() ? options.output
                                                   : fmt::format("{}/trace/steps_{:08d}_{:08d}.pftrace",
                                                                 options.run_dir, steps.first, steps.last);
  const auto summary = write_timeline(segments.value(), steps, path);
  if (!summary) return summary.error();
  options.json ? print_answer(json_of(summary.value())) : print_text(timeline_text(summary.value(), segments.value()));
  return {};
}

}  // namespace

void add_timeline_command(Command& app, int& status) {
  auto* command = app.add_subcommand(
      "timeline",
      "Write a trace for Perfetto of some steps, with all ranks' streams; print which ranks waited for which");
  auto options = std::make_shared<TimelineOptions>();
  command->add_option("run_dir", options->run_dir, "run.dir of a run")->required();
  command->add_option("--steps", options->steps, "FIRST:LAST of recorded steps; default: the last recording");
  command->add_option("--ranks", options->ranks, "FIRST:LAST, world ranks; default: all that recorded");
  command->add_option("--output", options->output, "File of the trace; default: in run.dir/trace");
  command->add_option("--record", options->record, "Request that a running run records its next N steps, and return")
      ->check(in_range(1, kMostRecordedSteps));
  auto* hang = command->add_option("--hang", options->dump,
                                   "Write the last moments before the newest hang, or the given dump, from the flight "
                                   "records");
  hang->expected(0, 1)->type_name("[DUMP]");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Steps are recorded if metrics.timeline names them (20:22), or on request while the run is running. The trace\n"
      "has a process per rank and a track per stream: actions of the plan with microbatch and chunk, operations,\n"
      "transfers with their channels and sequence numbers, waits that name the rank they are for, flows from each\n"
      "send to its receive.\n"
      "--json: path, bytes, first_step, last_step, ranks, hosts, slices, flows, unmatched, early, lost_marks,\n"
      "clock_error_us, waits [{rank, for, axis, count, ms}].\n"
      "Exit status: 0; 2: usage; 3: no steps were recorded, or a file can't be read or written.");
  on_run(command, status, [options, hang] {
    if (hang->count() > 0) return show_hang(*options);
    return options->record > 0 ? ask_for(*options) : show_steps(*options);
  });
}

}  // namespace tri
