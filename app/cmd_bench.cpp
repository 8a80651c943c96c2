// trireme bench: measured speed, as a line for people or JSON.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "lib/observe/metrics.h"
#include "lib/train/bench.h"

namespace tri {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  StepBench bench;
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
                    {"fused", row.fused}});
  return rows;
}

void print_tables(const StepBenchResult& r) {
  double total = 0;
  for (const auto& row : r.ops) total += row.seconds;
  std::printf("\n%-24s%8s%12s%8s\n", "operation", "calls", "ms a step", "share");
  for (const auto& row : r.ops)
    std::printf("%-24s%8d%12.3f%7.1f%%\n", row.op.c_str(), row.calls, 1e3 * row.seconds, 100 * row.seconds / total);
  if (r.gemms.empty()) return;
  std::printf("\n%-56s%10s%10s%10s  %s\n", "matrix product", "us", "first us", "TFLOP/s", "form");
  for (const auto& row : r.gemms)
    std::printf("%-56s%10.1f%10.1f%10.1f  %s\n", row.shape.c_str(), row.microseconds, row.first_microseconds,
                row.flops / row.microseconds * 1e-6, row.fused ? "fused" : "plain");
}

void print(const Config& config, const StepBenchResult& r, bool json) {
  if (json) {
    const nlohmann::ordered_json object = {{"name", config.run.name},
                                           {"ms", r.median_ms},
                                           {"fastest_ms", r.fastest_ms},
                                           {"slowest_ms", r.slowest_ms},
                                           {"tokens_per_s", r.tokens_per_s},
                                           {"tflops_per_rank", r.tflops_per_rank},
                                           {"mfu", r.mfu ? nlohmann::ordered_json(*r.mfu) : nlohmann::ordered_json()},
                                           {"memory_bytes", r.memory_bytes},
                                           {"loss", r.last_loss},
                                           {"ops", ops_json(r)},
                                           {"gemms", gemms_json(r)}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf("%s: %.2f ms a step (%.2f to %.2f), %s tokens/s, %.1f TFLOP/s a rank%s, %s a rank\n",
              config.run.name.c_str(), r.median_ms, r.fastest_ms, r.slowest_ms, format_count(r.tokens_per_s).c_str(),
              r.tflops_per_rank, r.mfu ? fmt::format(", MFU {:.1f} %", 100 * *r.mfu).c_str() : "",
              format_bytes(r.memory_bytes).c_str());
  print_tables(r);
}

Result<void> bench_steps(const Options& options, Job& job) {
  auto loaded = load_job_config(options.config, options.overrides, job);
  if (!loaded) return loaded.error();
  const StepBenchResult result = bench_step(loaded.value().config, loaded.value().mesh, job, options.bench);
  if (job.world_rank() == 0) print(loaded.value().config, result, options.json);
  return {};
}

}  // namespace

void add_bench_command(CLI::App& app, int& status, int* argc, char*** argv) {
  auto* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  auto* step =
      bench->add_subcommand("step", "Steps of a config on random tokens: mpirun -n RANKS trireme bench step CONFIG");
  auto options = std::make_shared<Options>();
  step->add_option("config", options->config, "YAML run config")->required();
  step->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  step->add_option("--steps", options->bench.steps, "Steps to measure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--warmup", options->bench.warmup, "Steps before them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  step->add_flag("--json", options->json, "One JSON object");
  step->callback([=, &status] {
    status = run_job(argc, argv, [&](Job& job) {
      const auto result = bench_steps(*options, job);
      if (result) return 0;
      if (job.world_rank() == 0) std::fprintf(stderr, "%s\n", result.error().message.c_str());
      return static_cast<int>(result.error().code);
    });
  });
}

}  // namespace tri
