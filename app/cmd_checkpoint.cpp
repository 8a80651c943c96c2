// trireme checkpoint: what is in a folder of checkpoints, and its way to and from other programs.
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/commands.h"
#include "io/base/date.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "io/base/progress.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/run_lock.h"
#include "io/checkpoint/shard_reader.h"
#include "io/checkpoint/verify.h"
#include "lib/checkpoint/diff.h"
#include "lib/checkpoint/retention.h"
#include "lib/checkpoint/weights.h"
#include "lib/huggingface/export.h"
#include "lib/huggingface/import.h"
#include "lib/observe/metrics/metrics_reader.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

int64_t total_bytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const FileRecord& file : manifest.files) bytes += file.bytes;
  return bytes;
}

std::string layout_of(const Manifest& manifest) {
  const auto layout = manifest.info.texts.find("layout");
  return layout == manifest.info.texts.end() ? "" : layout->second;
}

// When its manifest was written, in seconds since 1970; 0: unknown.
double written_at(const std::string& folder) {
  struct stat info {};
  return ::stat((folder + "/manifest.json").c_str(), &info) == 0 ? static_cast<double>(info.st_mtime) : 0;
}

// The loss after a step, from the metrics of the run whose folder holds the checkpoints; unknown if there are none.
double loss_after(const RunMetrics& metrics, int64_t step) {
  const auto at = std::lower_bound(metrics.steps.begin(), metrics.steps.end(), step,
                                   [](const StepRecord& record, int64_t wanted) { return record.step < wanted; });
  return at != metrics.steps.end() && at->step == step ? at->loss : kUnknown;
}

// One whose manifest cannot be read any more, as when a concurrent prune removes it, is invalid like a damaged one.
Json list_entry(const CheckpointEntry& entry, const RunMetrics& metrics) {
  const auto invalid = [&](const std::string& why) {
    return Json{{"step", entry.step}, {"path", entry.path}, {"valid", false}, {"why", why}};
  };
  if (!entry.valid) return invalid(entry.why);
  const auto manifest = read_manifest(entry.path);
  if (!manifest) return invalid(manifest.error().message);
  Json object = {{"step", entry.step}, {"path", entry.path}, {"valid", true}};
  object["bytes"] = total_bytes(manifest.value());
  object["files"] = manifest.value().files.size();
  object["layout"] = layout_of(manifest.value());
  const double loss = loss_after(metrics, entry.step), time = written_at(entry.path);
  object["time"] = time > 0 ? Json(time) : Json();
  object["loss"] = std::isfinite(loss) ? Json(loss) : Json();
  return object;
}

std::string date_of(const Json& time) {
  if (time.is_null()) return std::string(16, ' ');
  return local_date(time.get<double>(), "%F %H:%M");
}

Result<void> list(const std::string& path, bool json) {
  const auto dir = find_checkpoints_folder(path);
  if (!dir) return dir.error();
  const auto entries = list_checkpoints(dir.value());
  if (!entries) return entries.error();
  Json all = Json::array();
  MetricsReader metrics(dir.value() + "/../metrics.jsonl");
  (void)metrics.poll();  // without them, losses are unknown
  for (const CheckpointEntry& entry : entries.value()) all.push_back(list_entry(entry, metrics.metrics()));
  if (json) {
    print_object(Json({{"folder", dir.value()}, {"checkpoints", all}}));
    return {};
  }
  if (all.empty()) print_out("{}: no checkpoint\n", dir.value());
  for (const Json& one : all) {
    const auto where = one["path"].get<std::string>();
    if (one["valid"].get<bool>())
      print_out("{:<48} valid  {}  {:<12}  {:>10} in {}, {}\n", where, date_of(one["time"]),
                one["loss"].is_null() ? "" : fmt::format("loss {:.4f}", one["loss"].get<double>()),
                format_bytes(one["bytes"].get<int64_t>()), counted(one["files"].get<int64_t>(), "file"),
                one["layout"].get<std::string>());
    else
      print_out("{:<48} invalid: {}\n", where, one["why"].get<std::string>());
  }
  return {};
}

int64_t tensor_bytes(const TensorRecord& tensor) { return num_elements(tensor.shape) * element_bytes(tensor.type); }

Result<void> inspect(const std::string& path, bool json) {
  const auto folder = find_checkpoint(path);
  if (!folder) return folder.error();
  const auto read = read_manifest(folder.value());
  if (!read) return read.error();
  const Manifest& manifest = read.value();
  if (json) {
    Json tensors = Json::array();
    for (const TensorRecord& tensor : manifest.tensors)
      tensors.push_back({{"name", tensor.name},
                         {"type", enum_name(tensor.type)},
                         {"shape", tensor.shape},
                         {"bytes", tensor_bytes(tensor)},
                         {"pieces", tensor.shards.size()}});
    const Json object = {{"checkpoint", folder.value()},     {"step", manifest.step},
                         {"attempt", manifest.attempt},      {"layout", layout_of(manifest)},
                         {"bytes", total_bytes(manifest)},   {"files", manifest.files.size()},
                         {"numbers", manifest.info.numbers}, {"tensors", tensors}};
    print_object(object);
    return {};
  }
  print_out("step {}, attempt {}: {}, {}; {}\n", manifest.step, manifest.attempt,
            counted(std::ssize(manifest.tensors), "tensor"), format_bytes(total_bytes(manifest)), layout_of(manifest));
  for (const auto& [name, value] : manifest.info.numbers) print_out("{}: {}\n", name, value);
  for (const TensorRecord& tensor : manifest.tensors)
    print_out("{:<64} {:<4} {:<20} {:>10} in {}\n", tensor.name, enum_name(tensor.type), to_string(tensor.shape),
              format_bytes(tensor_bytes(tensor)), tensor.shards.size());
  return {};
}

Result<void> verify_folder(const std::string& path, int threads, bool json) {
  const auto found = find_checkpoint(path);
  if (!found) return found.error();
  const std::string& folder = found.value();
  const auto manifest = read_manifest(folder);
  if (!manifest) return manifest.error();
  Result<VerifyReport> report = VerifyReport{};
  {
    int64_t bytes = 0;  // bytes read, those of shards; the files hold more
    for (const TensorRecord& tensor : manifest.value().tensors) bytes += tensor_bytes(tensor);
    ProgressBar progress("verify", "B", bytes);
    report = verify(folder, threads, [&](int64_t bytes) { progress.add(bytes); });
  }
  if (!report) return report.error();
  const VerifyReport& r = report.value();
  if (json)
    print_object(Json({{"checkpoint", folder},
                       {"ok", r.problems.empty()},
                       {"files", r.files},
                       {"pieces", r.shards},
                       {"bytes", r.bytes},
                       {"problems", r.problems}}));
  else
    for (const std::string& problem : r.problems) print_err("{}\n", problem);
  if (!r.problems.empty())
    return file_error("{}: {}", folder, counted(static_cast<int64_t>(r.problems.size()), "problem"));
  if (!json)
    print_out("{}: {} in {}, {}: all checksums match\n", folder, counted(r.shards, "shard"), counted(r.files, "file"),
              format_bytes(r.bytes));
  return {};
}

struct PruneOptions {
  std::string path;
  std::optional<int> keep_last;  // none: as in the run's config
  std::optional<int64_t> keep_every;
  bool dry_run = false, json = false;
};

// Returns the requested numbers; those that are not given are the run's own.
Result<Retention> requested_retention(const PruneOptions& options) {
  Retention retention{.source = "as given"};
  if (!options.keep_last || !options.keep_every) {
    auto of_run = retention_of(options.path);
    if (!of_run)
      return Error{of_run.error().message + "; with both --keep-last and --keep-every the run's config is not needed",
                   of_run.error().code};
    retention = std::move(of_run).value();
  }
  retention.keep_last = options.keep_last.value_or(retention.keep_last);
  retention.keep_every = options.keep_every.value_or(retention.keep_every);
  return retention;
}

Result<std::vector<std::string>> prune_or_name(const std::string& dir, const Retention& kept, bool dry_run) {
  const auto old = prunable(dir, kept.keep_last, kept.keep_every);
  if (!old) return old.error();
  std::vector<std::string> names;
  for (const CheckpointEntry& entry : old.value()) names.push_back(std::filesystem::path(entry.path).filename());
  if (dry_run || names.empty()) return names;
  // A running run may be reading one of them, and removes old ones itself.
  const std::string attempt = new_attempt();
  const auto lock = RunLock::take({.checkpoints = dir}, attempt);
  if (!lock) return lock.error();
  return prune(dir, kept.keep_last, kept.keep_every, attempt);
}

Result<void> prune_folder(const PruneOptions& options) {
  const auto dir = find_checkpoints_folder(options.path);
  if (!dir) return dir.error();
  const auto kept = requested_retention(options);
  if (!kept) return kept.error();
  const auto removed = prune_or_name(dir.value(), kept.value(), options.dry_run);
  if (!removed) return removed.error();
  const auto there = list_checkpoints(dir.value());
  if (!there) return there.error();
  const size_t left = there.value().size() - (options.dry_run ? removed.value().size() : 0);
  if (options.json) {
    const Json object = {{"folder", dir.value()},
                         {"removed", removed.value()},
                         {"left", left},
                         {"keep_last", kept.value().keep_last},
                         {"keep_every", kept.value().keep_every},
                         {"dry_run", options.dry_run}};
    print_object(object);
    return {};
  }
  const char* removed_word = options.dry_run ? "would be removed" : "removed";
  for (const std::string& name : removed.value()) print_out("{} {}\n", name, removed_word);
  const std::string milestones =
      kept.value().keep_every > 0 ? fmt::format(" and multiples of step {}", kept.value().keep_every) : "";
  print_out("{}: {} {}, {} left; the {} newest{} are kept ({})\n", dir.value(), removed.value().size(), removed_word,
            left, kept.value().keep_last, milestones, kept.value().source);
  return {};
}

Result<void> export_model(huggingface::ExportOptions options, const std::string& path, bool json) {
  auto folder = find_checkpoint(path);
  if (!folder) return folder.error();
  options.checkpoint = std::move(folder).value();
  const auto summary = huggingface::export_checkpoint(options);
  if (!summary) return summary.error();
  const huggingface::ExportSummary& s = summary.value();
  if (json) {
    const Json object = {{"folder", options.folder},
                         {"checkpoint", options.checkpoint},
                         {"architecture", s.architecture},
                         {"dtype", enum_name(options.dtype)},
                         {"tensors", s.tensors},
                         {"bytes", s.bytes},
                         {"files", s.files},
                         {"tokenizer", s.tokenizer}};
    print_object(object);
    return {};
  }
  print_out("{}: {}, {}, {} of {} in {}, from {}\ntokenizer: {}\n", options.folder, s.architecture,
            counted(s.tensors, "tensor"), format_bytes(s.bytes), enum_name(options.dtype), counted(s.files, "file"),
            options.checkpoint, s.tokenizer);
  if (!s.kept.empty()) print_out("also written, from the imported model: {}\n", fmt::join(s.kept, ", "));
  return {};
}

Result<void> import_run(const huggingface::ImportOptions& options, bool json) {
  const auto summary = huggingface::import_model(options);
  if (!summary) return summary.error();
  const huggingface::ImportSummary& s = summary.value();
  if (!s.head.empty()) print_err("warning: {}: {}\n", options.folder, s.head);
  if (json) {
    const Json object = {{"checkpoint", s.checkpoint}, {"config", s.config}, {"architecture", s.architecture},
                         {"tensors", s.tensors},       {"bytes", s.bytes},   {"tokenizer", s.tokenizer}};
    print_object(object);
    return {};
  }
  print_out("{}: {}, {}, {} of weights\ntokenizer: {}\n", s.checkpoint, s.architecture, counted(s.tensors, "tensor"),
            format_bytes(s.bytes), s.tokenizer);
  if (!s.kept.empty()) print_out("stored for a later export: {}\n", fmt::join(s.kept, ", "));
  print_out("to train: trireme train {} --set data.sources=...\n", s.config);
  return {};
}

void add_export(Command& checkpoint, int& status) {
  auto* command = checkpoint.add_subcommand(
      "export",
      "Write the weights to a folder that Hugging Face's transformers loads (Gemma-2, Gemma-3, GPT-2, GPT-NeoX, LLaMA, "
      "Mistral, Mixtral, OLMo-2, Qwen2, Qwen3 or Qwen3-MoE layout)");
  auto options = std::make_shared<huggingface::ExportOptions>();
  auto path = std::make_shared<std::string>(), dtype = std::make_shared<std::string>("fp32");
  auto gigabytes = std::make_shared<double>(5);
  auto ema = std::make_shared<bool>(false);
  command->add_option("checkpoint", *path, "A step_... folder; or a run's folder: its newest valid checkpoint")
      ->required();
  command->add_option("out_dir", options->folder, "Folder to write; created if missing")->required();
  command->add_flag("--ema", *ema, kEmaHelp);
  command->add_option("--dtype", *dtype, "fp32: exact; bf16: rounded to nearest even")
      ->check(choice_of({"fp32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", *gigabytes,
                   "Gigabytes (10^9 bytes) per file; exceeded only by a single larger tensor")
      ->check(kPositive)
      ->capture_default_str();
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  on_run(command, status, [=] {
    options->dtype = *enum_from_name<Dtype>(*dtype);
    options->weights = *ema ? WeightSet::kAverage : WeightSet::kLast;
    options->max_shard_bytes = static_cast<int64_t>(*gigabytes * 1e9);
    return export_model(*options, *path, *json);
  });
}

void add_import(Command& checkpoint, int& status) {
  auto* command = checkpoint.add_subcommand(
      "import",
      "Start a run from the weights and config of a folder saved by transformers (Gemma-2, Gemma-3, GPT-2, "
      "GPT-NeoX, LLaMA, Mistral, Mixtral, OLMo-2, Qwen2, Qwen3 or Qwen3-MoE)");
  auto options = std::make_shared<huggingface::ImportOptions>();
  command->add_option("hf_dir", options->folder, "Folder with config.json and safetensors")->required();
  command
      ->add_option("run_dir", options->run_dir,
                   "Run folder to create: config.yaml, and checkpoints/step_00000000, from which training starts with "
                   "zero moments")
      ->required();
  command->add_option("--set", options->overrides, "section.key=value of the run's config; repeatable");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  on_run(command, status, [options, json] { return import_run(*options, *json); });
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

Json form_of(const std::optional<TensorForm>& form) {
  if (!form) return nullptr;
  return {{"type", enum_name(form->type)}, {"shape", form->shape}};
}

// JSON has no infinity, so it is printed as null.
void print_json(const std::string& a, const std::string& b, const CheckpointDiff& d) {
  Json tensors = Json::array(), fields = Json::array();
  for (const TensorDiff& t : d.tensors)
    if (!t.equal())
      tensors.push_back({{"name", t.name},
                         {"a", form_of(t.a)},
                         {"b", form_of(t.b)},
                         {"elements", t.elements},
                         {"different", t.different},
                         {"max_abs", t.max_abs},
                         {"max_relative", t.max_relative}});
  for (const ConfigDiff& field : d.config) fields.push_back({{"field", field.field}, {"a", field.a}, {"b", field.b}});
  print_object(Json({{"a", {{"checkpoint", a}, {"step", d.a_step}}},
                     {"b", {{"checkpoint", b}, {"step", d.b_step}}},
                     {"equal", d.equal()},
                     {"tensors", d.tensors.size()},
                     {"different", tensors},
                     {"config", fields}}));
}

// "model/layers/*/norm1/weight": tensors of all layers share a line.
std::string group_of(const std::string& name) {
  std::string group;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, end - at);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    group += (at > 0 ? "/" : "") + (number ? "*" : part);
    at = end + 1;
  }
  return group;
}

// Tensors of other forms or in one checkpoint only, then groups of tensors with other values, the largest difference
// first.
void print_differences(const CheckpointDiff& d) {
  constexpr size_t kMost = 20;
  struct Group {
    std::string name;
    int64_t tensors = 0, elements = 0, different = 0;
    double largest = 0;
  };
  std::map<std::string, Group> groups;
  std::vector<const TensorDiff*> forms;
  for (const TensorDiff& t : d.tensors) {
    if (t.equal()) continue;
    if (!t.a || !t.b || *t.a != *t.b) {
      forms.push_back(&t);
      continue;
    }
    Group& group = groups[group_of(t.name)];
    group.name = group_of(t.name);
    ++group.tensors;
    group.elements += t.elements;
    group.different += t.different;
    group.largest = std::max(group.largest, t.max_abs);
  }
  for (size_t i = 0; i < std::min(forms.size(), kMost); ++i)
    print_out("{:<48} {}\n", forms[i]->name, line_of(*forms[i]));
  if (forms.size() > kMost)
    print_out("more tensors that differ in type or shape, or are in only one checkpoint: {}\n", forms.size() - kMost);
  std::vector<Group> sorted;
  for (const auto& [name, group] : groups) sorted.push_back(group);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Group& a, const Group& b) { return a.largest > b.largest; });
  for (size_t i = 0; i < std::min(sorted.size(), kMost); ++i) {
    const Group& group = sorted[i];
    print_out("{:<52} {:>5}: {:.1f} % of the elements differ, by {:.3g} at most\n", group.name,
              fmt::format("x {}", group.tensors),
              100 * static_cast<double>(group.different) / static_cast<double>(std::max<int64_t>(1, group.elements)),
              group.largest);
  }
  if (sorted.size() > kMost) print_out("more groups of tensors: {}\n", sorted.size() - kMost);
}

void print_diff(const std::string& a, const std::string& b, const CheckpointDiff& d) {
  print_out("A: {}, step {}\nB: {}, step {}\n", a, d.a_step, b, d.b_step);
  for (const ConfigDiff& field : d.config) print_out("config {}: {} in A, {} in B\n", field.field, field.a, field.b);
  print_differences(d);
  int64_t alone = 0, form = 0, values = 0, equal = 0, different = 0;
  double largest = 0, relative = 0;
  for (const TensorDiff& t : d.tensors) {
    if (t.equal()) {
      ++equal;
      continue;
    }
    const bool both = t.a && t.b;
    alone += !both;
    form += both && *t.a != *t.b;
    values += t.different > 0;
    different += t.different;
    largest = std::max(largest, t.max_abs);
    relative = std::max(relative, t.max_relative);
  }
  print_out(
      "{}: {}, {} equal; {} in only one of them, {} with other types or shapes, {} with other values "
      "({}, by {:.3g} at most, relative {:.3g}); {} {}\n",
      d.equal() ? "EQUAL" : "DIFFERENT", counted(std::ssize(d.tensors), "tensor"), equal, alone, form, values,
      counted(different, "element"), largest, relative, counted(std::ssize(d.config), "config field"),
      d.config.size() == 1 ? "differs" : "differ");
}

// Returns whether the checkpoints are equal.
Result<bool> diff(const std::string& a_path, const std::string& b_path, const std::string& prefix, int threads,
                  bool json) {
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
  if (json)
    print_json(a.value(), b.value(), d);
  else
    print_diff(a.value(), b.value(), d);
  return d.equal();
}

void add_checkpoint_diff(Command& checkpoint, int& status) {
  auto* command = checkpoint.add_subcommand(
      "diff", "Compare two checkpoints of any layouts: exit status 0 if all tensors are equal, 1 if one differs");
  auto a = std::make_shared<std::string>(), b = std::make_shared<std::string>(),
       prefix = std::make_shared<std::string>();
  auto threads = std::make_shared<int>(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  command->add_option("a", *a, "A step_... folder; or a run's folder: its newest valid checkpoint")->required();
  command
      ->add_option("b", *b,
                   "Checkpoint to compare with; config differences are printed but do not change the exit status")
      ->required();
  command->add_option("--only", *prefix,
                      "Compare only tensors whose names begin with this: model/ compares the weights");
  command->add_option("--threads", *threads, "Number of threads that read")->check(in_range(1, 1024));
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  on_answer(command, status, [=] { return diff(*a, *b, *prefix, *threads, *json); });
}

}  // namespace

void add_checkpoint_command(Command& app, int& status) {
  auto* command = app.add_subcommand("checkpoint", "Inspect, verify, compare, convert and remove checkpoints")
                      ->require_subcommand(1);
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  const auto add_json = [json](Command* to) { to->add_flag("--json", *json, "Print one JSON object"); };
  const char* one = "A step_... folder; or a run's folder: its newest valid checkpoint";

  auto* list_command = command->add_subcommand("list", "List the checkpoints of a folder, newest first");
  list_command->add_option("dir", *path, "A run's folder, or its checkpoint.dir")->required();
  add_json(list_command);
  on_run(list_command, status, [path, json] { return list(*path, *json); });

  auto* inspect_command =
      command->add_subcommand("inspect", "List the tensors of a checkpoint: types, shapes, sizes, shards");
  inspect_command->add_option("checkpoint", *path, one)->required();
  add_json(inspect_command);
  on_run(inspect_command, status, [path, json] { return inspect(*path, *json); });

  auto* verify_command = command->add_subcommand("verify", "Read a checkpoint and compare all checksums");
  auto threads = std::make_shared<int>(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  verify_command->add_option("checkpoint", *path, one)->required();
  add_json(verify_command);
  verify_command->add_option("--threads", *threads, "Number of threads that read")->check(in_range(1, 1024));
  on_run(verify_command, status, [path, threads, json] { return verify_folder(*path, *threads, *json); });

  auto* prune_command = command->add_subcommand("prune", "Remove the checkpoints that the run would not keep");
  auto pruned = std::make_shared<PruneOptions>();
  prune_command->add_option("dir", pruned->path, "Folder of a run that is not running, or its checkpoint.dir")
      ->required();
  prune_command
      ->add_option("--keep-last", pruned->keep_last,
                   "Number of newest checkpoints to keep; default: the run's checkpoint.keep_last")
      ->check(kCount);
  prune_command
      ->add_option("--keep-every", pruned->keep_every,
                   "Keep checkpoints at multiples of this step; 0 = none of them; default: the run's "
                   "checkpoint.keep_every")
      ->check(kCountOrZero);
  prune_command->add_flag("--dry-run", pruned->dry_run, "Only print what would be removed");
  prune_command->add_flag("--json", pruned->json, "Print one JSON object");
  on_run(prune_command, status, [pruned] { return prune_folder(*pruned); });

  add_checkpoint_diff(*command, status);
  add_export(*command, status);
  add_import(*command, status);
}

}  // namespace tri
