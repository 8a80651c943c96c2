// trireme supervise: runs a training job that recovers from faults inside its allocation.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "app/commands.h"
#include "io/base/clock.h"
#include "io/base/date.h"
#include "io/base/format.h"
#include "io/base/host.h"
#include "io/base/stderr.h"
#include "io/base/within.h"
#include "lib/config/config.h"
#include "lib/fault/process_deadline.h"
#include "lib/supervise/agent.h"
#include "lib/supervise/driver.h"
#include "lib/supervise/slurm_job.h"

namespace tri {
namespace {

constexpr std::chrono::seconds kStorageTimeout{10};

struct SuperviseOptions {
  std::string config;
  std::vector<std::string> overrides;
  int ranks = 0, spares = 0;
  std::string launcher, agent_launcher, hosts;
  bool agent = false, nodes = false, doctor = false;
  std::string cleared;
};

// Returns "" if the current folder no longer exists; the user of the path reports that.
std::string absolute(const std::string& path) {
  std::error_code problem;
  return std::filesystem::absolute(path, problem).lexically_normal().string();
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int positive_variable(const char* name, int otherwise) {
  const int value = std::atoi(variable(name).c_str());  // "2(x4)" of Slurm is 2
  return value > 0 ? value : otherwise;
}

// Prints the names of the excluded nodes, one per line, for scripts: name, end, reason. An event log that cannot be
// read is an error, not an empty list.
Result<void> list_or_clear(const std::string& run_dir, const std::string& cleared) {
  using Read = std::optional<Result<std::vector<RunEvent>>>;
  const std::string path = absolute(run_dir) + "/events.jsonl";
  const Read read = within(
      path, kStorageTimeout,
      [run_dir, path]() -> Read {
        std::error_code absent;
        if (!std::filesystem::is_directory(run_dir, absent)) return usage_error("{}: not the folder of a run", run_dir);
        return read_events(path);
      },
      Read());
  if (!read) return file_error("{}: storage does not respond", path);
  const Result<std::vector<RunEvent>>& events = *read;
  if (!events && events.error().os_error != ENOENT) return events.error();
  const RunHistory history = history_from(events ? events.value() : std::vector<RunEvent>(), wall_seconds());
  if (!cleared.empty()) {
    for (const Exclusion& exclusion : history.exclusions) {
      if (exclusion.node != cleared) continue;
      const EventLog event_log({.path = path, .attempt = "", .job = "", .world_rank = -1, .host = host_name()});
      if (!event_log.append(clear_exclusion_event(cleared))) return file_error("{}: cannot be written", path);
      print_out("node {}: exclusion cleared\n", cleared);
      return {};
    }
    return usage_error("--clear {}: the run in {} does not exclude this node; --nodes lists the excluded ones", cleared,
                       run_dir);
  }
  for (const Exclusion& exclusion : history.exclusions)
    print_out("{}  until {}  {}\n", exclusion.node, local_date(exclusion.until), exclusion.why);
  return {};
}

struct SupervisedRun {
  Config config;
  int ranks = 0;
};
Result<SupervisedRun> plan_of(const SuperviseOptions& options, int offered) {
  auto text = read_config_text(options.config);
  if (!text) return text.error();
  auto parsed = parse_config(text.value(), options.config, options.overrides);
  if (!parsed) return parsed.error();
  const bool is_open = options.ranks == 0 && parsed.value().parallel.dp == 0;
  const auto ranks = planned_ranks(parsed.value(), is_open ? offered : options.ranks);
  if (!ranks) return ranks.error();
  auto config = resolve_config(std::move(parsed).value(), ranks.value());
  if (!config) return config.error();
  return SupervisedRun{std::move(config).value(), ranks.value()};
}

Result<DriverOptions> slurm_options(const SuperviseOptions& options, SupervisedRun& plan) {
  if (variable("SLURM_JOB_NODELIST").empty())
    return usage_error(
        "supervise: SLURM_JOB_NODELIST is not set, so this is not a Slurm job; submit slurm/train.sbatch or, on one "
        "machine, run trireme supervise {} --launcher \"slurm/mpirun -n RANKS\"",
        options.config);
  const int tasks = positive_variable("SLURM_NTASKS", 0);
  int per_node = positive_variable("SLURM_NTASKS_PER_NODE", 0);
  std::vector<std::string> nodes = host_names(variable("SLURM_JOB_NODELIST"));
  if (nodes.empty()) return usage_error("`scontrol show hostnames {}` printed no node", variable("SLURM_JOB_NODELIST"));
  const int count = static_cast<int>(nodes.size());
  if (per_node == 0) per_node = tasks > 0 ? std::max(1, tasks / count) : 1;
  auto planned = plan_of(options, (count - options.spares) * per_node);
  if (!planned) return planned.error();
  plan = std::move(planned).value();
  if (plan.ranks % per_node != 0)
    return usage_error("the config has {}, which is no multiple of the {} per node (--ntasks-per-node)",
                       counted(plan.ranks, "rank"), per_node);
  const int needed = plan.ranks / per_node;
  if (needed + options.spares > count)
    return usage_error("{} and {} are more than the {} of the allocation; request more nodes, or lower --spares",
                       counted(needed, "node"), counted(options.spares, "spare"), counted(count, "node"));
  SlurmShape shape{.ranks_per_node = per_node,
                   .cpus_per_rank = std::max(1, positive_variable("SLURM_CPUS_ON_NODE", 1) / per_node),
                   .straggler_seconds = static_cast<double>(positive_variable("STRAGGLER_SECONDS", 60))};
  std::istringstream more(variable("SRUN_OPTIONS"));
  for (std::string word; more >> word;) shape.options.push_back(word);
  return DriverOptions{.commands = slurm_commands(shape),
                       .setup = {.nodes = std::move(nodes), .nodes_needed = needed, .ranks_per_node = per_node},
                       .start = {variable("SLURM_JOB_ID"), positive_variable("SLURM_RESTART_COUNT", 0)}};
}

Result<DriverOptions> own_options(const SuperviseOptions& options, SupervisedRun& plan) {
  // For "mpirun -n 8": the number of ranks that it starts determines how the config resolves.
  int offered = 0;
  std::istringstream in(options.launcher);
  for (std::string word, before; in >> word; before = word)
    if (before == "-n" || before == "-np") offered = std::atoi(word.c_str());
  auto planned = plan_of(options, offered);
  if (!planned) return planned.error();
  plan = std::move(planned).value();
  std::vector<std::string> nodes = split_names(options.hosts);
  const std::string node = variable("SLURMD_NODENAME");  // the name that an agent uses for itself
  if (nodes.empty()) nodes = {node.empty() ? host_name() : node};
  const int needed = static_cast<int>(nodes.size()) - options.spares;
  if (needed < 1)
    return usage_error("--spares {}: --hosts names only {}, which leaves none to train on", options.spares,
                       counted(std::ssize(nodes), "node"));
  const int per_node = plan.ranks % needed == 0 ? plan.ranks / needed : 0;
  return DriverOptions{.commands = own_commands(options.launcher, options.agent_launcher),
                       .setup = {.nodes = std::move(nodes), .nodes_needed = needed, .ranks_per_node = per_node},
                       .one_machine = options.agent_launcher.empty()};
}

// Returns the deadline for ranks that have not yet read their config.
std::string start_deadline(const FaultConfig& fault) {
  const double seconds = fault.watchdog == Switch::kOff ? 0 : std::min(fault.setup_seconds, kStartSeconds);
  return fmt::format("{}={:g}", kStartSecondsVariable, seconds);
}

Result<int> supervise(const SuperviseOptions& options) {
  write_stderr_in_background();  // driver and agents, which must answer each other in time, do not wait for it
  std::error_code unknown;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown) return system_error(unknown.value(), "/proc/self/exe");
  if (options.nodes || !options.cleared.empty()) {
    if (auto done = list_or_clear(options.config, options.cleared); !done) return done.error();
    return 0;
  }
  if (options.agent) {
    const auto agent = agent_options(options.config, program);
    if (!agent) return agent.error();
    return run_agent(agent.value());
  }
  SupervisedRun plan;
  auto driver = options.launcher.empty() ? slurm_options(options, plan) : own_options(options, plan);
  if (!driver) return driver.error();
  DriverOptions& of_run = driver.value();
  of_run.run_dir = absolute(plan.config.run.dir);
  of_run.checkpoint_dir = absolute(plan.config.checkpoint.dir);
  of_run.program = program;
  of_run.setup.examine = options.doctor;
  of_run.ranks = {program, "train", options.config};
  for (const std::string& setting : options.overrides) of_run.ranks.insert(of_run.ranks.end(), {"--set", setting});
  if (std::getenv(kStartSecondsVariable) == nullptr) of_run.marks = {start_deadline(plan.config.fault)};
  std::error_code problem;
  std::filesystem::create_directories(of_run.run_dir, problem);
  if (problem) return system_error(problem.value(), "run.dir {}: creating the folder", of_run.run_dir);
  return run_driver(of_run);
}

}  // namespace

void add_supervise_command(Command& app, int& status) {
  auto* command = app.add_subcommand(
      "supervise", "Train, and restart automatically after faults: inside an sbatch allocation, or with --launcher");
  auto options = std::make_shared<SuperviseOptions>();
  command->add_option("config", options->config, "YAML run config; with --nodes, run.dir of a run")->required();
  command->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  command->add_option("--ranks", options->ranks,
                      "Number of ranks; default: the config's mesh, or all that fit on the nodes without the spares");
  command->add_option("--spares", options->spares, "Nodes of the allocation that replace failed ones")
      ->check(kCountOrZero);
  command->add_option(
      "--launcher", options->launcher,
      "Without Slurm: the command that starts the ranks, such as \"slurm/mpirun -n 8\"; {nodes} is replaced by their "
      "nodes");
  command->add_option("--hosts", options->hosts,
                      "With --launcher: names of the nodes, separated by commas; default: this machine");
  command->add_option(
      "--agent-launcher", options->agent_launcher,
      "With --hosts: the command that starts the agent of {node}, such as \"ssh {node} env SLURMD_NODENAME={node}\"");
  command->add_flag("--doctor", options->doctor,
                    "Run `trireme doctor` on all nodes before the first attempt, and exclude bad ones");
  command->add_flag("--nodes", options->nodes, "List the nodes that the run excludes, until when and why");
  command->add_option("--clear,--lift", options->cleared, "With --nodes: clear this node's exclusion")
      ->type_name("NODE");
  command->add_flag("--agent", options->agent, "Run as the agent of a node; `trireme supervise` itself uses this");
  command->footer(
      "Exit status: 0: done; 2, 3, 7: as for train, if another attempt would fail in the same way; 8: consecutive\n"
      "attempts made no newer checkpoint; 75: stopped early by a signal, unavailable storage or too few nodes: run\n"
      "the same command again; if there were too few nodes, without those that --nodes lists.\n"
      "run.dir/supervise.conf (\"name: value\" lines) changes thresholds while the run continues:\n"
      "slurm/OPERATIONS.md.");
  command->callback([=, &status] {
    const auto ended = supervise(*options);
    if (!ended) print_err("{}\n", ended.error().message);
    status = ended ? ended.value() : static_cast<int>(ended.error().code);
  });
  add_job_command(app, status);
}

}  // namespace tri
