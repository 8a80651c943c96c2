// trireme status: shows the state of a run, from outside it.
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "app/commands.h"
#include "app/watch_run.h"
#include "lib/observe/ranks/heat_map.h"
#include "lib/observe/status/run_status.h"

namespace tri {
namespace {

struct StatusOptions {
  std::string run_dir, dump, heat;
  bool json = false, watch = false;
  double every = 1;  // seconds between updates
};

Result<void> show_status(const StatusOptions& options) {
  const auto status = read_run_status(options.run_dir);
  if (!status) return status.error();
  options.json ? print_answer(status_json(status.value())) : print_text(status_text(status.value()));
  return {};
}

Result<void> show_hang(const StatusOptions& options) {
  const auto dump = read_hang_dump(options.run_dir, options.dump);
  if (!dump) return dump.error();
  if (options.json)
    print_answer(dump.value().json);
  else
    print_out("{}:\n{}", dump.value().folder, dump.value().text);
  return {};
}

// Returns the size of the output's terminal, or the usual size if it is not a terminal.
HeatScreen screen() {
  HeatScreen screen;
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return screen;
  const char* const term = std::getenv("TERM");
  const char* const plain = std::getenv("NO_COLOR");
  if (size.ws_col > 0 && size.ws_row > 0) {
    screen.columns = size.ws_col;
    screen.lines = size.ws_row - 1;  // one line is for the prompt
  }
  screen.colours = (plain == nullptr || *plain == '\0') && term != nullptr && std::string(term) != "dumb";
  return screen;
}

Result<void> show_heat(const StatusOptions& options) {
  const auto newest = newest_window(options.run_dir);
  if (!newest) return newest.error();
  const auto& [mesh, window] = newest.value();
  const auto heat = heat_of(mesh, window, options.heat);
  if (!heat) return heat.error();
  if (options.json) {
    print_answer(heat_map_json(mesh, window, heat.value()));
    return {};
  }
  const HeatScreen shown = screen();
  const std::string text = heat_map_text(mesh, window, heat.value(), shown);
  shown.colours ? print_coloured(text) : print_text(text);
  return {};
}

}  // namespace

void add_status_command(Command& app, int& status) {
  auto* command = app.add_subcommand(
      "status", "Print the state of a running, hung or ended run: step, rate, what each rank does, what ended it");
  auto options = std::make_shared<StatusOptions>();
  command->add_option("run_dir", options->run_dir, "run.dir of a run; shows its ranks on this machine")->required();
  auto* hang = command->add_option("--hang", options->dump,
                                   "Print the report of the newest hang, or of the given dump: which ranks blocked "
                                   "the run, and how");
  hang->expected(0, 1)->type_name("[DUMP]");
  auto* heat = command->add_option(
      "--heat", options->heat,
      fmt::format("Print a map of all ranks for the newest steps in ranks.h5: {}", fmt::join(heat_quantities(), ", ")));
  heat->type_name("QUANTITY")->excludes(hang);
  auto* json = command->add_flag("--json", options->json,
                                 "Print one JSON object; with --hang or --heat, that of the report or the map");
  auto* watched = command->add_flag("--watch", options->watch,
                                    "Show a screen that follows the run: curve, where the time goes, ranks, last "
                                    "events");
  watched->excludes(hang)->excludes(heat)->excludes(json);
  command->add_option("--every", options->every, "Seconds between updates of --watch; default: 1")
      ->check(in_range(0.1, 3600.0))
      ->needs(watched);
  command->footer(
      "Ranks are read from their flight records in /dev/shm (TRIREME_BLACK_BOXES) of their machine, even when they\n"
      "are stopped or dead. For a run on several machines:\n"
      "  srun --overlap --jobid=J --ntasks-per-node=1 trireme status RUN_DIR\n"
      "--heat: colours and numbers compare a rank with its stage's others, which do the same work. NO_COLOR: plain.\n"
      "  QUANTITY: step; forward, backward, compute (both), optimizer; exposed waits: tp, cp, ep, pp, dp (transfers),\n"
      "  bubble (other stages), data, waits (all); stolen (no core was free); other (of the host);\n"
      "  send (to a neighbour stage); launch (when gradients are ready for dp), launch_spread, launch_skew;\n"
      "  rate (TFLOP/s of compute).\n"
      "Exit status: 0 in any state of the run; 2: not the folder of a run; 3: no dump of a hang, or no times yet.\n"
      "--json: run_dir, host, attempt, job, world_size, step, steps, newest_event_age_s, newest_dump, last_log_line,\n"
      "state (runs, stands still, ended, failed, gone, unknown, restarting), restart,\n"
      "rate {step, step_ms, tokens_per_s, loss, age_s},\n"
      "slowest {rank, step_ms, of_median}, stragglers [{rank, host, slowdown, text}],\n"
      "hang {kind, headline, culprits, waiting}, end {time, code, text},\n"
      "cause {time, kind, rank, host, text}, ranks [...]; null if unknown.");
  on_run(command, status, [options, hang, heat] {
    if (options->watch) return watch_run(options->run_dir, options->every);
    if (heat->count() > 0) return show_heat(*options);
    return hang->count() > 0 ? show_hang(*options) : show_status(*options);
  });
}

}  // namespace tri
