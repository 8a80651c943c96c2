// GPU checks through NVML. The first rank of a node queries all GPUs of its machine.
#include <array>
#include <cerrno>
#include <set>

#include "io/base/text_file.h"
#include "io/nvml/nvml.h"
#include "kernels/ops.h"
#include "lib/bench/measure.h"
#include "lib/doctor/checks.h"

namespace tri {
namespace {

std::string part_of(const GpuHealth& gpu) {
  return fmt::format("GPU {}{}", gpu.index, gpu.bus_id.empty() ? "" : " (" + gpu.bus_id + ")");
}

// Measures each GPU with `fill`, which returns false if the GPU does not report the value.
template <class Fill>
CheckResult of_gpus(const CheckContext& context, const Fill& fill) {
  CheckResult result;
  if (!context.speaks()) return result;
  const auto nvml = Nvml::open();
  // A machine without a driver has no GPU to query; one with a driver but without its library is broken.
  const bool driver = !first_line_of("/proc/driver/nvidia/version").empty();
  if (!nvml && nvml.error().os_error == ENOENT && !driver) return {.skipped = "the NVIDIA driver is not loaded"};
  if (!nvml) return {.measurements = {{.problem = nvml.error().message}}};
  const auto gpus = nvml.value()->gpus();
  if (!gpus) return {.measurements = {{.problem = gpus.error().message}}};
  for (const GpuHealth& gpu : gpus.value()) {
    Measurement m{.part = part_of(gpu), .group = gpu.name};
    if (fill(gpu, m)) result.measurements.push_back(std::move(m));
  }
  if (result.measurements.empty()) result.skipped = "no GPU reports this value";
  return result;
}

// Returns the node's GPUs that have a rank. Collective.
std::set<std::string> gpus_with_rank(CheckContext& context) {
  std::array<char, 32> mine{};
  context.device.bus_id().copy(mine.data(), mine.size() - 1);
  const auto all = context.job.all_gather(mine);
  std::set<std::string> ids;
  for (const int rank : context.job.node_ranks()) ids.insert(short_bus_id(all[static_cast<size_t>(rank)].data()));
  return ids;
}

// Runs multiplications for 1.5 s. Meanwhile the node's first rank calls `look` with the bus ids of the GPUs that run
// them; the node's other GPUs are idle.
template <class Look>
CheckResult under_load(CheckContext& context, const Look& look) {
  if (context.device.kind() != DeviceKind::kCuda) return {.skipped = "the job uses no GPU"};
  constexpr int64_t n = 4096;
  Arena arena(context.device, 3 * n * n * 2 + 3 * Arena::kAlignment);
  const Tensor a = arena.take("a", Dtype::kBF16, {n, n}), b = arena.take("b", Dtype::kBF16, {n, n}),
               out = arena.take("out", Dtype::kBF16, {n, n});
  fill_random(a, context.stream);
  fill_random(b, context.stream);
  const std::set<std::string> working = gpus_with_rank(context);
  const auto begun = context.device.make_event();
  const auto work = [&](int times) {
    for (int i = 0; i < times; ++i) gemm({.out = out, .a = a, .b = b}, context.stream);
  };
  work(1000);  // 0.2 s at 600 TFLOP/s, after which clocks have settled
  context.stream.record(*begun);
  work(4000);
  begun->synchronize();
  context.job.barrier();
  CheckResult result = look(working);
  context.stream.synchronize();
  return result;
}

}  // namespace

CheckResult check_driver(CheckContext& context) {
  CheckResult result;
  if (!context.speaks()) return result;
  const auto nvml = Nvml::open();
  if (nvml) return {.measurements = {{.text = nvml.value()->driver_version()}}};
  const bool driver = !first_line_of("/proc/driver/nvidia/version").empty();
  if (!driver && nvml.error().os_error == ENOENT) return {.skipped = "the NVIDIA driver is not loaded"};
  return {.measurements = {{.problem = nvml.error().message}}};
}

CheckResult check_gpu_count(CheckContext& context) {
  std::map<std::string, int> kinds;
  CheckResult result = of_gpus(context, [&](const GpuHealth& gpu, Measurement&) {
    ++kinds[gpu.name];
    return false;
  });
  if (kinds.empty()) return result;
  std::string text;
  for (const auto& [name, count] : kinds) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return {.measurements = {{.text = text}}};
}

CheckResult check_gpu_recovery(CheckContext& context) {
  return of_gpus(context, [](const GpuHealth& gpu, Measurement& m) {
    if (gpu.recovery_action) m.value = *gpu.recovery_action;
    return m.value.has_value();
  });
}

CheckResult check_gpu_ecc(CheckContext& context) {
  return of_gpus(context, [](const GpuHealth& gpu, Measurement& m) {
    if (gpu.uncorrected_errors) m.value = static_cast<double>(*gpu.uncorrected_errors);
    return m.value.has_value();
  });
}

CheckResult check_gpu_remaps(CheckContext& context) {
  return of_gpus(context, [](const GpuHealth& gpu, Measurement& m) {
    if (gpu.remap_failed) m.value = *gpu.remap_failed ? 2 : gpu.remap_pending.value_or(false) ? 1 : 0;
    return m.value.has_value();
  });
}

CheckResult check_gpu_pcie(CheckContext& context) {
  return of_gpus(context, [](const GpuHealth& gpu, Measurement& m) {
    if (gpu.pcie_lanes) m.value = *gpu.pcie_lanes;
    if (gpu.most_pcie_lanes) m.wanted = *gpu.most_pcie_lanes;
    return m.value.has_value();
  });
}

// A link that exists but is down counts against the GPU, even if all GPUs have lost the same number.
CheckResult check_nvlinks(CheckContext& context) {
  return of_gpus(context, [](const GpuHealth& gpu, Measurement& m) {
    m.value = gpu.nvlinks_up;
    if (gpu.nvlinks_up > 0) m.wanted = gpu.nvlinks;
    return gpu.nvlinks > 0;
  });
}

CheckResult check_gpu_clock(CheckContext& context) {
  return under_load(context, [&](const std::set<std::string>& working) {
    return of_gpus(context, [&](const GpuHealth& gpu, Measurement& m) {
      if (gpu.sm_mhz && working.contains(short_bus_id(gpu.bus_id))) m.value = *gpu.sm_mhz;
      return m.value.has_value();
    });
  });
}

CheckResult check_gpu_throttling(CheckContext& context) {
  return under_load(context, [&](const std::set<std::string>&) {
    return of_gpus(context, [](const GpuHealth& gpu, Measurement& m) {
      if (gpu.slowdown_reasons) m.value = (*gpu.slowdown_reasons & kSlowedByFault) != 0 ? 1 : 0;
      return m.value.has_value();
    });
  });
}

}  // namespace tri
