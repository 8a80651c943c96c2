// trireme checkpoint: what is in a folder of checkpoints, and its way to and from other programs.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "app/commands.h"
#include "io/base/format.h"
#include "io/base/progress.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/shard_reader.h"
#include "io/checkpoint/verify.h"
#include "lib/checkpoint/diff.h"
#include "lib/checkpoint/weights.h"
#include "lib/huggingface/export.h"
#include "lib/huggingface/import.h"

namespace tri {
namespace {

int64_t total_bytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const FileRecord& file : manifest.files) bytes += file.bytes;
  return bytes;
}

Result<void> list(const std::string& dir) {
  const auto entries = list_checkpoints(dir);
  if (!entries) return entries.error();
  for (const CheckpointEntry& entry : entries.value()) {
    if (!entry.valid) {
      fmt::print("{:<48} invalid: {}\n", entry.path, entry.why);
      continue;
    }
    const auto manifest = read_manifest(entry.path);
    if (!manifest) return manifest.error();
    const auto layout = manifest.value().info.texts.find("layout");
    fmt::print("{:<48} {:>10} in {} files, {}\n", entry.path, format_bytes(total_bytes(manifest.value())),
               manifest.value().files.size(), layout == manifest.value().info.texts.end() ? "" : layout->second);
  }
  return {};
}

Result<void> inspect(const std::string& folder) {
  const auto manifest = read_manifest(folder);
  if (!manifest) return manifest.error();
  fmt::print("step {}, attempt {}\n", manifest.value().step, manifest.value().attempt);
  for (const auto& [name, value] : manifest.value().info.numbers) fmt::print("{}: {}\n", name, value);
  for (const TensorRecord& tensor : manifest.value().tensors)
    fmt::print("{:<64} {:<4} {:<20} {:>10} in {}\n", tensor.name, enum_name(tensor.type), to_string(tensor.shape),
               format_bytes(num_elements(tensor.shape) * element_bytes(tensor.type)), tensor.pieces.size());
  fmt::print("{} tensors, {}\n", manifest.value().tensors.size(), format_bytes(total_bytes(manifest.value())));
  return {};
}

Result<void> verify_folder(const std::string& folder, int threads) {
  const auto manifest = read_manifest(folder);
  if (!manifest) return manifest.error();
  Result<VerifyReport> report = VerifyReport{};
  {
    ProgressBar progress("verify", "B", total_bytes(manifest.value()));
    report = verify(folder, threads, [&](int64_t bytes) { progress.add(bytes); });
  }
  if (!report) return report.error();
  for (const std::string& problem : report.value().problems) fmt::print(stderr, "{}\n", problem);
  if (!report.value().problems.empty()) return file_error("{}: {} problems", folder, report.value().problems.size());
  fmt::print("{}: {} pieces in {} files, {}: all checksums are right\n", folder, report.value().pieces,
             report.value().files, format_bytes(report.value().bytes));
  return {};
}

Result<void> prune_folder(const std::string& dir, int keep_last, int64_t keep_every) {
  const auto removed = prune(dir, keep_last, keep_every, new_attempt());
  if (!removed) return removed.error();
  for (const std::string& name : removed.value()) fmt::print("removed {}\n", name);
  return {};
}

Result<void> export_model(huggingface::ExportOptions options, const std::string& path) {
  auto folder = find_checkpoint(path);
  if (!folder) return folder.error();
  options.checkpoint = std::move(folder).value();
  const auto summary = huggingface::export_checkpoint(options);
  if (!summary) return summary.error();
  const huggingface::ExportSummary& s = summary.value();
  fmt::print("{}: {}, {} tensors, {} of {} in {} file(s), from {}\ntokenizer: {}\n", options.folder, s.architecture,
             s.tensors, format_bytes(s.bytes), enum_name(options.dtype), s.files, options.checkpoint, s.tokenizer);
  return {};
}

Result<void> import_run(const huggingface::ImportOptions& options) {
  const auto summary = huggingface::import_model(options);
  if (!summary) return summary.error();
  const huggingface::ImportSummary& s = summary.value();
  fmt::print("{}: {}, {} tensors, {} of weights\ntokenizer: {}\nto train: trireme train {} --set data.sources=...\n",
             s.checkpoint, s.architecture, s.tensors, format_bytes(s.bytes), s.tokenizer, s.config);
  return {};
}

void add_export(CLI::App& checkpoint, int& status) {
  auto* command = checkpoint.add_subcommand(
      "export", "Weights to a folder that Hugging Face's transformers loads (GPT-2, LLaMA or Mistral layout)");
  auto options = std::make_shared<huggingface::ExportOptions>();
  auto path = std::make_shared<std::string>(), dtype = std::make_shared<std::string>("fp32");
  auto gigabytes = std::make_shared<double>(5);
  command->add_option("checkpoint", *path, "A step_... folder; or a run's folder: its newest valid checkpoint")
      ->required();
  command->add_option("out_dir", options->folder, "Folder to write, made when absent")->required();
  command->add_option("--dtype", *dtype, "fp32: exact; bf16: rounded to nearest even")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--max-shard-size", *gigabytes, "Gigabytes (10^9 bytes) a file; more only for a single tensor")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  on_run(command, status, [=] {
    options->dtype = *enum_from_name<Dtype>(*dtype);
    options->max_shard_bytes = static_cast<int64_t>(*gigabytes * 1e9);
    return export_model(*options, *path);
  });
}

void add_import(CLI::App& checkpoint, int& status) {
  auto* command = checkpoint.add_subcommand(
      "import", "A folder saved by transformers (GPT-2, LLaMA, Mistral) as the beginning of a run: weights, config");
  auto options = std::make_shared<huggingface::ImportOptions>();
  command->add_option("hf_dir", options->folder, "Folder with config.json and safetensors")->required();
  command
      ->add_option("run_dir", options->run_dir,
                   "Run folder to make: config.yaml, and checkpoints/step_00000000, from which training begins with "
                   "zero moments")
      ->required();
  command->add_option("--set", options->overrides, "section.key=value of the run's config; repeatable");
  on_run(command, status, [options] { return import_run(*options); });
}

std::string describe(const TensorForm& tensor) {
  return fmt::format("{} {}", enum_name(tensor.type), to_string(tensor.shape));
}

std::string line_of(const TensorDiff& t) {
  if (!t.a || !t.b) return fmt::format("only in {}: {}", t.a ? "A" : "B", describe(t.a ? *t.a : *t.b));
  std::string line;
  if (*t.a != *t.b) line = fmt::format("{} in A, {} in B  ", describe(*t.a), describe(*t.b));
  if (t.different > 0)
    line += fmt::format("{} of {} elements differ, by {:.3g} at most, relative {:.3g}", t.different, t.elements,
                        t.max_abs, t.max_relative);
  return line;
}

// Whether they are equal.
Result<bool> diff(const std::string& a_path, const std::string& b_path, const std::string& prefix, int threads) {
  const auto a = find_checkpoint(a_path), b = find_checkpoint(b_path);
  if (!a) return a.error();
  if (!b) return b.error();
  const auto manifest = read_manifest(a.value());
  if (!manifest) return manifest.error();
  Result<CheckpointDiff> compared = CheckpointDiff{};
  {
    int64_t bytes = 0;
    for (const TensorRecord& tensor : manifest.value().tensors)
      if (tensor.name.starts_with(prefix)) bytes += num_elements(tensor.shape) * element_bytes(tensor.type);
    ProgressBar progress("diff", "B", bytes);
    compared = diff_checkpoints(a.value(), b.value(), prefix, threads, [&](int64_t more) { progress.add(more); });
  }
  if (!compared) return compared.error();
  const CheckpointDiff& d = compared.value();
  fmt::print("A: {}, step {}\nB: {}, step {}\n", a.value(), d.a_step, b.value(), d.b_step);
  for (const ConfigDiff& field : d.config) fmt::print("config {}: {} in A, {} in B\n", field.field, field.a, field.b);
  int64_t alone = 0, form = 0, values = 0, equal = 0, different = 0;
  double largest = 0, relative = 0;
  for (const TensorDiff& t : d.tensors) {
    if (t.equal()) {
      ++equal;
      continue;
    }
    fmt::print("{:<64} {}\n", t.name, line_of(t));
    const bool both = t.a && t.b;
    alone += !both;
    form += both && *t.a != *t.b;
    values += t.different > 0;
    different += t.different;
    largest = std::max(largest, t.max_abs);
    relative = std::max(relative, t.max_relative);
  }
  fmt::print(
      "{}: {} tensors, {} equal; {} on one side alone, {} of other type or shape, {} of other values "
      "({} elements, by {:.3g} at most, relative {:.3g}); {} config fields differ\n",
      d.equal() ? "EQUAL" : "DIFFERENT", d.tensors.size(), equal, alone, form, values, different, largest, relative,
      d.config.size());
  return d.equal();
}

void add_diff(CLI::App& checkpoint, int& status) {
  auto* command = checkpoint.add_subcommand(
      "diff", "Compare two checkpoints of any layouts: exit status 0 when all tensors are equal, 1 when one differs");
  auto a = std::make_shared<std::string>(), b = std::make_shared<std::string>(),
       prefix = std::make_shared<std::string>();
  auto threads = std::make_shared<int>(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  command->add_option("a", *a, "A step_... folder; or a run's folder: its newest valid checkpoint")->required();
  command->add_option("b", *b, "Another; differences of the configs are shown, but do not count")->required();
  command->add_option("--only", *prefix, "Tensors whose names begin so: model/ compares the weights alone");
  command->add_option("--threads", *threads, "Reading threads")->check(CLI::Range(1, 1024));
  command->callback([=, &status] {
    const auto equal = diff(*a, *b, *prefix, *threads);
    if (!equal) fmt::print(stderr, "{}\n", equal.error().message);
    status = equal ? (equal.value() ? 0 : 1) : static_cast<int>(equal.error().code);
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& status) {
  auto* command = app.add_subcommand("checkpoint", "Look into, check, compare, convert and remove checkpoints")
                      ->require_subcommand(1);
  auto path = std::make_shared<std::string>();

  auto* list_command = command->add_subcommand("list", "The checkpoints of a folder, newest first");
  list_command->add_option("dir", *path, "checkpoint.dir of a run")->required();
  on_run(list_command, status, [path] { return list(*path); });

  auto* inspect_command =
      command->add_subcommand("inspect", "The tensors of a checkpoint: types, shapes, sizes, pieces");
  inspect_command->add_option("checkpoint", *path, "A step_... folder")->required();
  on_run(inspect_command, status, [path] { return inspect(*path); });

  auto* verify_command = command->add_subcommand("verify", "Read a checkpoint and compare all checksums");
  auto threads = std::make_shared<int>(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  verify_command->add_option("checkpoint", *path, "A step_... folder")->required();
  verify_command->add_option("--threads", *threads, "Reading threads")->check(CLI::Range(1, 1024));
  on_run(verify_command, status, [path, threads] { return verify_folder(*path, *threads); });

  auto* prune_command = command->add_subcommand("prune", "Remove old checkpoints");
  auto keep_last = std::make_shared<int>(3);
  auto keep_every = std::make_shared<int64_t>(0);
  prune_command->add_option("dir", *path, "checkpoint.dir of a run that is not running")->required();
  prune_command->add_option("--keep-last", *keep_last, "Newest ones that stay")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  prune_command->add_option("--keep-every", *keep_every, "Multiples of this step stay")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  on_run(prune_command, status, [=] { return prune_folder(*path, *keep_last, *keep_every); });

  add_diff(*command, status);
  add_export(*command, status);
  add_import(*command, status);
}

}  // namespace tri
