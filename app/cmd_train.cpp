// trireme train: one rank of a training job.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "io/base/log.h"
#include "lib/comm/job.h"
#include "lib/config/config.h"
#include "lib/train/loop.h"

namespace tri {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
};

// Rank 0 reads the file; everybody resolves the same text, so everybody meets the same errors.
Result<Config> load_config(const Options& options, Job& job) {
  std::string envelope;
  if (job.world_rank() == 0) {
    auto text = read_config_text(options.config);
    envelope = text ? "+" + text.value() : "-" + text.error().message;
  }
  envelope = job.broadcast(envelope);
  const std::string text = envelope.substr(1);
  if (envelope.front() == '-') return Error{text, ExitCode::kUsage};
  auto parsed = parse_config(text, options.config, options.overrides);
  if (!parsed) return parsed.error();
  return resolve_config(std::move(parsed).value(), job.world_size());
}

Result<void> train(const Options& options, Job& job) {
  log_identify(job.world_rank() == 0, fmt::format("rank {}", job.world_rank()));
  auto config = load_config(options, job);
  if (!config) return config.error();
  const auto& parallel = config.value().parallel;
  const Mesh mesh = make_mesh(job.world_rank(), parallel.tp, parallel.dp, parallel.pp);
  log_identify(job.world_rank() == 0, mesh.place());
  return run_training(config.value(), mesh, job);
}

}  // namespace

void add_train_command(CLI::App& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand("train", "Train: mpirun -n RANKS trireme train CONFIG");
  auto options = std::make_shared<Options>();
  command->add_option("config", options->config, "YAML run config")->required();
  command->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  command->footer([] { return "Config fields:\n" + config_help(); });
  command->callback([=, &status] {
    status = run_job(argc, argv, [&](Job& job) {
      const auto result = train(*options, job);
      if (result) return 0;
      if (job.world_rank() == 0) std::fprintf(stderr, "%s\n", result.error().message.c_str());
      return static_cast<int>(result.error().code);
    });
  });
}

}  // namespace tri
