#include "kernels/gemm_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

// Alone, what is fastest when hot was up to 11 % behind (LLaMA 8B's GEMMs on an H200).
std::vector<double> times_when_hot(std::span<const double> alone, size_t always, double heat_microseconds,
                                   const TimeCalls& time) {
  constexpr double kNear = 1.15, kTurnMicroseconds = 12e3;
  constexpr size_t kMost = 5;
  constexpr int kRounds = 3;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> hot(alone.size(), kInfinity);

  std::vector<size_t> order;
  for (size_t i = 0; i < alone.size(); ++i)
    if (std::isfinite(alone[i])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return alone[a] < alone[b]; });
  std::vector<size_t> finalists;
  for (const size_t i : order)
    if (i == always || (finalists.size() < kMost && alone[i] <= kNear * alone[order.front()])) finalists.push_back(i);

  const auto calls_of = [&](size_t i) {
    return std::clamp(static_cast<int>(kTurnMicroseconds / std::max(alone[i], 1.0)), 1, 1000);
  };
  std::vector<std::vector<double>> rounds(alone.size());
  double heated = 0;
  for (size_t turn = 0; heated < heat_microseconds && !finalists.empty(); ++turn) {
    const size_t i = finalists[turn % finalists.size()];
    const double microseconds = time(i, calls_of(i)) * calls_of(i);
    if (std::isfinite(microseconds))
      heated += std::max(microseconds, 1.0);
    else
      std::erase(finalists, i);
  }
  for (int round = 0; round < kRounds; ++round)
    for (const size_t i : finalists) rounds[i].push_back(time(i, calls_of(i)));
  for (const size_t i : finalists) {
    std::sort(rounds[i].begin(), rounds[i].end());
    hot[i] = rounds[i][kRounds / 2];
  }
  return hot;
}

GemmRecorder::GemmRecorder() : Stream("recorder", recorder_ops()) {}

}  // namespace tri
