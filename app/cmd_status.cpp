// trireme status: how a run stands, from beside it.
#include <fmt/chrono.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include "app/commands.h"
#include "lib/observe/run_status.h"
#include "lib/report/terminal.h"
#include "lib/report/text.h"

namespace tri {
namespace {

struct Options {
  std::string run_dir, dump;
  bool json = false, watch = false;
  double every = 1;  // seconds
};

Result<void> show_status(const Options& options) {
  const auto status = read_run_status(options.run_dir);
  if (!status) return status.error();
  fmt::print("{}", options.json ? status_json(status.value()) : status_text(status.value()));
  return {};
}

Result<void> show_hang(const Options& options) {
  const auto dump = read_hang_dump(options.run_dir, options.dump);
  if (!dump) return dump.error();
  if (options.json)
    fmt::print("{}", dump.value().json);
  else
    fmt::print("{}:\n{}", dump.value().folder, dump.value().text);
  return {};
}

// What `trireme status --watch` knows of a run, brought up to date again and again.
class Watched {
 public:
  explicit Watched(const std::string& run_dir) : run_dir_(run_dir), reader_(run_dir + "/metrics.jsonl") {}

  // Error (kUsage): it is not the folder of a run.
  Result<std::vector<std::string>> screen(ScreenSize size) {
    const auto status = read_run_status(run_dir_);
    if (!status) return status.error();
    reader_.poll();
    const auto history = read_events(run_dir_ + "/events.jsonl");
    const std::vector<RunEvent> events = history ? history.value() : std::vector<RunEvent>();
    return live_screen({.status = status.value(),
                        .metrics = reader_.metrics(),
                        .incidents = incidents_of(events, std::nullopt, reader_.metrics()),
                        .name = run_dir_.substr(run_dir_.find_last_of('/') + 1),
                        .clock = fmt::format("{:%H:%M:%S}", fmt::localtime(std::time(nullptr)))},
                       size);
  }

 private:
  std::string run_dir_;
  MetricsReader reader_;
};

Result<void> watch(const Options& options) {
  std::string dir = options.run_dir;
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  Watched run(dir);
  if (!Screen::possible()) {  // a file or a pipe: once
    const char* columns = std::getenv("COLUMNS");
    const auto lines =
        run.screen({.columns = columns == nullptr ? kTextColumns : std::atoi(columns), .lines = kTextLines});
    if (!lines) return lines.error();
    for (const std::string& line : lines.value()) fmt::print("{}\n", line);
    return {};
  }
  if (auto first = run.screen({}); !first) return first.error();  // said on the terminal as it is
  Screen screen;
  do {
    const auto lines = run.screen(screen.size());
    if (!lines) return lines.error();
    screen.show(lines.value());
  } while (screen.wait(options.every) != ScreenEvent::kQuit);
  return {};
}

}  // namespace

void add_status_command(CLI::App& app, int& status) {
  auto* command = app.add_subcommand(
      "status", "How a run stands, while it runs, hangs or is over: step, rate, what each rank does, what ended it");
  auto options = std::make_shared<Options>();
  command->add_option("run_dir", options->run_dir, "run.dir of a run; its ranks on this machine are seen")->required();
  auto* hang = command->add_option("--hang", options->dump,
                                   "The report of the newest hang, or of the dump named: who held the run up, and how");
  hang->expected(0, 1)->type_name("[DUMP]");
  auto* json = command->add_flag("--json", options->json, "For machines: one object; with --hang, the report's");
  auto* watched = command->add_flag("--watch", options->watch,
                                    "A screen that follows the run: curve, where the time goes, ranks, last events");
  watched->excludes(hang)->excludes(json);
  command->add_option("--every", options->every, "Seconds between two looks of --watch; default 1")
      ->check(CLI::Range(0.1, 3600.0))
      ->needs(watched);
  command->footer(
      "Ranks are seen through the black boxes that they keep in /dev/shm (TRIREME_BLACK_BOXES) of their machine, also\n"
      "when they are stopped or dead. Of a run on many machines:\n"
      "  srun --overlap --jobid=J --ntasks-per-node=1 trireme status RUN_DIR\n"
      "Exit status: 0, whatever the run's state is; 2: not the folder of a run; 3: no hang was dumped.\n"
      "--json: run_dir, host, attempt, job, world_size, step, steps, newest_event_age_s, newest_dump, last_log_line,\n"
      "state (runs, stands still, ended, failed, gone, unknown), rate {step, step_ms, tokens_per_s, loss, age_s},\n"
      "slowest {rank, step_ms, of_median}, hang {kind, headline, culprits, waiting}, end {time, code, text},\n"
      "cause {time, kind, rank, host, text}, ranks [...]; null where it is not known.");
  on_run(command, status, [options, hang] {
    if (options->watch) return watch(*options);
    return hang->count() > 0 ? show_hang(*options) : show_status(*options);
  });
}

}  // namespace tri
