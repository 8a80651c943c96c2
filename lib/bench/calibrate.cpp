#include "lib/bench/calibrate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "io/base/format.h"
#include "lib/bench/comm.h"
#include "lib/bench/step.h"
#include "lib/simulate/step_model.h"

namespace tri {
namespace {

struct Variant {
  std::string name;
  Config config;
  double seconds = 0, scatter = 0;
};

// Smaller than the config, on the same layout. Each changes what another part of a step's time depends on.
std::vector<Variant> variants_of(const Config& config) {
  std::vector<Variant> variants;
  const auto add = [&](const std::string& name, const Config& changed) { variants.push_back({name, changed}); };
  Config half = config;
  const int least = config.data.micro_batch * config.parallel.dp;
  half.data.global_batch = config.data.global_batch / 2 / least * least;
  if (half.data.global_batch > 0) add("half of the batch", half);
  half = config;
  const int stages = config.parallel.pp * config.parallel.chunks;
  half.model.layers = config.model.layers / 2 / stages * stages;
  if (half.model.layers > 0) add("half of the layers", half);
  half = config;
  half.model.seq_len = config.model.seq_len / 2;
  half.model.window = std::min(config.model.window, half.model.seq_len);
  if (half.model.seq_len > 0 && half.model.seq_len % config.parallel.tp == 0) add("half of the sequence", half);
  half = config;
  half.data.micro_batch = config.data.micro_batch / 2;
  if (config.data.micro_batch % 2 == 0) add("half of the micro-batch", half);
  return variants;
}

void measure(Variant& variant, const Mesh& mesh, Job& job, Device& device, const CalibrationBench& bench) {
  const StepBenchResult result = bench_step(
      variant.config, mesh, job, device, {.steps = bench.steps, .warmup = bench.warmup, .profiled = 0, .timed = false});
  // World rank 0's clock: all ranks end a step together.
  const double seconds = job.broadcast(result.median_ms) / 1e3;
  const double scatter = job.broadcast((result.slowest_ms - result.fastest_ms) / result.median_ms);
  // The fastest round: others' load on the machine only adds.
  if (variant.seconds > 0 && seconds >= variant.seconds) return;
  variant.seconds = seconds;
  variant.scatter = scatter;
}

// Bandwidth and latency of rings from the smallest and the largest buffers of the axes that lie inside a machine.
void use_transfers(const std::vector<CommRow>& rows, ClusterNode& node) {
  double largest = 0;
  for (const CommRow& row : rows) {
    if (row.operation != "all-gather" || row.ranks < 2) continue;
    const double seconds = row.microseconds / 1e6;
    if (row.bytes <= 1 << 12) node.latency_us = std::max(0.1, row.microseconds / (row.ranks - 1));
    if (static_cast<double>(row.bytes) < largest || seconds <= 0) continue;
    largest = static_cast<double>(row.bytes);
    node.gb_per_s = std::max(1e-3, row.bus_bytes_per_s / 1e9);
  }
  node.start_us = 0;  // part of the latency that was measured
}

Cluster start_values(const Config& config, const Mesh& mesh, Device& device) {
  Cluster cluster;
  const bool gpu = device.kind() == DeviceKind::kCuda;
  cluster.software.name = "Trireme";
  cluster.node.ranks = std::min(mesh.world_size(), config.cluster.ranks_per_node);
  cluster.stragglers = {.share = 0, .slowdown = 0, .jitter = 0};
  if (gpu) {
    cluster.device.name = "GPU, calibrated";
    cluster.device.bf16_tflops = device.peak_tflops(Dtype::kBF16).value_or(cluster.device.bf16_tflops);
    return cluster;
  }
  cluster.device.name = "CPU, calibrated";
  // More than one core can; the fit finds the shares.
  cluster.device.fp32_tflops = cluster.device.bf16_tflops = 1;
  cluster.device.fp8_tflops = 0;
  cluster.device.multiprocessors = cluster.device.tile = 1;
  cluster.device.memory_gb_per_s = 200;
  cluster.software.gemm_share = cluster.software.memory_share = 0.05;
  cluster.device.memory_gib = 4;
  cluster.node.workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  cluster.software.launch_us = 5;
  cluster.software.skew_us = 0;
  return cluster;
}

double predicted(const Config& config, const Cluster& cluster) {
  return predict_step(workload_of(config), cluster).seconds;
}

}  // namespace

// Coordinate descent on the squares of the relative errors, in steps that shrink.
void fit_constants(const std::vector<MeasuredStep>& steps, Cluster& cluster) {
  ClusterSoftware& s = cluster.software;
  struct Knob {
    double* value;
    double factor;  // multiplies or divides
    double low, high;
  };
  s.fixed_s = std::max(1e-5, s.fixed_s);
  std::vector<Knob> knobs{{&s.gemm_share, 2, 1e-4, 1}, {&s.memory_share, 2, 1e-4, 1}, {&s.fixed_s, 2, 1e-6, 100}};
  // A step's transfers may start sooner than those that were measured, whose host may have been late; never later.
  double& latency = cluster.node.latency_us;
  if (steps.front().config.parallel.tp > 1) knobs.push_back({&latency, 2, std::min(0.1, latency), latency});
  const auto loss = [&] {
    s.attention_forward = s.attention_backward = std::min(1.0, s.gemm_share * 0.7);
    double sum = 0;
    for (const MeasuredStep& step : steps) sum += std::pow(std::log(predicted(step.config, cluster) / step.seconds), 2);
    return sum;
  };
  double best = loss();
  for (int round = 0; round < 40; ++round)
    for (Knob& knob : knobs) {
      bool moved = false;
      for (const double factor : {knob.factor, 1 / knob.factor}) {
        const double before = *knob.value;
        *knob.value = std::clamp(before * factor, knob.low, knob.high);
        const double now = loss();
        if (now < best) {
          best = now;
          moved = true;
          break;
        }
        *knob.value = before;
      }
      if (!moved) knob.factor = std::sqrt(knob.factor);
    }
  loss();
}

Result<Calibration> calibrate(const Config& config, const Mesh& mesh, Job& job, Device& device,
                              const CalibrationBench& bench) {
  std::vector<Variant> variants = variants_of(config);
  if (variants.size() < 2)
    return usage_error(
        "calibrate needs a config of which at least two of the batch, the layers and the sequence can be halved on "
        "this layout; take a larger data.global_batch");
  Calibration calibration{.cluster = start_values(config, mesh, device)};
  const int64_t most_bytes = device.kind() == DeviceKind::kCuda ? int64_t{1} << 28 : int64_t{1} << 20;
  std::vector<CommRow> transfers =
      bench_comm(config, mesh, job, device, {.most_bytes = most_bytes, .rounds = 7, .queued = true});
  use_transfers(transfers, calibration.cluster.node);
  calibration.cluster.node = job.broadcast(calibration.cluster.node);
  Variant whole{"the config itself", config};
  for (int round = 0; round < bench.rounds; ++round) {
    for (Variant& variant : variants) measure(variant, mesh, job, device, bench);
    measure(whole, mesh, job, device, bench);
  }
  std::vector<MeasuredStep> measured;
  for (const Variant& variant : variants) measured.push_back({variant.config, variant.seconds});
  fit_constants(measured, calibration.cluster);
  double squares = 0, scatter = 0;
  const auto add = [&](const Variant& variant, bool fitted) {
    const CalibrationRow row{variant.name, fitted, variant.seconds, predicted(variant.config, calibration.cluster),
                             variant.scatter};
    const double error = row.predicted_s / row.measured_s - 1;
    squares += error * error;
    scatter = std::max(scatter, variant.scatter);
    calibration.rows.push_back(row);
  };
  add(whole, false);
  for (const Variant& variant : variants) add(variant, true);
  // A prediction is as uncertain as the model's errors here, and as the median of steps that scatter.
  const double steps = std::max(1, bench.steps);
  calibration.cluster.uncertainty = std::min(
      1.0, std::sqrt(squares / static_cast<double>(calibration.rows.size()) + scatter * scatter / (4 * steps)));
  return calibration;
}

std::string to_text(const Calibration& calibration) {
  std::string text =
      fmt::format("{:<24}{:>14}{:>14}{:>9}{:>10}\n", "step of", "measured ms", "predicted ms", "error", "scatter");
  for (const CalibrationRow& row : calibration.rows)
    text += fmt::format("{:<24}{:14.2f}{:14.2f}{:>+8.1f}%{:>9.1f}%  {}\n", row.name, 1e3 * row.measured_s,
                        1e3 * row.predicted_s, 100 * (row.predicted_s / row.measured_s - 1), 100 * row.scatter,
                        row.fitted ? "fitted" : "blind");
  return text + fmt::format("uncertainty of a prediction: ± {:.1f} %\n", 100 * calibration.cluster.uncertainty);
}

}  // namespace tri
