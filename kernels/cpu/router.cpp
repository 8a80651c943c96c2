// The router, the reference.  Formulas and shapes: kernels/router.h.
// Scores in float, sums in double, row by row.  Bound: the exponentials.
#include "kernels/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

constexpr double kSmall = 1e-20;  // keeps quotients of sigmoids finite

// The scores of one row.
struct Scores {
  explicit Scores(int64_t experts) : scores(static_cast<size_t>(experts)), softmax(scores.size()) {}

  // `with_softmax`: also of a sigmoid router, for the z loss.
  void compute(Router kind, const float* logits, bool with_softmax) {
    if (kind == Router::kSoftmax || with_softmax) {
      const double most = *std::max_element(logits, logits + scores.size());
      double sum = 0;
      for (size_t e = 0; e < scores.size(); ++e) sum += softmax[e] = std::exp(logits[e] - most);
      for (double& p : softmax) p /= sum;
      z = most + std::log(sum);
    }
    if (kind == Router::kSoftmax) {
      scores = softmax;
    } else {
      for (size_t e = 0; e < scores.size(); ++e) scores[e] = 1.0 / (1.0 + std::exp(-static_cast<double>(logits[e])));
    }
    total = kind == Router::kSoftmax ? 1.0 : std::accumulate(scores.begin(), scores.end(), kSmall);
  }

  std::vector<double> scores, softmax;
  double total = 1;  // shares are scores / total
  double z = 0;
};

// Returns the indices of the `count` largest values, largest first; of equal values the lower index first.
std::vector<int> largest(const std::vector<float>& values, std::vector<int> candidates, int64_t count) {
  std::ranges::stable_sort(candidates, std::ranges::greater{}, [&](int i) { return values[static_cast<size_t>(i)]; });
  candidates.resize(static_cast<size_t>(count));
  return candidates;
}

std::vector<int> numbers(int64_t count) {
  std::vector<int> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> chosen_experts(const RouterRule& rule, const std::vector<float>& choice, int64_t per_token) {
  const auto experts = static_cast<int64_t>(choice.size());
  if (rule.groups == 1) return largest(choice, numbers(experts), per_token);
  const int64_t size = experts / rule.groups;
  std::vector<float> sums;
  for (int g = 0; g < rule.groups; ++g) {
    std::vector<float> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::ranges::sort(group, std::ranges::greater{});
    sums.push_back(size > 1 ? group[0] + group[1] : group[0]);
  }
  std::vector<int> groups = largest(sums, numbers(rule.groups), rule.top_groups), candidates;
  std::ranges::sort(groups);
  for (const int g : groups)
    for (int64_t e = g * size; e < (g + 1) * size; ++e) candidates.push_back(static_cast<int>(e));
  return largest(choice, candidates, per_token);
}

}  // namespace

void router_forward(const RouterForward& a) {
  const int64_t rows = a.logits[0], experts = a.logits[1], per_token = a.experts[1];
  const float* bias = a.bias.as<float>();
  float* counts = a.counts.as<float>();
  std::fill_n(counts, experts, 0.0f);
  std::vector<double> sums(static_cast<size_t>(experts) + 1);
  std::vector<float> choice(static_cast<size_t>(experts));
  Scores s(experts);
  for (int64_t r = 0; r < rows; ++r) {
    const float* logits = a.logits.as<float>() + r * experts;
    s.compute(a.rule.kind, logits, true);
    for (size_t e = 0; e < choice.size(); ++e) {
      choice[e] = a.rule.kind == Router::kSoftmax ? logits[e] : static_cast<float>(s.scores[e]);
      if (bias != nullptr) choice[e] += bias[e];
      if (std::isnan(choice[e])) choice[e] = -INFINITY;  // the order stays defined; the loss shows the NaN
    }
    const std::vector<int> chosen = chosen_experts(a.rule, choice, per_token);
    double sum = a.rule.renormalize ? kSmall : 1.0;
    if (a.rule.renormalize)
      for (const int e : chosen) sum += s.scores[static_cast<size_t>(e)];
    for (int64_t k = 0; k < per_token; ++k) {
      const int e = chosen[static_cast<size_t>(k)];
      a.experts.as<int32_t>()[r * per_token + k] = e;
      a.weights.as<float>()[r * per_token + k] =
          static_cast<float>(a.rule.scale * s.scores[static_cast<size_t>(e)] / sum);
      counts[e] += 1.0f;
    }
    for (size_t e = 0; e < choice.size(); ++e) sums[e] += s.scores[e] / s.total;
    sums.back() += s.z * s.z;
  }
  std::ranges::transform(sums, a.share_sums.as<float>(), [](double sum) { return static_cast<float>(sum); });
}

void router_backward(const RouterBackward& a) {
  const int64_t rows = a.logits[0], experts = a.logits[1], per_token = a.experts[1];
  const bool softmax = a.rule.kind == Router::kSoftmax, aux = a.aux_scale != 0.0f;
  const float* counts = a.counts.as<float>();
  Scores s(experts);
  std::vector<double> dscores(static_cast<size_t>(experts));
  dispatch(a.dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t r = 0; r < rows; ++r) {
      s.compute(a.rule.kind, a.logits.as<float>() + r * experts, a.z_scale != 0.0f);
      const int32_t* chosen = a.experts.as<int32_t>() + r * per_token;
      const float* dweights = a.dweights.as<float>() + r * per_token;
      const auto score = [&](int64_t k) { return s.scores[static_cast<size_t>(chosen[k])]; };
      // w = scale · s / sum: the gradient through s and, if renormalized, through the sum.
      double sum = a.rule.renormalize ? kSmall : 1.0, mean = 0;
      if (a.rule.renormalize) {
        for (int64_t k = 0; k < per_token; ++k) sum += score(k);
        for (int64_t k = 0; k < per_token; ++k) mean += dweights[k] * score(k) / sum;
      }
      std::ranges::fill(dscores, 0.0);
      for (int64_t k = 0; k < per_token; ++k)
        dscores[static_cast<size_t>(chosen[k])] += a.rule.scale / sum * (dweights[k] - mean);
      if (aux) {
        double share_mean = 0;  // through the sum of the scores; the softmax below already contains it
        for (size_t e = 0; e < dscores.size() && !softmax; ++e)
          share_mean += static_cast<double>(a.aux_scale) * counts[e] * s.scores[e] / s.total;
        for (size_t e = 0; e < dscores.size(); ++e)
          dscores[e] += (static_cast<double>(a.aux_scale) * counts[e] - share_mean) / s.total;
      }
      double through = 0;
      if (softmax)
        for (size_t e = 0; e < dscores.size(); ++e) through += dscores[e] * s.scores[e];
      for (size_t e = 0; e < dscores.size(); ++e) {
        const double p = s.scores[e];
        double gradient = softmax ? p * (dscores[e] - through) : dscores[e] * p * (1 - p);
        if (a.z_scale != 0.0f) gradient += 2.0 * a.z_scale * s.z * s.softmax[e];
        a.dlogits.as<T>()[r * experts + static_cast<int64_t>(e)] = from_float<T>(static_cast<float>(gradient));
      }
    }
  });
}

void router_totals(const RouterTotals& a) {
  const float *counts = a.counts.as<float>(), *all = a.all_counts.as<float>(), *shares = a.share_sums.as<float>();
  const int64_t experts = a.counts.numel();
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    a.load.as<float>()[e] += counts[e];
    sum += static_cast<double>(all[e]) * shares[e];
  }
  a.losses.as<float>()[0] += static_cast<float>(a.aux_scale * sum);
  a.losses.as<float>()[1] += a.z_scale * shares[experts];
}

void router_bias_update(const RouterBiasUpdate& a) {
  if (std::isnan(a.grad_scale.as<float>()[0])) return;
  const float* load = a.load.as<float>();
  const int64_t experts = a.bias.numel();
  const double mean = std::accumulate(load, load + experts, 0.0) / static_cast<double>(experts);
  for (int64_t e = 0; e < experts; ++e)
    if (load[e] != mean) a.bias.as<float>()[e] += load[e] < mean ? a.rate : -a.rate;
}

}  // namespace tri::cpu
