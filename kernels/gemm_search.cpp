#include "kernels/gemm_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/ops.h"

namespace tri {
namespace {

template <class Args>
void ignore(const Args&, Stream&) {}

template <class Args>
void keep(const Args& g, Stream& recorder) {
  static_cast<GemmRecorder&>(recorder).add(g);
}

const OpTable& recorder_ops() {
  static const OpTable table = [] {
    OpTable ops = {
#define TRI_ROW(name, Args) .name = ignore<Args>,
        TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW
    };
    ops.gemm = keep<Gemm>;
    ops.fp8_gemm = keep<Fp8Gemm>;
    return ops;
  }();
  return table;
}

}  // namespace

// When an H200 changes from one kernel to another, its clock takes about 50 ms to settle and then varies by 15 MHz from
// one tenth of a second to the next. With alternating runs of 12 ms, the choice for 13B's GEMMs was 0.7 % slower in
// steady use than cuBLASLt's first heuristic; with the timing below it was 1 to 1.4 % faster.
std::vector<double> times_when_warm(std::span<const double> alone, size_t always, double warm_up_microseconds,
                                    const TimeCalls& time) {
  constexpr double kNear = 1.15, kClose = 1.02, kSettleMicroseconds = 50e3, kPartMicroseconds = 20e3;
  constexpr size_t kMost = 5;
  constexpr int kParts = 6;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> hot(alone.size(), kInfinity);

  std::vector<size_t> order;
  for (size_t i = 0; i < alone.size(); ++i)
    if (std::isfinite(alone[i])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return alone[a] < alone[b]; });
  std::vector<size_t> finalists;
  for (const size_t i : order)
    if (i == always || (finalists.size() < kMost && alone[i] <= kNear * alone[order.front()])) finalists.push_back(i);

  const auto time_for = [&](size_t i, double microseconds) {
    return time(i, std::max(static_cast<int>(microseconds / std::max(alone[i], 1.0)), 1));
  };
  double settle = std::max(warm_up_microseconds, kSettleMicroseconds);
  const auto settled = [&](size_t i) {
    const bool runs = std::isfinite(time_for(i, settle));
    if (runs) settle = kSettleMicroseconds;
    return runs;
  };
  for (const size_t i : finalists)
    if (settled(i)) hot[i] = time_for(i, kPartMicroseconds);
  // Repeats until the fastest and all that are close to it have been timed in several parts.
  std::vector<size_t> once = finalists;
  while (true) {
    const double fastest = *std::min_element(hot.begin(), hot.end());
    const auto next = std::find_if(once.begin(), once.end(), [&](size_t i) { return hot[i] <= kClose * fastest; });
    if (next == once.end() || !std::isfinite(fastest)) break;
    const size_t i = *next;
    once.erase(next);
    hot[i] = kInfinity;
    if (!settled(i)) continue;
    std::array<double, kParts> parts{};
    for (double& part : parts) part = time_for(i, kPartMicroseconds);
    // Excludes the slowest part, which something else may have disturbed.
    std::sort(parts.begin(), parts.end());
    hot[i] = std::accumulate(parts.begin(), parts.end() - 1, 0.0) / (kParts - 1);
  }
  return hot;
}

GemmRecorder::GemmRecorder() : Stream("recorder", recorder_ops()) {}

}  // namespace tri
