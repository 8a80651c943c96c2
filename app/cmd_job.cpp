// trireme job: called by slurm/train.sbatch before it starts the trainer and after the trainer has ended.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "io/base/console.h"
#include "io/base/format.h"
#include "io/base/host.h"
#include "lib/config/config.h"
#include "lib/supervise/batch_job.h"

namespace tri {
namespace {

struct JobOptions {
  std::string config;  // for `begin`
  std::vector<std::string> overrides;
  std::string run_dir, checkpoint_dir;  // for `end`
  int status = 0;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// slurm/train.sbatch has checked its own variables; Slurm's may have a suffix, such as "2(x4)".
int number(const char* name, int otherwise) {
  const std::string text = environment(name);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

// Ranks and nodes of this job, according to Slurm's variables.
struct Shape {
  int nodes = 1, per_node = 1, spares = 0, ranks = 1;
};
Result<Shape> shape_of_job() {
  Shape shape{.nodes = number("SLURM_JOB_NUM_NODES", number("SLURM_NNODES", 1)), .spares = number("SPARES", 0)};
  const int tasks = number("SLURM_NTASKS", shape.nodes * number("SLURM_NTASKS_PER_NODE", 0));
  shape.per_node = number("SLURM_NTASKS_PER_NODE", shape.nodes > 0 ? tasks / shape.nodes : 0);
  if (!environment("SLURM_ARRAY_JOB_ID").empty())
    return usage_error(
        "stopped: tasks of a job array would all train in one run folder; submit runs one by one, slurm/submit.sh "
        "A.yaml B.yaml");
  if (tasks <= 0 || shape.per_node <= 0)
    return usage_error(
        "stopped: the job does not set the number of ranks (SLURM_NTASKS); submit it with --ntasks-per-node=N or -n N");
  if (shape.spares >= shape.nodes)
    return usage_error("stopped: SPARES={} of {} leaves no node to train on; request more with --nodes", shape.spares,
                       counted(shape.nodes, "node"));
  if (shape.spares > 0 && number("SUPERVISE", 1) == 0)
    return usage_error("stopped: SPARES={} needs SUPERVISE=1: only `trireme supervise` can use spares", shape.spares);
  shape.ranks = tasks - shape.spares * shape.per_node;
  return shape;
}

Result<BatchJob::Options> options_of_job(RunFolders folders) {
  ::setenv("SLURM_TIME_FORMAT", "standard", 1);  // the format of times that SlurmJob reads
  const std::string job = environment("SLURM_JOB_ID");
  if (job.empty()) return usage_error("trireme job runs only inside a Slurm job, where slurm/train.sbatch calls it");
  const auto seconds = [](const char* name, int otherwise) { return static_cast<double>(number(name, otherwise)); };
  return BatchJob::Options{
      .start = {.batch = {job, number("SLURM_RESTART_COUNT", 0)},
                .node_list = environment(std::getenv("SLURM_JOB_NODELIST") ? "SLURM_JOB_NODELIST" : "SLURM_NODELIST"),
                .partition = environment("SLURM_JOB_PARTITION"),
                .num_nodes = number("SLURM_JOB_NUM_NODES", number("SLURM_NNODES", 1))},
      .folders = std::move(folders),
      .restart_budget = number("RESTART_BUDGET", 3),
      .controller_seconds = seconds("CONTROLLER_SECONDS", 600),
      .node_seconds = seconds("NODE_SECONDS", 600),
      .drain_seconds = seconds("DRAIN_SECONDS", 110)};
}

Result<int> begin(const JobOptions& options) {
  const auto shape = shape_of_job();
  if (!shape) return shape.error();
  const int ranks = shape.value().ranks, spares = shape.value().spares;
  auto text = read_config_text(options.config);
  if (!text) return file_error("{}", text.error().message);  // storage may recover
  auto parsed = parse_config(text.value(), options.config, options.overrides);
  if (!parsed) return parsed.error();
  const auto config = resolve_config(std::move(parsed).value(), ranks);
  if (!config) return config.error();
  const RunFolders folders{.run = config.value().run.dir, .checkpoints = config.value().checkpoint.dir};
  const auto of_job = options_of_job(folders);
  if (!of_job) return of_job.error();
  const std::string what =
      fmt::format("{} on {}{}, {}", counted(ranks, "rank"), of_job.value().start.node_list,
                  spares > 0 ? ", " + counted(spares, "spare") + " among them" : "", options.config);
  BatchJob job(of_job.value());
  const auto goes_on = job.begin(what);
  if (!goes_on) return goes_on.error();
  if (!goes_on.value()) return static_cast<int>(ExitCode::kNoProgress);
  print_bytes(folders.run + "\n" + folders.checkpoints + "\n");
  print_out("{}\n{}\n", ranks, std::max(1, number("SLURM_CPUS_ON_NODE", 1) / shape.value().per_node));
  for (const std::string& entry : job.environment()) print_bytes(entry + "\n");
  return 0;
}

// Signals to all processes of the job must not end this one before the job is requeued.
Result<int> end(const JobOptions& options) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE}) ignore_signal(signal);
  auto of_job = options_of_job({.run = options.run_dir, .checkpoints = options.checkpoint_dir});
  if (!of_job) return of_job.error();
  if (const std::string step = environment("TRIREME_BEGUN_AT"); !step.empty())
    of_job.value().begun_at = std::atoll(step.c_str());
  const auto left = BatchJob(of_job.value()).end(options.status);
  print_out("{}\n", left.requeue ? fmt::format("requeue {}", left.progress_restart) : "done");
  return 0;
}

void finish(const Result<int>& result, int& status) {
  if (!result) print_err("{}\n", result.error().message);
  status = result ? result.value() : static_cast<int>(result.error().code);
}

}  // namespace

void add_job_command(Command& app, int& status) {
  auto* job = app.add_subcommand("job", "Begin and end each start of a Slurm job; slurm/train.sbatch calls it");
  job->require_subcommand(1);
  auto options = std::make_shared<JobOptions>();

  auto* first = job->add_subcommand("begin", "Check the config, the run folder and the job's budget of restarts");
  first->add_option("config", options->config, "YAML run config")->required();
  first->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  first->footer(
      "Prints one line each: run.dir, checkpoint.dir, ranks, CPUs per rank, and NAME=value lines for the trainer's\n"
      "environment. Ranks and options come from the environment (slurm/OPERATIONS.md). Exit status: 0: train;\n"
      "2: the config or the job is wrong, or another job uses the run folder; 3: storage is unavailable, a later try\n"
      "may succeed; 8: the budget is used up (RESTART_BUDGET).");
  first->callback([=, &status] { finish(begin(*options), status); });

  auto* last = job->add_subcommand("end", "Requeue the job as the exit status of the trainer and its budget allow");
  last->add_option("run_dir", options->run_dir, "run.dir")->required();
  last->add_option("checkpoint_dir", options->checkpoint_dir, "checkpoint.dir")->required();
  last->add_option("--status", options->status, "Exit status of the trainer")->required()->check(kCountOrZero);
  last->footer(
      "Prints \"done\", or \"requeue N\" if Slurm's commands are missing, as in a container: then the caller requeues\n"
      "the job. Start N was the last one that made a newer checkpoint.");
  last->callback([=, &status] { finish(end(*options), status); });
}

}  // namespace tri
