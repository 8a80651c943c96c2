#include "app/bench_layouts.h"

#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "io/base/progress.h"
#include "lib/model/layer_division.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Json to_json(const Config& config, const SweepRow& row, int ranks) {
  const ParallelLayout& l = row.layout;
  Json object = {{"tp", l.tp},
                 {"dp", l.dp},
                 {"pp", l.pp},
                 {"cp", l.cp},
                 {"chunks", l.chunks},
                 {"schedule", enum_name(l.schedule)},
                 {"zero", l.zero},
                 {"micro_batch", l.micro_batch},
                 {"recompute", enum_name(l.recompute)},
                 {"own", row.own},
                 {"memory_bytes", row.memory_bytes}};
  if (l.layers_per_chunk != kEvenLayers)
    object["layers_per_chunk"] = layer_counts(value_or_throw(resolve_config(with_layout(config, l), ranks)));
  if (!row.problem.empty()) {
    object["problem"] = row.problem;
    return object;
  }
  object["ms"] = row.ms;
  object["tokens_per_s"] = row.tokens_per_s;
  object["mfu"] = row.mfu ? Json(*row.mfu) : Json();
  return object;
}

Json to_json(const Config& config, const SweepResult& result, int ranks) {
  Json rows = Json::array();
  for (const SweepRow& row : result.rows) rows.push_back(to_json(config, row, ranks));
  const LayoutChoice& choice = result.choice;
  return {{"name", config.run.name},
          {"ranks", ranks},
          {"global_batch", config.data.global_batch},
          {"most_bytes", result.most_bytes},
          {"left_bytes", result.left_bytes ? Json(*result.left_bytes) : Json()},
          {"refused", choice.refused},
          {"too_large", choice.too_large},
          {"beyond_limit", choice.beyond_limit},
          {"own_problem", choice.own_problem.empty() ? Json() : Json(choice.own_problem)},
          {"layouts", rows}};
}

void print(const Config& config, const SweepResult& result, int ranks) {
  print_out("{} on {}, {} per step, at most {} per rank\n", config.run.name, counted(ranks, "rank"),
            counted(config.data.global_batch, "sample"), format_bytes(result.most_bytes));
  print_out("{:>3}{:>4}{:>4}{:>5}  {:<12}{:>7}{:>5}{:>7}  {:<10}{:>11}{:>12}{:>8}{:>12}\n", "tp", "cp", "pp", "dp",
            "schedule", "chunks", "zero", "micro", "recompute", "ms", "tokens/s", "MFU", "memory");
  for (const SweepRow& row : result.rows) {
    const ParallelLayout& l = row.layout;
    const std::string numbers = row.problem.empty()
                                    ? fmt::format("{:>11.2f}{:>12}{:>8}", row.ms, format_count(row.tokens_per_s),
                                                  row.mfu ? fmt::format("{:.1f} %", 100 * *row.mfu) : "")
                                    : fmt::format("{:>31}", "failed");
    print_out("{:3}{:4}{:4}{:5}  {:<12}{:7}{:5}{:7}  {:<10}{}{:>12}{}\n", l.tp, l.cp, l.pp, l.dp, enum_name(l.schedule),
              l.chunks, l.zero, l.micro_batch, enum_name(l.recompute), numbers, format_bytes(row.memory_bytes),
              row.own ? "  the config's own" : "");
    if (!row.problem.empty()) print_out("      {}\n", first_line(row.problem));
  }
  const LayoutChoice& choice = result.choice;
  print_out("not tried: {} break a rule of the config, {} do not fit into memory, {} are beyond --limit\n",
            choice.refused, choice.too_large, choice.beyond_limit);
  if (!choice.own_problem.empty())
    print_out("the config's own layout was not tried: {}\n", first_line(choice.own_problem));
  const SweepRow& best = result.rows.front();
  if (best.problem.empty()) print_out("best: {}\n", as_settings(best.layout));
}

}  // namespace

const char* const kSweepHelp =
    "--sweep layout measures the same global batch with many layouts of the job's ranks, the config's own layout "
    "first. "
    "The table lists the fastest layout first.\n"
    "It tries every tp x cp x pp x dp, cp above 1 only for samples of 16,384 tokens or more, with the schedules 1f1b "
    "and interleaved (up to 4 chunks), and for each the three micro-batches that fit and are estimated to be the "
    "fastest. It raises zero (1 or 2) and parallel.recompute only as far as the memory requires. It excludes gpipe and "
    "zero 0, which equal 1f1b and zero 1 but need more memory, and layouts that break a rule of the config or do not "
    "fit. A layout fits if the memory that `trireme check` predicts is free (on the CPU: half of the free memory, "
    "shared by a machine's ranks).\n"
    "Until --limit is reached, it tries the best estimate of each mesh, then the second best of each, and so on. "
    "Estimates count the bubble, recomputation and the rows of a GEMM.\n"
    "A layout that fails is listed with its error; a fault of a machine or a peer ends the sweep.";

Result<void> bench_layouts(const std::string& path, const std::vector<std::string>& overrides, const LayoutSweep& sweep,
                           bool json, Job& job) {
  const auto open = load_open_config(path, overrides, job);
  if (!open) return open.error();
  const Config& config = open.value().config;
  auto device = open_planned_device(open.value().device, job);
  if (!device) return device.error();
  const bool speaks = job.world_rank() == 0;
  ProgressLine progress;
  const auto result =
      sweep_layouts(config, job, *device.value(), sweep, [&](const ParallelLayout& layout, int number, int count) {
        if (speaks) progress.show(fmt::format("layout {}/{}: {}", number, count, to_string(layout)), false);
      });
  if (!result) return result.error();
  const SweepRow& best = result.value().rows.front();
  const Result<void> end =
      best.problem.empty() ? Result<void>() : Error{"no layout could be measured: " + best.problem, best.code};
  if (!speaks) return end;
  progress.show(counted(std::ssize(result.value().rows), "layout") + " tried", true);
  if (json)
    print_object(to_json(config, result.value(), job.world_size()));
  else
    print(config, result.value(), job.world_size());
  return end;
}

}  // namespace tri
