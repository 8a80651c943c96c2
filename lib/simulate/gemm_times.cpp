#include "lib/simulate/gemm_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace tri {
namespace {

// The mean rate of the measured shapes, weighted by their distance in the logarithms of m, n and k.
double measured_flops(const std::vector<MeasuredGemm>& gemms, double m, double n, double k) {
  double sum = 0, weights = 0;
  for (const MeasuredGemm& gemm : gemms) {
    const double dm = std::log(gemm.m / m), dn = std::log(gemm.n / n), dk = std::log(gemm.k / k);
    const double weight = 1 / (1e-6 + std::pow(dm * dm + dn * dn + dk * dk, 2));
    // Averages seconds per FLOP, because times add up.
    sum += weight / gemm.tflops;
    weights += weight;
  }
  return weights / sum * 1e12;
}

// A tile: rows, columns, and its share of a large tile's rate.
struct Tile {
  double rows, columns, rate;
};

std::array<Tile, 6> tiles_of(int longest) {
  const double a = longest, b = longest / 2.0, c = longest / 4.0;
  return {{{a, b, 1}, {b, a, 1}, {b, b, 0.95}, {b, c, 0.85}, {c, b, 0.85}, {c, c, 0.7}}};
}

bool is_aligned(double elements, double bytes) { return std::fmod(elements * bytes, 128) == 0; }

// GEMMs of equal n and k in one kernel.
struct Groups {
  double count = 1;
  bool uneven = false;             // m is the mean of their rows
  double compute = 1, memory = 1;  // shares of the rates of one GEMM

  // A group's rows begin a tile, so that of uneven ones half a tile is wasted on average.
  double tiles(double m, double rows) const { return uneven ? m / rows + 0.5 : std::ceil(m / rows); }
};

double seconds_of(const Cluster& c, Numbers numbers, const Groups& groups, double m, double n, double k,
                  double output_bytes);

}  // namespace

double activation_bytes(Numbers numbers) { return numbers == Numbers::kFp32 ? 4 : 2; }

double peak_flops(const Cluster& c, Numbers numbers) {
  if (numbers == Numbers::kFp8 && c.device.fp8_tflops > 0) return c.device.fp8_tflops * 1e12;
  return (numbers == Numbers::kFp32 ? c.device.fp32_tflops : c.device.bf16_tflops) * 1e12;
}

double memory_bytes_per_second(const Cluster& c) { return c.device.memory_gb_per_s * 1e9 * c.software.memory_share; }

double gemm_seconds(const Cluster& c, Numbers numbers, double m, double n, double k, double output_bytes) {
  return seconds_of(c, numbers, {}, m, n, k, output_bytes);
}

double grouped_gemm_seconds(const Cluster& c, Numbers numbers, double groups, GroupSizes sizes, double m, double n,
                            double k, double output_bytes) {
  const ClusterSoftware& software = c.software;
  const bool has_own = numbers == Numbers::kFp8 && software.fp8_grouped_share > 0;
  const double compute = has_own ? software.fp8_grouped_share : software.grouped_share;
  return seconds_of(c, numbers, {groups, sizes == GroupSizes::kUneven && groups > 1, compute, software.grouped_share},
                    m, n, k, output_bytes);
}

namespace {

double seconds_of(const Cluster& c, Numbers numbers, const Groups& groups, double m, double n, double k,
                  double output_bytes) {
  const double flops = 2 * groups.count * m * n * k, launch = c.software.launch_us * 1e-6;
  if (!c.gemms.empty()) return flops / (measured_flops(c.gemms, m, n, k) * groups.compute) + launch;
  const double bytes = numbers == Numbers::kFp8 ? 1 : activation_bytes(numbers);
  const double moved =
      groups.count * (bytes * (m * k + k * n) + output_bytes * m * n) / (memory_bytes_per_second(c) * groups.memory);
  double rate = groups.compute * peak_flops(c, numbers) *
                (numbers == Numbers::kFp8 ? c.software.fp8_gemm_share : c.software.gemm_share);
  if (c.device.tile <= 1) return std::max(flops / rate, moved) + launch;
  if (!is_aligned(n, bytes) || !is_aligned(k, bytes)) rate *= c.software.misaligned_share;
  // A tile's time on its multiprocessor: the sum over k, then the output. The next tile does not compute during the
  // output unless the device overlaps the two.
  const double ramp = c.software.gemm_ramp * (numbers == Numbers::kFp8 ? 2 : 1);
  const double units = c.device.multiprocessors;
  const double write_rate = memory_bytes_per_second(c) / units;
  double best = std::numeric_limits<double>::infinity();
  if (groups.uneven && c.software.grouped_rows > 0) {
    // Equal tiles of a group's rows, each rounded up by half a step on average. They differ, and a kernel's blocks take
    // one after the other, so there are no waves.
    const double longest = c.device.tile, rows = m + c.software.grouped_rows / 2.0 * std::ceil(m / longest);
    const double columns = std::ceil(n / longest) * longest;
    best = 2 * groups.count * rows * columns * (k + ramp) / rate;
    return std::max(best, moved) + launch;
  }
  for (const Tile& tile : tiles_of(c.device.tile)) {
    const double count = std::ceil(groups.count * groups.tiles(m, tile.rows)) * std::ceil(n / tile.columns);
    const double compute = 2 * tile.rows * tile.columns * (k + ramp) / (rate * tile.rate / units);
    const double write = c.device.output_exposed * tile.rows * tile.columns * output_bytes / write_rate;
    best = std::min(best, std::ceil(count / units) * (compute + write));
    // If there are too few tiles for the device, tiles share their sum over k (split-K): parts are written and added up
    // in fp32.
    for (int parts = 2; parts <= 8 && count < 2 * units && output_bytes == kAddsFp32 && groups.count == 1; ++parts) {
      const double sums = 2 * 4.0 * parts * m * n / memory_bytes_per_second(c);
      best = std::min(best, std::ceil(count * parts / units) * compute / parts + write + sums);
    }
  }
  const double sustained =
      numbers == Numbers::kFp8 ? 0 : flops / (peak_flops(c, numbers) * c.device.sustained_share * groups.compute);
  return std::max({best, moved, sustained}) + launch;
}

}  // namespace

}  // namespace tri
