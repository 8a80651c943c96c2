// trireme bench: measured speed, as text or JSON.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/bench_layouts.h"
#include "app/bench_overlap.h"
#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/bench/calibrate.h"
#include "lib/bench/checkpoint.h"
#include "lib/bench/comm.h"
#include "lib/bench/kernels.h"
#include "lib/bench/step.h"
#include "lib/engine/rank_tensors.h"
#include "lib/schedule/plan.h"

namespace tri {
namespace {

struct BenchOptions {
  std::string config;
  std::vector<std::string> overrides;
  StepBench step;
  std::string sweep;  // what bench step varies: "layout"; "": nothing
  LayoutSweep layouts;
  KernelBench kernels;
  CommBench comm;
  OverlapBench overlap;
  CheckpointBench checkpoint;
  CalibrationBench calibration;
  std::string output;  // the cluster file that calibrate writes
  bool json = false;
};

nlohmann::ordered_json ops_json(const StepBenchResult& r) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& row : r.ops) rows.push_back({{"op", row.op}, {"calls", row.calls}, {"ms", 1e3 * row.seconds}});
  return rows;
}

nlohmann::ordered_json gemms_json(const StepBenchResult& r) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& row : r.gemms)
    rows.push_back({{"shape", row.shape},
                    {"us", row.microseconds},
                    {"first_us", row.first_microseconds},
                    {"tflops", row.flops / row.microseconds * 1e-6},
                    {"floor_us", row.floor_microseconds},
                    {"form", row.form}});
  return rows;
}

void print_gemms(const StepBenchResult& r) {
  if (r.gemms.empty()) return;
  print_out("\n{:<56}{:>10}{:>10}{:>10}{:>10}{:>9}  {}\n", "GEMM", "us", "first us", "TFLOP/s", "floor us", "of floor",
            "form");
  for (const auto& row : r.gemms)
    print_out("{:<56}{:10.1f}{:10.1f}{:10.1f}{:10.1f}{:8.0f}%  {}\n", row.shape, row.microseconds,
              row.first_microseconds, row.flops / row.microseconds * 1e-6, row.floor_microseconds,
              100 * row.floor_microseconds / row.microseconds, row.form);
}

void print_tables(const StepBenchResult& r) {
  double total = 0;
  for (const auto& row : r.ops) total += row.seconds;
  if (!r.ops.empty()) print_out("\n{:<24}{:>8}{:>12}{:>8}\n", "operation", "calls", "ms/step", "share");
  for (const auto& row : r.ops)
    print_out("{:<24}{:8}{:12.3f}{:7.1f}%\n", row.op, row.calls, 1e3 * row.seconds, 100 * row.seconds / total);
  print_gemms(r);
}

nlohmann::ordered_json times_json(const StepBenchResult& r) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StepTimes& times : r.times) {
    nlohmann::ordered_json object;
    const auto values = times.values();
    for (size_t i = 0; i < values.size(); ++i) object[StepTimes::names()[i]] = 1e3 * values[i];
    stages.push_back(object);
  }
  return stages;
}

nlohmann::ordered_json gpu_json(const StepBenchResult& r) {
  if (!r.gpu_load) return {};
  return {{"sm_mhz", r.gpu_load->sm_mhz},
          {"watts", r.gpu_load->watts},
          {"watts_limit", r.gpu_load->watts_limit},
          {"celsius", r.gpu_load->celsius}};
}

void print(const Config& config, const StepBenchResult& r, bool timed, bool json) {
  if (json) {
    const nlohmann::ordered_json object = {
        {"name", config.run.name},
        {"ms", r.median_ms},
        {"fastest_ms", r.fastest_ms},
        {"slowest_ms", r.slowest_ms},
        {"tokens_per_s", r.tokens_per_s},
        {"tflops_per_rank", r.tflops_per_rank},
        {"mfu", r.mfu ? nlohmann::ordered_json(*r.mfu) : nlohmann::ordered_json()},
        {"mfu_causal", r.mfu_causal ? nlohmann::ordered_json(*r.mfu_causal) : nlohmann::ordered_json()},
        {"mfu_fp8", r.mfu_fp8 ? nlohmann::ordered_json(*r.mfu_fp8) : nlohmann::ordered_json()},
        {"imbalance", r.imbalance ? nlohmann::ordered_json(*r.imbalance) : nlohmann::ordered_json()},
        {"memory_bytes", r.memory_bytes},
        {"loss", r.last_loss},
        {"gpu", gpu_json(r)},
        {"spent_ms", times_json(r)},
        {"ops", ops_json(r)},
        {"gemms", gemms_json(r)}};
    print_object(object);
    return;
  }
  print_out(
      "{}: {:.2f} ms per step ({:.2f} to {:.2f}), {} tokens/s, {:.1f} TFLOP/s per rank{}{}, {} per rank\n",
      config.run.name, r.median_ms, r.fastest_ms, r.slowest_ms, format_count(r.tokens_per_s), r.tflops_per_rank,
      r.mfu ? fmt::format(", MFU {:.1f} % ({:.1f} % with causal attention)", 100 * *r.mfu, 100 * *r.mfu_causal) : "",
      r.mfu_fp8 ? fmt::format(", {:.1f} % of the FP8 peak", 100 * *r.mfu_fp8) : "", format_bytes(r.memory_bytes));
  if (r.imbalance)
    print_out("documents of {} to {} tokens; the busiest dp rank computes {:.1f} % more than the mean\n",
              std::max(1, config.model.seq_len / 16), std::max(1, config.model.seq_len / 2), 100 * *r.imbalance);
  if (r.gpu_load)
    print_out("GPU during these steps: {:.0f} MHz, {:.0f} of {:.0f} W, {:.0f} C (medians)\n", r.gpu_load->sm_mhz,
              r.gpu_load->watts, r.gpu_load->watts_limit, r.gpu_load->celsius);
  for (size_t stage = 0; timed && stage < r.times.size(); ++stage) {
    std::string spent;
    const auto values = r.times[stage].values();
    for (size_t i = 0; i < values.size(); ++i)
      if (const double ms = 1e3 * values[i]; ms >= 5e-3)
        spent += fmt::format("{}{} {:.2f}", spent.empty() ? "" : ", ", StepTimes::names()[i], ms);
    print_out("time per step{}: {} ms\n", r.times.size() > 1 ? fmt::format(", stage {}", stage) : "", spent);
  }
  if (timed && config.parallel.pp > 1) {
    const auto busiest = *std::max_element(r.times.begin(), r.times.end(),
                                           [](const auto& a, const auto& b) { return a.compute < b.compute; });
    print_out("bubble of the busiest stage: {:.1f} % of its work; (pp-1)/(chunks·microbatches) = {:.1f} %\n",
              100 * busiest.bubble / busiest.compute,
              100 * ideal_bubble(config.parallel.pp, microbatches(config), config.parallel.chunks));
  }
  print_tables(r);
}

Result<void> bench_steps(const BenchOptions& options, Job& job) {
  if (!options.sweep.empty())
    return bench_layouts(options.config, options.overrides, options.layouts, options.json, job);
  const auto loaded = open_bench_job(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  const StepBenchResult result =
      bench_step(loaded.value().config(), loaded.value().mesh(), job, *loaded.value().device, options.step);
  if (job.world_rank() == 0) print(loaded.value().config(), result, options.step.timed, options.json);
  return {};
}

// Runs only the autotuning of the GEMMs, without steps.
Result<void> bench_gemms(const BenchOptions& options, Job& job) {
  const auto loaded = open_bench_job(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  const StepBenchResult result = bench_step(loaded.value().config(), loaded.value().mesh(), job, *loaded.value().device,
                                            {.steps = 0, .warmup = 0, .profiled = 0});
  if (job.world_rank() != 0) return {};
  if (options.json) {
    print_object(gemms_json(result));
    return {};
  }
  if (result.gemms.empty())
    print_out("there is nothing to autotune: the {} backend has only one algorithm\n",
              enum_name(loaded.value().config().run.device));
  print_gemms(result);
  return {};
}

Result<void> bench_the_kernels(const BenchOptions& options, Job& job) {
  const auto loaded = open_bench_job(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  if (job.world_size() != 1) return usage_error("bench kernels measures one device; start it on one rank");
  const Config& config = loaded.value().config();
  const KernelBenchResult result = bench_kernels(config, *loaded.value().device, options.kernels);
  if (options.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const KernelRow& row : result.rows)
      rows.push_back({{"kernel", row.name},
                      {"shape", row.shape},
                      {"us", row.microseconds},
                      {"bytes", row.bytes},
                      {"flops", row.flops},
                      {"floor_us", row.floor_microseconds}});
    print_object(nlohmann::ordered_json({{"copy_bytes_per_s", result.copy_bytes_per_s}, {"kernels", rows}}));
    return {};
  }
  print_out(
      "device copy: {:.0f} GB/s, reads and writes added. A floor is the least possible time: that of the smallest "
      "number of bytes at this rate, or of the FLOPs at the data sheet's peak\n\n",
      result.copy_bytes_per_s * 1e-9);
  print_out("{:<38}{:<40}{:>10}{:>10}{:>10}{:>10}{:>9}\n", "kernel", "shape", "us", "GB/s", "TFLOP/s", "floor us",
            "of floor");
  for (const KernelRow& row : result.rows) {
    const double gigabytes = row.bytes / row.microseconds * 1e-3, teraflops = row.flops / row.microseconds * 1e-6;
    print_out("{:<38}{:<40}{:10.1f}{:>10}{:>10}{:10.1f}{:8.0f}%\n", row.name, row.shape, row.microseconds,
              row.bytes > 0 ? fmt::format("{:.0f}", gigabytes) : "",
              row.flops > 0 ? fmt::format("{:.1f}", teraflops) : "", row.floor_microseconds,
              100 * row.floor_microseconds / row.microseconds);
  }
  return {};
}

Result<void> bench_the_comm(const BenchOptions& options, Job& job) {
  const auto loaded = open_bench_job(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  const auto rows =
      bench_comm(loaded.value().config(), loaded.value().mesh(), job, *loaded.value().device, options.comm);
  if (job.world_rank() != 0) return {};
  if (options.json) {
    nlohmann::ordered_json objects = nlohmann::ordered_json::array();
    for (const CommRow& row : rows)
      objects.push_back({{"axis", row.axis},
                         {"operation", row.operation},
                         {"ranks", row.ranks},
                         {"bytes", row.bytes},
                         {"us", row.microseconds},
                         {"bus_bytes_per_s", row.bus_bytes_per_s}});
    print_object(objects);
    return {};
  }
  print_out("{:<6}{:<16}{:>7}{:>14}{:>12}{:>14}\n", "axis", "operation", "ranks", "bytes", "us", "bus GB/s");
  for (const CommRow& row : rows)
    print_out("{:<6}{:<16}{:7}{:>14}{:12.1f}{:14.1f}\n", row.axis, row.operation, row.ranks, format_bytes(row.bytes),
              row.microseconds, row.bus_bytes_per_s * 1e-9);
  if (rows.empty()) print_out("no axis has more than one rank, so there is nothing to measure; start more ranks\n");
  return {};
}

Result<void> bench_the_overlap(const BenchOptions& options, Job& job) {
  return bench_overlaps(options.config, options.overrides, options.overlap, options.json, job);
}

nlohmann::ordered_json checkpoint_json(const CheckpointBenchResult& r) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CheckpointRow& row : r.rows)
    rows.push_back({{"what", row.name},
                    {"seconds", row.seconds},
                    {"bytes_per_s", static_cast<double>(row.bytes) / row.seconds},
                    {"floor", row.floor},
                    {"floor_seconds", row.floor_seconds},
                    {"of_floor", row.speed}});
  return {{"ranks", r.ranks},
          {"bytes", r.bytes},
          {"cold_reads", r.cold},
          {"step_s", r.step_seconds},
          {"stall_s", r.stall_seconds},
          {"stall_floor_s", r.copy_seconds},
          {"steps_longer_until_published_s", r.beside_seconds},
          {"rows", rows}};
}

Result<void> bench_the_checkpoint(const BenchOptions& options, Job& job) {
  const auto loaded = open_bench_job(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  const auto result =
      bench_checkpoint(loaded.value().config(), loaded.value().mesh(), job, *loaded.value().device, options.checkpoint);
  if (!result) return result.error();
  if (job.world_rank() != 0) return {};
  const CheckpointBenchResult& r = result.value();
  if (options.json) {
    print_object(checkpoint_json(r));
    return {};
  }
  print_out("{} of state on {}\n", format_bytes(r.bytes), counted(r.ranks, "rank"));
  if (!options.checkpoint.stall_only)
    print_out("files are read {}\n",
              r.cold ? "from storage" : "at least partly from the page cache, which could not be dropped");
  print_out("{:<10}{:>10}{:>10}   {:<26}{:>10}{:>12}\n", "what", "s", "GB/s", "floor", "s", "of floor");
  for (const CheckpointRow& row : r.rows)
    print_out("{:<10}{:10.3f}{:10.2f}   {:<26}{:10.3f}{:11.0f}%\n", row.name, row.seconds,
              1e-9 * static_cast<double>(row.bytes) / row.seconds, row.floor, row.floor_seconds, 100 * row.speed);
  print_out(
      "a step takes {:.0f} ms, and {:.0f} ms more after the start of a checkpoint; one copy of the state takes {:.0f} "
      "ms\n",
      1e3 * r.step_seconds, 1e3 * r.stall_seconds, 1e3 * r.copy_seconds);
  print_out("all steps until it was published took {:.0f} ms longer\n", 1e3 * r.beside_seconds);
  return {};
}

Result<void> bench_calibration(const BenchOptions& options, Job& job) {
  const auto loaded = open_bench_job(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  const auto result =
      calibrate(loaded.value().config(), loaded.value().mesh(), job, *loaded.value().device, options.calibration);
  if (!result) return result.error();
  if (job.world_rank() != 0) return {};
  const Calibration& calibration = result.value();
  if (options.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const CalibrationRow& row : calibration.rows)
      rows.push_back({{"step_of", row.name},
                      {"fitted", row.fitted},
                      {"measured_s", row.measured_s},
                      {"predicted_s", row.predicted_s},
                      {"scatter", row.scatter}});
    print_object(nlohmann::ordered_json{{"uncertainty", calibration.cluster.uncertainty}, {"rows", rows}});
  } else {
    print_out("{}", to_text(calibration));
  }
  const std::string warning = warning_of(calibration.cluster);
  if (!warning.empty()) print_err("{}\n", warning);
  if (options.output.empty()) return {};
  const std::string head = fmt::format("# Written by `trireme bench calibrate {}` on {}.\n", options.config,
                                       counted(job.world_size(), "rank")) +
                           (warning.empty() ? "" : "# " + warning + "\n");
  return write_file(options.output, head + to_yaml(calibration.cluster));
}

using Body = Result<void> (*)(const BenchOptions&, Job&);

}  // namespace

void add_bench_command(Command& app, int& status, int* argc, char*** argv) {
  auto* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  const auto add = [&](const char* name, const char* help, Body body) {
    auto* command = bench->add_subcommand(name, help);
    command->add_option("config", options->config, "YAML run config")->required();
    command->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
    command->add_flag("--json", options->json, "JSON instead of a table");
    on_job(command, status, argc, argv, [=](Job& job) { return body(*options, job); });
    return command;
  };
  const auto add_count = [](Command* command, const char* name, auto& value, const char* help) {
    command->add_option(name, value, help)->check(kCount)->capture_default_str();
  };
  auto* step =
      add("step",
          "Measure steps of a config on random tokens, with data.document_mask: true in documents of 1/16 to 1/2 of "
          "model.seq_len: mpirun -n RANKS trireme bench step CONFIG",
          bench_steps);
  auto* sweep =
      step->add_option("--sweep", options->sweep, "layout: measure many layouts instead of only the config's own")
          ->check(choice_of({"layout"}));
  const auto add_steps = [&](const char* name, int StepBench::*field, const char* help) {
    const auto set = [=](const int& count) { options->step.*field = options->layouts.step.*field = count; };
    step->add_option_function(name, set, help)
        ->check(kCount)
        ->default_str(fmt::format("{}, in a sweep {}", options->step.*field, options->layouts.step.*field));
  };
  add_steps("--steps", &StepBench::steps, "Steps to measure");
  add_steps("--warmup", &StepBench::warmup, "Warm-up steps before the measured ones");
  step->add_option("--profiled", options->step.profiled, "Further steps in which every operation is timed")
      ->check(kCountOrZero)
      ->capture_default_str()
      ->excludes(sweep);
  step->add_flag("!--untimed", options->step.timed,
                 "Skip the measurement of where the time goes, for example to see what it costs")
      ->excludes(sweep);
  step->add_option("--limit", options->layouts.limit, "Largest number of layouts that a sweep tries")
      ->check(kCount)
      ->capture_default_str()
      ->needs(sweep);
  step->footer(kSweepHelp);
  auto* kernels =
      add("kernels",
          "Measure every operation at a config's shapes and compare it with the least possible time, on one rank",
          bench_the_kernels);
  add_count(kernels, "--rounds", options->kernels.rounds, "Number of runs of each; the median is printed");
  add("gemm", "Autotune a config's GEMMs over the library's algorithms", bench_gemms);
  auto* comm = add("comm", "Measure each collective on each axis of a config's mesh", bench_the_comm);
  add_count(comm, "--bytes", options->comm.most_bytes, "Largest buffer; each smaller one is 1/16 of the one before");
  add_count(comm, "--rounds", options->comm.rounds, "Number of runs of each; the median is printed");
  auto* overlap =
      add("overlap", "Measure how much of each axis's communication compute hides: mpirun -n RANKS", bench_the_overlap);
  add_count(overlap, "--rounds", options->overlap.rounds, "Number of rounds of each; the median is printed");
  overlap->footer(kOverlapHelp);
  auto* checkpoint =
      add("checkpoint", "Measure saving and loading a config's state, compared with plain copies, writes and reads",
          bench_the_checkpoint);
  checkpoint->add_option("--dir", options->checkpoint.dir,
                         "Folder on the storage to measure; the files written there are removed; default: run.dir");
  add_count(checkpoint, "--most-bytes", options->checkpoint.most_bytes, "Fail if the state of a rank has more bytes");
  add_count(checkpoint, "--rounds", options->checkpoint.rounds, "Number of runs of each; the median is printed");
  checkpoint->add_flag("--stall", options->checkpoint.stall_only,
                       "Measure only the snapshot and how long steps wait for it: a third of the time for a large "
                       "state");
  auto* calibration = add("calibrate", "Measure steps and write a cluster file for `trireme simulate`: mpirun -n RANKS",
                          bench_calibration);
  calibration->add_option("--output", options->output, "Write the cluster file here");
  add_count(calibration, "--steps", options->calibration.steps, "Number of steps to measure of each variant");
  add_count(calibration, "--rounds", options->calibration.rounds,
            "Number of rounds through all variants; the fastest round of each is used");
}

}  // namespace tri
