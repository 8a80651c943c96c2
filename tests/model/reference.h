// The model in float64, written from its formulas with plain loops: the mean loss of a batch for given parameters.
// Shares no code with the library except the config and the names and layouts of parameters (kernels/core/dims.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/model/parameter_names.h"

namespace tri::test {

using Doubles = std::vector<double>;
using ParameterValues = std::map<std::string, Doubles>;  // full tensors by name

class ReferenceModel {
 public:
  explicit ReferenceModel(const Config& config) : m_(config.model) {}

  // Returns the sum of the token losses of one sequence: inputs and targets (T). Adds the losses of the layers'
  // routers, times T, to `routers`; the sequence is then a whole microbatch.
  double loss(const ParameterValues& p, const int32_t* inputs, const int32_t* targets,
              double* routers = nullptr) const {
    const int T = m_.seq_len, C = m_.hidden;
    Matrix x(T, Doubles(C));
    for (int t = 0; t < T; ++t)
      for (int c = 0; c < C; ++c) {
        x[t][c] = p.at(weight_of(modules::kTokens))[inputs[t] * C + c];
        if (m_.embedding_scale > 0) x[t][c] *= m_.embedding_scale;
        if (m_.position == Position::kLearned) x[t][c] += p.at(weight_of(modules::kPositions))[t * C + c];
      }
    for (int layer = 0; layer < m_.layers; ++layer) {
      const bool pre = m_.norm_position != NormPosition::kPost, post = m_.norm_position != NormPosition::kPre;
      const Matrix n1 = pre ? norm(p, {modules::kNorm1, layer}, x) : x;
      const Matrix a = attention(p, layer, n1);
      if (m_.block == Block::kParallel) {
        const Matrix f = dense(p, layer, m_.parallel_norms == 2 ? norm(p, {modules::kNorm2, layer}, x) : n1);
        for (int t = 0; t < T; ++t)
          for (int c = 0; c < C; ++c) x[t][c] += a[t][c] + f[t][c];
        continue;
      }
      add(x, post ? norm(p, {modules::kPostNorm1, layer}, a) : a);
      const Matrix n2 = pre ? norm(p, {modules::kNorm2, layer}, x) : x;
      const bool has_experts = m_.experts > 0 && layer >= m_.dense_layers;
      const Matrix f = has_experts ? experts(p, layer, n2, routers) : dense(p, layer, n2);
      add(x, post ? norm(p, {modules::kPostNorm2, layer}, f) : f);
    }
    const Matrix n = norm(p, {modules::kFinalNorm, kNoLayer}, x);
    const Doubles& head = p.at(weight_of(m_.tie_embeddings ? modules::kTokens : modules::kHead));
    double sum = 0;
    for (int t = 0; t < T; ++t) {
      double total = 0, target = 0;
      for (int v = 0; v < m_.vocab; ++v) {  // there is no padding here
        double logit = 0;
        for (int c = 0; c < C; ++c) logit += n[t][c] * head[v * C + c];
        logit = capped(logit, m_.logit_softcap);
        total += std::exp(logit);
        if (v == targets[t]) target = logit;
      }
      sum += std::log(total) - target;
    }
    return sum;
  }

 private:
  using Matrix = std::vector<Doubles>;
  struct Where {
    std::string_view module;
    int layer;
  };

  static double capped(double x, double softcap) { return softcap > 0 ? softcap * std::tanh(x / softcap) : x; }

  static void add(Matrix& x, const Matrix& y) {
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
  }

  // weight (N, K) row-major; bias (N) if the model has it.
  static Matrix linear(const ParameterValues& p, Where where, const Matrix& x, int N) {
    const Doubles& w = p.at(weight_of(where.module, where.layer));
    const auto bias = p.find(bias_of(where.module, where.layer));
    Matrix y(x.size(), Doubles(N));
    for (size_t t = 0; t < x.size(); ++t)
      for (int n = 0; n < N; ++n) {
        double sum = bias == p.end() ? 0 : bias->second[n];
        for (size_t k = 0; k < x[t].size(); ++k) sum += w[n * x[t].size() + k] * x[t][k];
        y[t][n] = sum;
      }
    return y;
  }

  Matrix norm(const ParameterValues& p, Where where, const Matrix& x) const {
    const Doubles& w = p.at(weight_of(where.module, where.layer));
    const auto bias = p.find(bias_of(where.module, where.layer));
    Matrix y = x;
    for (Doubles& row : y) {
      double mean = 0, square = 0;
      if (m_.norm == Norm::kLayerNorm) {
        for (const double v : row) mean += v / row.size();
      }
      for (const double v : row) square += (v - mean) * (v - mean) / row.size();
      for (size_t c = 0; c < row.size(); ++c)
        row[c] = (row[c] - mean) / std::sqrt(square + m_.norm_eps) * (w[c] + m_.norm_offset) +
                 (bias == p.end() ? 0 : bias->second[c]);
    }
    return y;
  }

  bool has_window(int layer) const {
    const size_t period = m_.layer_pattern.size();
    return m_.window > 0 &&
           (period == 0 || m_.layer_pattern[static_cast<size_t>(layer) % period] == LayerAttention::kWindow);
  }
  bool is_local(int layer) const { return has_window(layer) && m_.rope_theta_local > 0; }

  // The angle per position by which RoPE rotates the pair i of a head.
  double rope_frequency(int layer, int i) const {
    const int HS = static_cast<int>(m_.rope_fraction * m_.head_dim);
    if (is_local(layer)) return std::pow(m_.rope_theta_local, -2.0 * i / HS);
    const double f = std::pow(m_.rope_theta, -2.0 * i / HS), divided = f / m_.rope_factor;
    const double length = m_.rope_original_seq_len, wavelength = 2 * M_PI / f;
    double keep = 1;
    if (m_.rope_scaling == RopeScaling::kLinear) keep = 0;
    if (m_.rope_scaling == RopeScaling::kLlama3) {
      const double low = m_.rope_low_freq_factor, high = m_.rope_high_freq_factor;
      keep = wavelength < length / high  ? 1
             : wavelength > length / low ? 0
                                         : (length / wavelength - low) / (high - low);
    }
    if (m_.rope_scaling == RopeScaling::kYarn) {
      const auto pair = [&](double turns) {
        return HS * std::log(length / (2 * M_PI * turns)) / (2 * std::log(m_.rope_theta));
      };
      const double first = std::max(0.0, std::floor(pair(m_.rope_beta_fast)));
      const double last = std::min(HS - 1.0, std::ceil(pair(m_.rope_beta_slow)));
      keep = 1 - std::min(1.0, std::max(0.0, (i - first) / (last - first)));
    }
    return keep * f + (1 - keep) * divided;
  }
  double rope_magnitude(int layer) const {
    if (is_local(layer) || m_.rope_scaling != RopeScaling::kYarn) return 1;
    return m_.rope_attention_factor > 0 ? m_.rope_attention_factor : 0.1 * std::log(m_.rope_factor) + 1;
  }

  Matrix attention(const ParameterValues& p, int layer, const Matrix& n) const {
    const int T = m_.seq_len, HS = m_.head_dim, G = m_.heads / m_.kv_heads;
    Matrix qkv = linear(p, {modules::kQkv, layer}, n, (m_.heads + 2 * m_.kv_heads) * HS);
    const auto slot = [&](int kv, int index) { return (kv * (G + 2) + index) * HS; };
    if (m_.qk_norm == QkNorm::kHead)
      for (int t = 0; t < T; ++t)
        for (int kv = 0; kv < m_.kv_heads; ++kv)
          for (int index = 0; index <= G; ++index) {
            const Doubles& w = p.at(weight_of(index < G ? modules::kQueryNorm : modules::kKeyNorm, layer));
            double square = 0;
            for (int i = 0; i < HS; ++i) square += qkv[t][slot(kv, index) + i] * qkv[t][slot(kv, index) + i] / HS;
            for (int i = 0; i < HS; ++i)
              qkv[t][slot(kv, index) + i] *= (w[i] + m_.norm_offset) / std::sqrt(square + m_.norm_eps);
          }
    if (m_.qk_norm == QkNorm::kFull)
      for (int t = 0; t < T; ++t)
        for (const bool is_key : {false, true}) {
          const Doubles& w = p.at(weight_of(is_key ? modules::kKeyNorm : modules::kQueryNorm, layer));
          const auto element = [&](int n) -> double& {  // n: among the elements of all heads
            const int head = n / HS;
            return qkv[t][(is_key ? slot(head, G) : slot(head / G, head % G)) + n % HS];
          };
          const int width = static_cast<int>(w.size());
          double square = 0;
          for (int n = 0; n < width; ++n) square += element(n) * element(n) / width;
          for (int n = 0; n < width; ++n) element(n) *= w[n] / std::sqrt(square + m_.norm_eps);
        }
    if (m_.position == Position::kRope)
      for (int t = 0; t < T; ++t)
        for (int kv = 0; kv < m_.kv_heads; ++kv)
          for (int index = 0; index <= G; ++index)  // queries and the key
            for (int i = 0; 2 * i < static_cast<int>(m_.rope_fraction * HS); ++i) {
              const double angle = t * rope_frequency(layer, i), size = rope_magnitude(layer);
              double &a = qkv[t][slot(kv, index) + i], &b = qkv[t][slot(kv, index) + i + HS / 2];
              const double rotated = size * (a * std::cos(angle) - b * std::sin(angle));
              b = size * (b * std::cos(angle) + a * std::sin(angle));
              a = rotated;
            }
    Matrix out(T, Doubles(m_.heads * HS));
    for (int kv = 0; kv < m_.kv_heads; ++kv)
      for (int g = 0; g < G; ++g)
        for (int t = 0; t < T; ++t) {
          const int first = has_window(layer) ? std::max(0, t - m_.window + 1) : 0;
          Doubles weights(T);
          double total = 0;
          for (int s = first; s <= t; ++s) {
            double score = 0;
            for (int i = 0; i < HS; ++i) score += qkv[t][slot(kv, g) + i] * qkv[s][slot(kv, G) + i];
            score *= m_.attention_scale > 0 ? m_.attention_scale : 1 / std::sqrt(HS);
            total += weights[s] = std::exp(capped(score, m_.attention_softcap));
          }
          for (int s = first; s <= t; ++s)
            for (int i = 0; i < HS; ++i)
              out[t][(kv * G + g) * HS + i] += weights[s] / total * qkv[s][slot(kv, G + 1) + i];
        }
    return linear(p, {modules::kProj, layer}, out, m_.hidden);
  }

  Matrix dense(const ParameterValues& p, int layer, const Matrix& n) const {
    const int F = m_.ffn_hidden;
    const Matrix h = linear(p, {modules::kFc1, layer}, n, is_gated(m_.activation) ? 2 * F : F);
    return linear(p, {modules::kFc2, layer}, activated(h, F), m_.hidden);
  }

  // Rows (N, K) of an expert's weight among those of all.
  static Matrix expert_linear(const Doubles& all, int expert, const Doubles& x, int N) {
    Matrix y(1, Doubles(N));
    for (int n = 0; n < N; ++n)
      for (size_t k = 0; k < x.size(); ++k) y[0][n] += all[(static_cast<size_t>(expert) * N + n) * x.size() + k] * x[k];
    return y;
  }

  Matrix experts(const ParameterValues& p, int layer, const Matrix& n, double* routers) const {
    const int E = m_.experts, K = m_.experts_per_token, F = m_.expert_hidden, C = m_.hidden;
    const int width = is_gated(m_.activation) ? 2 * F : F;
    const auto T = static_cast<double>(n.size());
    const Matrix logits = linear(p, {modules::kRouter, layer}, n, E);
    const Doubles &fc1 = p.at(weight_of(modules::kExpertsFc1, layer)),
                  &fc2 = p.at(weight_of(modules::kExpertsFc2, layer));
    Matrix y(n.size(), Doubles(C));
    Doubles counts(E), shares(E);
    for (size_t t = 0; t < n.size(); ++t) {
      double total = 0, of_softmax = 0;
      for (const double logit : logits[t]) of_softmax += std::exp(logit);
      Doubles s(E);
      for (int e = 0; e < E; ++e) {
        s[e] = m_.router == Router::kSoftmax ? std::exp(logits[t][e]) / of_softmax : 1 / (1 + std::exp(-logits[t][e]));
        total += s[e];
      }
      if (routers != nullptr) *routers += m_.router_z_loss * std::pow(std::log(of_softmax), 2);
      for (int e = 0; e < E; ++e) shares[e] += s[e] / total;
      // Of the groups with the largest sums of two scores, the experts with the largest scores.
      std::vector<bool> candidate(E, m_.router_groups == 1);
      const int size = E / m_.router_groups;
      for (int picked = 0; m_.router_groups > 1 && picked < m_.router_top_groups; ++picked) {
        int best = -1;
        double most = 0;
        for (int g = 0; g < m_.router_groups; ++g) {
          double first = 0, second = 0;
          for (int e = g * size; e < (g + 1) * size; ++e) {
            second = std::max(second, std::min(first, s[e]));
            first = std::max(first, s[e]);
          }
          if (!candidate[g * size] && first + second > most) most = first + second, best = g;
        }
        for (int e = best * size; e < (best + 1) * size; ++e) candidate[e] = true;
      }
      std::vector<int> chosen;
      double sum = 0;
      for (int k = 0; k < K; ++k) {
        int best = -1;
        for (int e = 0; e < E; ++e)
          if (candidate[e] && (best < 0 || s[e] > s[best])) best = e;
        candidate[best] = false;
        chosen.push_back(best);
        sum += s[best];
      }
      for (const int e : chosen) {
        counts[e] += 1;
        const Matrix h = expert_linear(fc1, e, n[t], width);
        const Matrix out = expert_linear(fc2, e, activated(h, F)[0], C);
        const double weight = m_.router_scale * s[e] / (m_.router_renormalize ? sum : 1);
        for (int c = 0; c < C; ++c) y[t][c] += weight * out[0][c];
      }
    }
    for (int e = 0; e < E && routers != nullptr; ++e) *routers += m_.aux_loss * E / (K * T) * counts[e] * shares[e];
    if (m_.shared_experts > 0) {
      const int Fs = m_.shared_experts * F;
      const Matrix h = linear(p, {modules::kSharedFc1, layer}, n, is_gated(m_.activation) ? 2 * Fs : Fs);
      add(y, linear(p, {modules::kSharedFc2, layer}, activated(h, Fs), C));
    }
    return y;
  }

  Matrix activated(const Matrix& h, int F) const {
    const bool gated = is_gated(m_.activation);
    Matrix u(h.size(), Doubles(F));
    for (size_t t = 0; t < h.size(); ++t)
      for (int f = 0; f < F; ++f) {
        const double x = h[t][f];
        u[t][f] = m_.activation == Activation::kSwiglu ? x / (1 + std::exp(-x))
                  : m_.activation == Activation::kGeluErf
                      ? 0.5 * x * (1 + std::erf(x / std::sqrt(2)))
                      : 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        if (gated) u[t][f] *= h[t][F + f];
      }
    return u;
  }

  ModelConfig m_;
};

}  // namespace tri::test
