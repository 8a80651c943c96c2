#include "lib/bench/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "io/base/format.h"
#include "lib/bench/comm.h"
#include "lib/bench/measure.h"
#include "lib/bench/step.h"
#include "lib/config/axis_fields.h"
#include "lib/config/layer_counts.h"
#include "lib/simulate/step_model.h"

namespace tri {
namespace {

struct Variant {
  std::string name;
  MeasuredStep step;
  double scatter = 0;
};

// Returns variants on the config's layout. Each changes the inputs of a different part of a step's time.
std::vector<Variant> variants_of(const Config& config, Device& device) {
  std::vector<Variant> variants;
  const auto add = [&](const std::string& name, const Config& changed) { variants.push_back({name, {changed}}); };
  Config half = config;
  half.data.batch_ramp.clear();
  const int least = config.data.micro_batch * config.parallel.dp;
  half.data.global_batch = config.data.global_batch / 2 / least * least;
  if (half.data.global_batch > 0) add("half of the batch", half);
  half = config;
  const int stages = config.parallel.pp * config.parallel.chunks;
  half.model.layers = config.model.layers / 2 / stages * stages;
  half.parallel.layers_per_chunk = kEvenLayers;
  if (half.model.layers > 0) add("half of the layers", half);
  half = config;
  half.model.seq_len = config.model.seq_len / 2;
  half.model.window = std::min(config.model.window, half.model.seq_len);
  if (half.model.seq_len > 0 && half.model.seq_len % config.parallel.tp == 0) add("half of the sequence", half);
  half = config;
  half.data.micro_batch = config.data.micro_batch / 2;
  if (config.data.micro_batch % 2 == 0) add("half of the micro-batch", half);
  if (device.peak_tflops(Dtype::kE4M3) && config.precision.compute == Dtype::kBF16) {
    Config other = config;
    const bool fp8 = config.precision.gemm == GemmFormat::kFp8;
    other.precision.gemm = fp8 ? GemmFormat::kCompute : GemmFormat::kFp8;
    if (resolve_config(other, static_cast<int>(ranks_along(AxisSet::outside({}), config.parallel))))
      add(fp8 ? "GEMMs in bf16" : "GEMMs in FP8", other);
  }
  return variants;
}

// Returns the seconds per call of the operation, or 0 if none was profiled.
double seconds_of_call(const StepBenchResult& result, std::string_view op) {
  for (const OpProfile::Row& row : result.ops)
    if (row.op == op && row.calls > 0) return row.seconds / row.calls;
  return 0;
}

void measure(Variant& variant, const Mesh& mesh, Job& job, Device& device, const CalibrationBench& bench) {
  // A CPU's kernels share cores with other ranks, so their times say little about the kernels.
  const int profiled = device.kind() == DeviceKind::kCuda ? 2 : 0;
  const StepBenchResult result =
      bench_step(variant.step.config, mesh, job, device,
                 {.steps = bench.steps, .warmup = bench.warmup, .profiled = profiled, .timed = false});
  // World rank 0's clock suffices, because all ranks end a step together.
  const double seconds = job.broadcast(result.median_ms) / 1e3;
  const double scatter = job.broadcast((result.slowest_ms - result.fastest_ms) / result.median_ms);
  const double forward = job.broadcast(seconds_of_call(result, "attention_forward"));
  const double backward = job.broadcast(seconds_of_call(result, "attention_backward"));
  // Keeps the fastest round, because other load on the machine only adds time.
  if (variant.step.seconds > 0 && seconds >= variant.step.seconds) return;
  variant.step = {variant.step.config, seconds, forward, backward};
  variant.scatter = scatter;
}

// Computes the bandwidth and latency of rings from the smallest and the largest buffers of axes inside one machine.
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
  node.start_us = 0;  // included in the measured latency
}

// Uses the GPU's properties, and this program's constants on H200 (configs/clusters/h200.yaml).
void use_gpu(Device& device, Cluster& cluster) {
  ClusterDevice& d = cluster.device;
  ClusterSoftware& s = cluster.software;
  d.name = "GPU, calibrated";
  d.bf16_tflops = device.peak_tflops(Dtype::kBF16).value_or(d.bf16_tflops);
  d.fp8_tflops = device.peak_tflops(Dtype::kE4M3).value_or(0);
  d.fp32_tflops = device.peak_tflops(Dtype::kF32).value_or(d.fp32_tflops);
  constexpr double kGib = 1024.0 * 1024 * 1024;
  d.memory_gib = static_cast<double>(device.free_bytes()) / kGib;
  d.memory_gb_per_s = device_copy_rate(device, int64_t{1} << 29, 9) / 1e9;
  s.memory_share = 1;
  s.launch_us = 2;
  s.cast_bytes = 5;
  s.misaligned_share = 1;
  if (d.fp8_tflops > 0) {
    s.epilogue_exposed = 1;  // measured on H100 (configs/clusters/h100.yaml)
    return;
  }
  // GPUs before Hopper (configs/clusters/a100_megascale.yaml).
  d.multiprocessors = 108;
  d.output_exposed = 1;
  s.misaligned_share = 0.7;
}

Cluster start_values(const Config& config, const Mesh& mesh, Device& device) {
  Cluster cluster;
  const bool gpu = device.kind() == DeviceKind::kCuda;
  cluster.software.name = "Trireme";
  cluster.node.ranks = std::min(mesh.world_size(), config.cluster.ranks_per_node);
  cluster.stragglers = {.share = 0, .slowdown = 0, .jitter = 0};
  if (gpu) {
    use_gpu(device, cluster);
    return cluster;
  }
  cluster.device.name = "CPU, calibrated";
  // A core may exceed this; the fit finds the shares.
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

// Solves linear equations, each a row of coefficients and the right-hand side, by Gaussian elimination without
// pivoting, which suffices for positive definite ones.
std::vector<double> solve(std::vector<std::vector<double>> equations) {
  const size_t n = equations.size();
  for (size_t pivot = 0; pivot < n; ++pivot)
    for (size_t row = 0; row < n; ++row) {
      if (row == pivot) continue;
      const double factor = equations[row][pivot] / equations[pivot][pivot];
      for (size_t column = pivot; column <= n; ++column) equations[row][column] -= factor * equations[pivot][column];
    }
  std::vector<double> unknowns;
  for (size_t i = 0; i < n; ++i) unknowns.push_back(equations[i][n] / equations[i][i]);
  return unknowns;
}

}  // namespace

// With share 1 and ramp 0 the model returns attention's time at its peak. The measured time is that times (1 + ramp /
// 2k) / share, where a query attends to k keys: a line in 1 / 2k.
bool use_attention(const std::vector<MeasuredStep>& steps, Cluster& cluster) {
  ClusterSoftware& s = cluster.software;
  Cluster ideal = cluster;
  ideal.software.attention_forward = ideal.software.attention_backward = 1;
  ideal.software.attention_ramp = ideal.software.attention_ramp_backward = 0;
  const auto use = [&](bool forward, double& share, double& ramp) {
    std::vector<std::pair<double, double>> points;  // 1 / 2k, measured over ideal
    for (const MeasuredStep& step : steps) {
      const double seconds = forward ? step.attention_forward_s : step.attention_backward_s;
      if (seconds <= 0) continue;
      Workload w = workload_of(step.config);
      w.recompute = Recompute::kNone;
      const LayerSpec layer = w.layers()[0];
      const LayerTimes times = layer_times(w, layer, ideal, RingTimes(ideal));
      const double at_peak = (forward ? times.forward : times.backward).attention;
      points.emplace_back(1 / (2 * layer.attention.keys_per_query(AttentionWork::kCausal)), seconds / at_peak);
    }
    if (points.empty()) return false;
    const auto [long_x, long_y] = std::ranges::min(points);  // the fastest call on the same number of keys
    const auto [short_x, short_y] =
        std::ranges::max(points, {}, [](const auto& point) { return std::pair(point.first, -point.second); });
    const double slope = short_x > long_x ? (short_y - long_y) / (short_x - long_x) : 0;
    if (slope > 0 && long_y > slope * long_x) ramp = slope / (long_y - slope * long_x);
    if (slope < 0) ramp = 0;
    share = std::min(1.0, (1 + ramp * long_x) / long_y);
    return true;
  };
  return use(true, s.attention_forward, s.attention_ramp) &&
         use(false, s.attention_backward, s.attention_ramp_backward);
}

// Minimises the squared logarithms of predicted over measured seconds, in the logarithms of the constants: Levenberg
// and Marquardt, with finite differences. Measured steps scatter, and there are hardly more of them than constants. So
// a constant moves from its start by a factor of e only if that improves a step by the scatter of its kind.
void fit_constants(const std::vector<MeasuredStep>& steps, KernelRates rates, Cluster& cluster) {
  ClusterSoftware& s = cluster.software;
  const double tie = rates == KernelRates::kMeasured ? 0.003 : 0.05;  // dedicated GPUs; ranks that share cores
  struct Knob {
    double* value;
    double low, high;
    double start = *value;
  };
  s.layer_us = std::max(10.0, s.layer_us);
  std::vector<Knob> knobs{{&s.gemm_share, 1e-4, 1}, {&s.layer_us, 1e-3, 1e6}};
  if (rates == KernelRates::kUnknown) knobs.push_back({&s.memory_share, 1e-4, 1});
  if (std::ranges::any_of(steps, [](const auto& step) { return step.config.precision.gemm == GemmFormat::kFp8; }))
    knobs.push_back({&s.fp8_gemm_share, 1e-4, 1});
  // In a step, transfers may start sooner than in the measurement, where the host may have been late, but never later.
  double& latency = cluster.node.latency_us;
  if (steps.front().config.parallel.tp > 1) knobs.push_back({&latency, std::min(0.1, latency), latency});

  const auto residuals = [&] {
    if (rates == KernelRates::kUnknown) s.attention_forward = s.attention_backward = std::min(1.0, s.gemm_share * 0.7);
    std::vector<double> logs;
    for (const MeasuredStep& step : steps) logs.push_back(std::log(predicted(step.config, cluster) / step.seconds));
    for (const Knob& knob : knobs) logs.push_back(tie * std::log(*knob.value / knob.start));
    return logs;
  };
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  std::vector<double> now = residuals();
  double damping = 1e-2;
  for (int round = 0; round < 100 && damping < 1e8; ++round) {
    std::vector<std::vector<double>> slopes;  // [knob][residual]
    for (const Knob& knob : knobs) {
      const double before = *knob.value, factor = before * 1.001 > knob.high ? 0.999 : 1.001;
      *knob.value = before * factor;
      std::vector<double>& slope = slopes.emplace_back(residuals());
      for (size_t i = 0; i < slope.size(); ++i) slope[i] = (slope[i] - now[i]) / std::log(factor);
      *knob.value = before;
    }
    std::vector<std::vector<double>> equations;
    for (size_t row = 0; row < knobs.size(); ++row) {
      std::vector<double>& equation = equations.emplace_back();
      for (size_t column = 0; column < knobs.size(); ++column) equation.push_back(dot(slopes[row], slopes[column]));
      equation[row] += damping * (equation[row] + 1e-9);
      equation.push_back(-dot(slopes[row], now));
    }
    const std::vector<double> moves = solve(std::move(equations));
    std::vector<double> before;
    for (size_t i = 0; i < knobs.size(); ++i) {
      before.push_back(*knobs[i].value);
      *knobs[i].value = std::clamp(before[i] * std::exp(std::clamp(moves[i], -1.0, 1.0)), knobs[i].low, knobs[i].high);
    }
    std::vector<double> next = residuals();
    const bool better = dot(next, next) < dot(now, now);
    damping *= better ? 0.3 : 4;
    if (better) {
      now = std::move(next);
    } else {
      for (size_t i = 0; i < knobs.size(); ++i) *knobs[i].value = before[i];
    }
  }
  residuals();
}

Result<Calibration> calibrate(const Config& requested, const Mesh& mesh, Job& job, Device& device,
                              const CalibrationBench& bench) {
  Config config = requested;
  config.data.document_mask = false;  // its pairs of queries and keys are a workload's, not a machine's
  std::vector<Variant> variants = variants_of(config, device);
  if (variants.size() < 2)
    return usage_error(
        "calibrate needs a config in which at least two of batch, layers and sequence can be halved with this layout; "
        "use a larger data.global_batch");
  Calibration calibration{.cluster = start_values(config, mesh, device)};
  const int64_t most_bytes = device.kind() == DeviceKind::kCuda ? int64_t{1} << 28 : int64_t{1} << 20;
  std::vector<CommRow> transfers =
      bench_comm(config, mesh, job, device, {.most_bytes = most_bytes, .rounds = 7, .queued = true});
  use_transfers(transfers, calibration.cluster.node);
  calibration.cluster.node = job.broadcast(calibration.cluster.node);
  calibration.cluster.device.memory_gib = job.broadcast(calibration.cluster.device.memory_gib);
  calibration.cluster.device.memory_gb_per_s = job.broadcast(calibration.cluster.device.memory_gb_per_s);
  Variant whole{"the config itself", {config}};
  for (int round = 0; round < bench.rounds; ++round) {
    for (Variant& variant : variants) measure(variant, mesh, job, device, bench);
    measure(whole, mesh, job, device, bench);
  }
  std::vector<MeasuredStep> measured;
  for (const Variant& variant : variants) measured.push_back(variant.step);
  fit_constants(measured, use_attention(measured, calibration.cluster) ? KernelRates::kMeasured : KernelRates::kUnknown,
                calibration.cluster);
  double squares = 0, scatter = 0;
  const auto add = [&](const Variant& variant, bool fitted) {
    const CalibrationRow row{variant.name, fitted, variant.step.seconds,
                             predicted(variant.step.config, calibration.cluster), variant.scatter};
    const double error = row.predicted_s / row.measured_s - 1;
    squares += error * error;
    scatter = std::max(scatter, variant.scatter);
    calibration.rows.push_back(row);
  };
  add(whole, false);
  for (const Variant& variant : variants) add(variant, true);
  // A prediction is as uncertain as the model's errors here and the median of scattered steps.
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
                        row.fitted ? "fitted" : "held out");
  return text + fmt::format("uncertainty of a prediction: ± {:.1f} %\n", 100 * calibration.cluster.uncertainty);
}

std::string warning_of(const Cluster& cluster) {
  constexpr double kUseful = 0.15;  // layouts worth comparing differ by less
  if (cluster.uncertainty <= kUseful) return "";
  return fmt::format(
      "warning: predictions with this calibration are uncertain by {:.0f} %, because its steps scatter or do not fit "
      "common constants, so they cannot rank layouts; calibrate on an idle machine, with more --rounds",
      100 * cluster.uncertainty);
}

}  // namespace tri
