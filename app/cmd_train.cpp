// trireme train: one rank of a training job.
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "app/version.h"
#include "io/base/log.h"
#include "io/base/stderr.h"
#include "lib/train/run.h"

namespace tri {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool quiet = false;
};

// Returns the command as it would be typed in a shell.
std::string command_line(int argc, const char* const* argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) {
    std::string word = argv[i];
    if (word.empty() || word.find_first_not_of(
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%") != word.npos) {
      std::string quoted;
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = "'" + quoted + "'";
    }
    line += (i == 0 ? "" : " ") + word;
  }
  return line;
}

// Stops a rank on a signal, from the start of the process.
struct Stop {
  const StopSignals signals;
  StopDeadline deadline{signals};
};

Result<void> train(const TrainOptions& options, const std::string& command, Job& job, ProcessDeadline& deadline,
                   Stop& stop, StartupClock startup) {
  if (options.quiet) log_quiet();
  startup.phase_done("mpi");
  auto loaded = load_job_config(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  startup.phase_done("config");
  deadline.set(loaded.value().config.fault);
  const RunStart start{.config_path = options.config,
                       .command_line = command,
                       .version = version_line(),
                       .signals = stop.signals,
                       .stop_deadline = stop.deadline,
                       .on_watched = [&deadline] { deadline.hand_over(); }};
  return run_training(loaded.value(), start, job, std::move(startup));
}

}  // namespace

void add_train_command(Command& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand("train", "Train: mpirun -n RANKS trireme train CONFIG");
  auto options = std::make_shared<TrainOptions>();
  command->add_option("config", options->config, "YAML run config")->required();
  command->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  command->add_flag("--quiet", options->quiet,
                    "Print only warnings and errors on the terminal; log.txt still follows metrics.log");
  command->footer(
      "trireme check --fields prints the config fields; trireme check CONFIG --ranks N shows what a config will do.\n"
      "Exit status: 0: done; 1: internal error; 2: config; 3: file, checkpoint; 4: device; 5: communication; 6: hang;\n"
      "7: loss or gradients are not finite; 75: stopped by a signal, or storage was unavailable: run it again.");
  command->callback([=, &status] {
    const StartupClock startup;
    write_stderr_in_background();                         // steps do not wait for it
    const std::string line = command_line(*argc, *argv);  // before MPI removes its own arguments
    Stop stop;
    status = run_watched_job(argc, argv, [&](Job& job, ProcessDeadline& deadline) {
      const StopSignals again;  // MPI may have replaced handlers
      stop.deadline.set_job(&job);
      const int ended = job_status(job, train(*options, line, job, deadline, stop, startup));
      stop.deadline.cancel();
      stop.deadline.set_job(nullptr);
      return ended;
    });
  });
}

}  // namespace tri
