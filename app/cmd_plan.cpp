// trireme plan: finds the fastest layout of a model on machines that need not be present.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/document_option.h"
#include "io/base/file.h"
#include "lib/simulate/planner.h"

namespace tri {
namespace {

struct PlanArguments {
  std::string config, cluster, output;
  std::vector<std::string> overrides, constants;
  PlanOptions plan;
  double document_tokens = 0;  // 0: those of the token files
  bool json = false, fp8 = false;
};

// Checks before the search whether the file can be written at the end.
Result<void> check_output(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return usage_error("--output {}: this is a folder; name a file in it", path);
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored))
    return usage_error("--output {}: the folder {} does not exist; create it first", path, folder.string());
  return {};
}

Result<void> plan(const PlanArguments& options) {
  if (!options.output.empty())
    if (auto may = check_output(options.output); !may) return may;
  auto parsed = read_run_config(options.config, options.overrides);
  if (!parsed) return parsed.error();
  if (options.fp8) parsed.value().precision.gemm = GemmFormat::kFp8;
  PlanOptions requested = options.plan;
  requested.pinned = pinned_by(options.overrides, parsed.value());
  if (names_field(options.overrides, "data.micro_batch")) requested.micro_batch = parsed.value().data.micro_batch;
  auto config = without_layout(std::move(parsed).value());
  if (!config) return config.error();
  auto cluster = read_cluster(options.cluster, options.constants);
  if (!cluster) return cluster.error();
  auto documents = documents_of(config.value(), options.document_tokens);
  if (!documents) return documents.error();
  requested.documents = std::move(documents).value();
  auto search = search_layouts(config.value(), cluster.value(), requested);
  if (!search) {
    Error error = search.error();
    error.message += without_layout_note(config.value(), cluster.value(), requested);
    return error;
  }
  search.value().notes = plan_notes(config.value(), cluster.value(), requested, search.value());
  if (std::string note = ranks_note(cluster.value(), config.value()); !note.empty())
    search.value().notes.push_back(std::move(note));
  options.json ? print_answer(to_json(search.value(), cluster.value()))
               : print_text(to_text(search.value(), cluster.value()));
  if (options.output.empty()) return {};
  const PlannedLayout& best = search.value().best.front();
  const Config winner =
      on_cluster(with_planned(config.value(), best.workload), cluster.value(), best.step, options.overrides);
  if (auto written = write_file(options.output, to_yaml(winner)); !written) return written.error();
  if (!options.json)
    print_out("wrote {}; `trireme check {} --ranks {} --no-data` prints its memory and time\n", options.output,
              options.output, options.plan.ranks);
  return {};
}

}  // namespace

void add_plan_command(Command& app, int& status) {
  auto* command = app.add_subcommand(
      "plan", "Predict the fastest layouts of a model on the cluster of a file, and write a run config");
  auto options = std::make_shared<PlanArguments>();
  command->add_option("config", options->config, "YAML run config, whose model, batch and optimizer are kept")
      ->required();
  command->add_option("--ranks,--gpus", options->plan.ranks, "Number of ranks")
      ->required()
      ->check(in_range(1, kMostRanks));
  command
      ->add_option("--cluster", options->cluster, "Cluster file: from configs/clusters/ or `trireme bench calibrate`")
      ->required();
  add_document_option(*command, options->document_tokens);
  command->add_option(
      "--set", options->overrides,
      "section.key=value of the config; repeatable. The search keeps the fields of parallel and the data.micro_batch "
      "that are set here, and chooses the rest of the layout");
  command->add_option("--cluster-set", options->constants, "section.key=value of the cluster file; repeatable");
  command->add_option("--keep", options->plan.keep, "Number of layouts to print")->check(in_range(1, 1000));
  command->add_option("--output", options->output, "Write the best layout's run config to this file");
  command->add_flag("--fp8", options->fp8, "Run the GEMMs of the layers in FP8: precision.gemm=fp8");
  command->add_flag("--json", options->json, "Print one JSON object, best layout first");
  on_run(command, status, [options] { return plan(*options); });
}

}  // namespace tri
