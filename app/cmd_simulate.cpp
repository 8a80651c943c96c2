// trireme simulate: simulates a config's step on machines that need not be present.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/document_option.h"
#include "app/version.h"
#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "lib/observe/timeline/simulated_timeline.h"
#include "lib/observe/timeline/timeline.h"
#include "lib/report/picture.h"
#include "lib/report/simulation_page.h"
#include "lib/simulate/memory_checkpoints.h"
#include "lib/simulate/network/network.h"
#include "lib/simulate/published.h"
#include "lib/simulate/scaling.h"
#include "lib/simulate/schedule_rows.h"
#include "lib/simulate/simulation.h"
#include "lib/simulate/step_memory.h"

namespace tri {
namespace {

struct SimulateOptions {
  std::string config, cluster;
  std::string rows, program;  // a CSV file of measurements; a Program, "": trireme, or that of each row
  std::string scaling, svg;   // scaling: "", strong or weak; svg: the file of the picture
  std::string trace, page;    // files to write; "": none
  int most_ranks = 131072;
  std::vector<std::string> overrides, constants;
  int ranks = 0;               // 0: the number that the config's mesh has
  double document_tokens = 0;  // 0: those of the token files
  WorkloadOptions workload;
  NetworkOptions network;
  std::string placement = "packed";
  bool json = false, fp8 = false, fsdp = false, shows_network = false, startup = false, faults = false,
       schedules = false, help_cluster = false, no_stragglers = false, sets_most_ranks = false;
};

// Returns ", steps ± 4.3 %", or "".
std::string within_text(const Cluster& cluster) {
  return plus_minus(cluster).empty() ? "" : fmt::format(", steps{}", plus_minus(cluster));
}

Error begins_beyond(const std::string& what, const Simulation& simulation, const SimulateOptions& options) {
  return usage_error("{} starts at {} ranks, more than --to {}; raise --to", what, simulation.workload.ranks(),
                     options.most_ranks);
}

Result<void> show_scaling(const Simulation& simulation, const SimulateOptions& options) {
  const Scaling scaling = *enum_from_name<Scaling>(options.scaling);
  const auto rows = scaling_rows(simulation.workload, simulation.cluster, scaling, options.most_ranks);
  if (rows.empty()) return begins_beyond("--scaling " + options.scaling, simulation, options);
  const Cluster& cluster = simulation.cluster;
  const std::string within = within_text(cluster);
  options.json
      ? print_answer(to_json(rows))
      : print_text(to_text(rows) + fmt::format("MFU is relative to {}{}\n{}\n", mfu_peak(simulation.workload, cluster),
                                               within, software_note(cluster, simulation.memory_estimated)));
  if (options.svg.empty()) return {};
  return write_file(options.svg,
                    to_svg(rows, fmt::format("{}, {} scaling on {} with {}{}", simulation.name, options.scaling,
                                             cluster.device.name, cluster.software.name, within)));
}

Result<void> show_start_up(const Simulation& simulation, const SimulateOptions& options) {
  const auto rows = scaling_rows(simulation.workload, simulation.cluster, Scaling::kWeak, options.most_ranks);
  if (rows.empty()) return begins_beyond("--startup", simulation, options);
  options.json ? print_answer(to_json(rows)) : print_text(start_up_text(rows));
  return {};
}

Result<void> show_faults(const Simulation& s, int64_t memory_every, const SimulateOptions& options) {
  const auto rows = memory_checkpoint_rows(s.workload, s.cluster, s.step.seconds, memory_every);
  options.json ? print_answer(to_json(rows))
               : print_text(to_text(rows) + software_note(s.cluster, s.memory_estimated) + "\n");
  return {};
}

Result<void> show_schedules(const Simulation& s, const SimulateOptions& options) {
  if (s.workload.pp == 1) return usage_error("--schedules needs several stages, but parallel.pp is 1; raise it");
  const auto rows = schedule_rows(s.workload, s.cluster, options.no_stragglers ? Stragglers::kOff : Stragglers::kOn);
  options.json ? print_answer(to_json(rows))
               : print_text(to_text(rows) + software_note(s.cluster, true) + within_text(s.cluster) + "\n");
  return {};
}

Result<void> write_trace(const Simulation& s, const std::string& path) {
  const auto segments = simulated_segments(s.workload, s.cluster, RingTimes(s.cluster));
  const auto summary = write_timeline(segments, {1, 1}, path);
  if (!summary) return summary.error();
  print_err("wrote {}: a step of one pipeline of {} ({}, {} slices, {} flows); open it in ui.perfetto.dev\n", path,
            counted(s.workload.pp, "stage"), format_bytes(summary.value().bytes),
            format_count(static_cast<double>(summary.value().num_slices)),
            format_count(static_cast<double>(summary.value().num_flows)));
  return {};
}

Result<void> draw_step(const Simulation& s, const std::string& path) {
  const auto picture =
      step_picture(simulated_segments(s.workload, s.cluster, RingTimes(s.cluster)), 1,
                   fmt::format("A step of {}, {}, simulated on {} with {}{}", s.name,
                               counted(s.workload.num_microbatches(), "microbatch"), s.cluster.device.name,
                               s.cluster.software.name, within_text(s.cluster)));
  if (!picture) return picture.error();
  return write_file(path, picture.value());
}

// Lists layouts with the same number of ranks; if none fits, the page says so.
Result<void> write_page(const Simulation& s, const Config& config, const SimulateOptions& options) {
  constexpr int kLayouts = 10;
  SimulationReport report{.simulation = s};
  report.weak = scaling_rows(s.workload, s.cluster, Scaling::kWeak, options.most_ranks);
  report.strong = scaling_rows(s.workload, s.cluster, Scaling::kStrong, options.most_ranks);
  report.ablation = ablation_rows(s.workload, s.cluster, options.no_stragglers ? Stragglers::kOff : Stragglers::kOn);
  if (options.workload.program == Program::kTrireme) {
    auto layouts = search_layouts(config, s.cluster,
                                  {.ranks = s.workload.ranks(), .keep = kLayouts, .documents = s.workload.documents});
    if (layouts) report.layouts = std::move(layouts.value().best);
  }
  const std::string page = simulation_page(report, {.made = wall_seconds(), .version = version_line()});
  if (auto written = write_file(options.page, page); !written) return written;
  print_err("wrote {} ({}); open it in a browser\n", options.page, format_bytes(static_cast<int64_t>(page.size())));
  return {};
}

// Also prints a line about the same job with the other placement.
Result<void> show_network(const Simulation& s, const SimulateOptions& options) {
  NetworkOptions requested = options.network, other = options.network;
  requested.placement = *enum_from_name<Placement>(options.placement);
  other.placement = requested.placement == Placement::kPacked ? Placement::kScattered : Placement::kPacked;
  if (const std::string note = duration_note(s.workload.ranks()); !note.empty()) print_err("{}\n", note);
  auto network = analyse_network(s.workload, s.cluster, requested);
  if (!network) return network.error();
  if (options.json) {
    print_answer(to_json(network.value(), s.cluster));
    return {};
  }
  const auto compared = analyse_network(s.workload, s.cluster, other);
  if (!compared) return compared.error();
  const std::string within =
      plus_minus(s.cluster).empty() ? "" : fmt::format("steps are uncertain by{}\n", plus_minus(s.cluster));
  print_out("{}{}{}\n", to_text(network.value(), &compared.value(), s.workload, s.cluster), within,
            software_note(s.cluster, s.memory_estimated));
  return {};
}

Result<void> show_errors(const SimulateOptions& options, std::optional<Program> program) {
  if (!options.config.empty())
    return usage_error("--rows {} predicts the rows of this file and accepts no config; omit {}", options.rows,
                       options.config);
  if (!options.overrides.empty() || options.ranks > 0 || options.fp8 || options.workload.cp > 1 ||
      options.shows_network || options.startup || options.faults || options.schedules || options.no_stragglers ||
      options.document_tokens > 0 || !(options.scaling + options.svg + options.trace + options.page).empty())
    return usage_error(
        "--rows {} can be combined only with --as, --cluster, --cluster-set and --json; omit other options",
        options.rows);
  const auto rows = published::read_rows(
      options.rows, {.program = program, .cluster = options.cluster, .constants = options.constants});
  if (!rows) return rows.error();
  const auto table = published::error_table(rows.value());
  if (!table) return table.error();
  options.json ? print_answer(published::to_json(table.value())) : print_text(published::to_text(table.value()));
  return {};
}

Result<void> run_simulation(const SimulateOptions& requested) {
  SimulateOptions options = requested;
  if (options.help_cluster) {
    print_out("{}", cluster_help());
    return {};
  }
  const auto program = options.fsdp ? std::optional(Program::kFsdp) : enum_from_name<Program>(options.program);
  if (!options.rows.empty()) return show_errors(options, program);
  options.workload.program = program.value_or(Program::kTrireme);
  if (options.config.empty() || options.cluster.empty())
    return usage_error("simulate needs {}, or --rows FILE, or --constants",
                       options.cluster.empty() ? fmt::format("{}--cluster FILE (see configs/clusters/)",
                                                             options.config.empty() ? "CONFIG and " : "")
                                               : "CONFIG");
  if (options.sets_most_ranks && options.scaling.empty() && !options.startup && options.page.empty())
    return usage_error("--to {}: only --scaling, --startup and --report have a largest number of ranks",
                       options.most_ranks);
  auto parsed = read_run_config(options.config, options.overrides);
  if (!parsed) return parsed.error();
  auto cluster = read_cluster(options.cluster, options.constants);
  if (!cluster) return cluster.error();
  Config config = std::move(parsed).value();
  const auto ranks = planned_ranks(config, options.ranks);
  if (!ranks) return ranks.error();
  const std::string replaced = ranks_note(cluster.value(), config);
  config.cluster.ranks_per_node = cluster.value().node.ranks;  // a tp group must fit into the cluster's nodes
  if (options.fp8) config.precision.gemm = GemmFormat::kFp8;
  auto resolved = resolve_for(options.workload.program, std::move(config), ranks.value());
  if (!resolved) return resolved.error();
  WorkloadOptions workload = options.workload;
  if (options.no_stragglers) workload.stragglers = Stragglers::kOff;
  auto documents = documents_of(resolved.value(), options.document_tokens);
  if (!documents) return documents.error();
  workload.documents = std::move(documents).value();
  auto simulation = simulate(resolved.value(), cluster.value(), workload);
  if (!simulation) return simulation.error();
  if (!replaced.empty()) simulation.value().notes.push_back(replaced);
  if (!options.trace.empty())
    if (auto written = write_trace(simulation.value(), options.trace); !written) return written;
  if (!options.page.empty())
    if (auto written = write_page(simulation.value(), resolved.value(), options); !written) return written;
  if (!options.svg.empty() && options.scaling.empty())
    if (auto written = draw_step(simulation.value(), options.svg); !written) return written;
  if (options.startup) return show_start_up(simulation.value(), options);
  if (options.faults) return show_faults(simulation.value(), resolved.value().checkpoint.memory_every, options);
  if (!options.scaling.empty()) return show_scaling(simulation.value(), options);
  if (options.shows_network) return show_network(simulation.value(), options);
  if (options.schedules) return show_schedules(simulation.value(), options);
  options.json ? print_answer(to_json(simulation.value())) : print_text(to_text(simulation.value()));
  return {};
}

}  // namespace

void add_simulate_command(Command& app, int& status) {
  auto* command = app.add_subcommand(
      "simulate", "Predict a config's step time and its parts, MFU and memory on the cluster of a file");
  auto options = std::make_shared<SimulateOptions>();
  command->add_option("config", options->config, "YAML run config");
  command
      ->add_option("--ranks,--gpus", options->ranks, "Number of ranks; may be omitted if the config sets parallel.dp")
      ->check(in_range(1, kMostRanks));
  command->add_option("--cluster", options->cluster,
                      "Cluster file: from configs/clusters/ or `trireme bench calibrate`");
  command->add_option("--set", options->overrides, "section.key=value of the config; repeatable");
  command->add_option("--cluster-set", options->constants, "section.key=value of the cluster file; repeatable");
  add_document_option(*command, options->document_tokens);
  command->add_flag("--fp8", options->fp8, "Run the GEMMs of the layers in FP8: precision.gemm=fp8");
  command
      ->add_option("--cp", options->workload.cp,
                   "Ranks of dp that split each sequence, as other programs do (context parallelism)")
      ->check(in_range(1, kMostRanks));
  std::vector<std::string> programs;
  for (const auto& [program, name] : EnumNames<Program>::table) programs.emplace_back(name);
  auto* as = command
                 ->add_option("--as", options->program,
                              "Simulate the step of another program, with its gradient types, buckets, overlaps, "
                              "sharding and uneven stages; nemo includes Megatron Core")
                 ->check(choice_of(programs));
  command->add_flag("--fsdp", options->fsdp, "The same as --as fsdp")->excludes(as);
  command->add_option("--rows", options->rows,
                      "Predict the measurements in this CSV file (see configs/published/) and print the errors; its "
                      "columns name programs and cluster files unless --as and --cluster do");
  auto* scaling =
      command
          ->add_option("--scaling", options->scaling,
                       "Print strong scaling (the same batch) or weak scaling (a batch that grows) with more "
                       "replicas")
          ->check(choice_of({"strong", "weak"}));
  auto* to =
      command->add_option("--to", options->most_ranks, "Largest number of ranks of --scaling, --startup and --report")
          ->check(in_range(1, kMostRanks))
          ->capture_default_str();
  auto* startup = command
                      ->add_flag("--startup", options->startup,
                                 "Print the calls, messages, bytes and time of a start for growing numbers of ranks")
                      ->excludes(scaling);
  auto* schedules =
      command
          ->add_flag(
              "--schedules", options->schedules,
              "Print the step, bubble and memory of each pipeline schedule, with the recompute of the config and in "
              "the memory of 1f1b")
          ->excludes(scaling)
          ->excludes(startup);
  command->add_option("--trace", options->trace, "Write the step of one pipeline to this file, which Perfetto opens");
  command->add_option(
      "--report", options->page,
      "Write an HTML page to this file: the step, weak and strong scaling, ablation, layouts, start-up");
  command->add_option("--svg", options->svg,
                      "Write a picture of one pipeline's step to this file; with --scaling, a picture of the parts of "
                      "each step");
  auto* network = command
                      ->add_flag("--network", options->shows_network,
                                 "Print each axis's share of the network and the link that limits it, the step with "
                                 "congestion, and the effect of link flaps")
                      ->excludes(scaling)
                      ->excludes(startup)
                      ->excludes(schedules);
  command
      ->add_flag("--faults", options->faults,
                 "Print the effective time under simulated faults with checkpoints in storage only, and also in memory "
                 "every 10 steps, every step, and at checkpoint.memory_every")
      ->excludes(scaling)
      ->excludes(startup)
      ->excludes(schedules)
      ->excludes(network);
  command->add_option("--placement", options->placement, "Placement of machines on switches: packed or scattered")
      ->check(choice_of({"packed", "scattered"}))
      ->capture_default_str()
      ->needs(network);
  command->add_option("--seed", options->network.seed, "Seed of the flows' hashes and of scattered placement")
      ->capture_default_str()
      ->needs(network);
  command->add_flag("--no-stragglers", options->no_stragglers, "Simulate no slow machines and no jitter");
  command->add_flag(
      "--json", options->json,
      "Print one JSON object, with --scaling or --startup a list with one per number of ranks, with --faults or "
      "--schedules one per row; times in seconds");
  command->add_flag("--constants", options->help_cluster, "Print every constant of a cluster file: default, meaning");
  on_run(command, status, [options, to] {
    options->sets_most_ranks = to->count() > 0;
    return run_simulation(*options);
  });
}

}  // namespace tri
