// trireme check: predicts what a config will do, without starting it.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "lib/config/config.h"
#include "lib/config/schema.h"
#include "lib/observe/status/check_report.h"
#include "lib/report/picture.h"
#include "lib/simulate/step_memory.h"
#include "lib/train/inputs.h"

namespace tri {
namespace {

struct CheckOptions {
  std::string config, cluster, svg;  // svg: the file of the picture
  std::vector<std::string> overrides;
  std::vector<std::string> get;
  int ranks = 0;  // 0: what the config's mesh has
  bool fields = false, schema = false, reference = false, no_data = false, json = false, verbose = false;
};

// Plans for GPUs of the cluster file. Without one, parallel.schedule: auto chooses among schedules that fit into an
// H100, on which the defaults of cluster.* are based.
Result<JobPlan> plan_on_machines(const Config& config, const std::optional<Cluster>& cluster, int ranks) {
  if (cluster) {
    if (auto known = check_numbers(config, *cluster); !known) return known.error();
    return plan_job(config, facts_on_paper(config, ranks, gpu_of(*cluster), free_bytes_of(*cluster)));
  }
  const bool assumes = config.parallel.schedule == Schedule::kAuto;
  auto plan =
      plan_job(config, facts_on_paper(config, ranks, {}, assumes ? std::optional(kFreeBytesOfH100) : std::nullopt));
  if (plan && assumes && plan.value().device.kind == DeviceKind::kCuda)
    plan.value().lines.emplace_back("the memory is that of an H100; --cluster FILE plans for another GPU");
  return plan;
}

Result<void> report(const CheckOptions& options, const Config& config, const JobPlan& plan, int ranks) {
  if (!options.json)
    print_out("{}", check_report(config, plan, ranks, options.verbose ? CheckDetail::kAll : CheckDetail::kSummary));
  Inputs inputs;
  if (!options.no_data)
    if (auto opened = open_inputs(config, inputs); !opened) return opened;
  if (options.json)
    print_answer(check_json(config, plan, inputs.tokenizer.get(), inputs.dataset ? &*inputs.dataset : nullptr));
  else if (!options.no_data)
    print_out("{}", data_report(config, *inputs.tokenizer, *inputs.dataset));
  for (const ValidationInput& input : inputs.validation)
    if (!options.json)
      print_out("  validation {}: {}, {} tokens, {}\n", input.name, input.order.sources.front().path,
                input.order.sources.front().tokens, counted(input.num_samples(), "sample"));
  return {};
}

Result<void> check(const CheckOptions& options) {
  if (options.fields) {
    print_out("{}", config_help());
    return {};
  }
  if (options.reference) {
    print_out("{}", config_reference());
    return {};
  }
  if (options.schema) {
    print_json(config_schema());
    return {};
  }
  if (options.config.empty()) return usage_error("check needs CONFIG, or one of --fields, --reference and --schema");
  auto text = read_config_text(options.config);
  if (!text) return text.error();
  auto parsed = parse_config(text.value(), options.config, options.overrides);
  if (!parsed) return parsed.error();
  const auto ranks = planned_ranks(parsed.value(), options.ranks);
  if (!ranks) return ranks.error();
  std::optional<Cluster> cluster;
  std::string replaced;  // a warning
  if (!options.cluster.empty()) {
    auto read = read_cluster(options.cluster);
    if (!read) return read.error();
    cluster = std::move(read).value();
    replaced = ranks_note(*cluster, parsed.value());
    parsed.value() = on_machines_of(*cluster, std::move(parsed).value());
  }
  auto config = resolve_config(std::move(parsed).value(), ranks.value());
  if (!config) return config.error();
  auto plan = plan_on_machines(config.value(), cluster, ranks.value());
  if (!plan) return plan.error();
  if (!replaced.empty()) plan.value().warnings.push_back(replaced);
  if (!options.svg.empty())
    if (auto written = write_file(options.svg, mesh_picture(config.value())); !written) return written;
  if (options.get.empty()) return report(options, config.value(), plan.value(), ranks.value());
  std::string values;
  for (const std::string& name : options.get) {
    auto value = config_value(config.value(), name);
    if (!value) return value.error();
    values += value.value() + "\n";
  }
  print_out("{}", values);
  return {};
}

}  // namespace

void add_check_command(Command& app, int& status) {
  auto* command =
      app.add_subcommand("check", "Print topology, memory, FLOPs, bubble and data of a config without starting it");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("config", options->config, "YAML run config");
  command
      ->add_option("--ranks,--gpus", options->ranks,
                   "Number of MPI ranks to plan for; may be omitted if parallel.dp is given")
      ->check(in_range(1, kMostRanks));
  command->add_option("--cluster", options->cluster,
                      "Cluster file, such as one of configs/clusters/: decide what auto means for its GPUs' memory");
  command->add_option("--set", options->overrides, "section.key=value; repeatable");
  command->add_option("--get", options->get, "section.key: print only this field, as the run will use it; repeatable");
  command->add_flag("--no-data", options->no_data,
                    "Do not open token files and tokenizer, for data on another machine; --get does not open them "
                    "either");
  command->add_option("--svg", options->svg, "Write a picture of the mesh to this file");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_flag("--verbose", options->verbose, "Also print exact counts, and the bytes of each rank by name");
  command->add_flag("--fields", options->fields, "Print every config field: default, allowed values, meaning");
  command->add_flag("--reference", options->reference, "Print the fields as Markdown: configs/REFERENCE.md");
  command->add_flag("--schema", options->schema, "Print the fields as a JSON Schema, for editors and check-jsonschema");
  command->callback([options, &status] {
    if (auto result = check(*options); !result) {
      std::fflush(stdout);  // so that errors follow the report, also in a file
      print_err("{}\n", result.error().message);
      status = static_cast<int>(result.error().code);
    }
  });
}

}  // namespace tri
