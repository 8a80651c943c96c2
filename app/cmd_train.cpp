// trireme train: one rank of a training job.
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "lib/train/run.h"

namespace tri {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
};

Result<void> train(const Options& options, Job& job, StartupClock startup) {
  startup.phase_done("mpi");
  auto loaded = load_job_config(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  startup.phase_done("config");
  return run_training(loaded.value(), job, std::move(startup));
}

}  // namespace

void add_train_command(CLI::App& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand("train", "Train: mpirun -n RANKS trireme train CONFIG");
  auto options = std::make_shared<Options>();
  command->add_option("config", options->config, "YAML run config")->required();
  command->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  command->footer([] { return "Config fields:\n" + config_help(); });
  command->callback([=, &status] {
    const StartupClock startup;
    status = run_job(argc, argv, [&](Job& job) { return job_status(job, train(*options, job, startup)); });
  });
}

}  // namespace tri
