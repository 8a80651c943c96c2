#include "lib/huggingface/gemma_keys.h"

#include <algorithm>
#include <cmath>

#include "lib/huggingface/rope_keys.h"

namespace tri::huggingface {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";
constexpr double kGlobalTheta = 1e6, kLocalTheta = 1e4;  // of Gemma-3

// A bound of scores or logits: null is none.
struct Softcap {
  const char* hf;
  double ModelConfig::*native;
  double absent_in_two;
};
constexpr Softcap kSoftcaps[] = {{"attn_logit_softcapping", &ModelConfig::attention_softcap, 50},
                                 {"final_logit_softcapping", &ModelConfig::logit_softcap, 30}};

Result<double> positive(const std::string& path, const Json& json, const char* key, double absent) {
  const auto value = json.find(key);
  if (value == json.end()) return absent;
  if (!value->is_number() || !(value->get<double>() > 0))
    return file_error("{}: {}: {} is not a number above 0", path, key, value->dump());
  return value->get<double>();
}

// Whether each layer has a window.
Result<std::vector<bool>> windows_of(const std::string& path, const Json& json, Gemma generation, int layers) {
  std::vector<bool> windows;
  if (const auto types = json.find("layer_types"); types != json.end() && !types->is_null()) {
    if (!types->is_array() || static_cast<int>(types->size()) != layers)
      return file_error("{}: layer_types: {} does not list {} layers", path, types->dump(), layers);
    for (const Json& type : *types) {
      if (type != kFull && type != kSliding)
        return file_error("{}: layer_types: {} is not supported; supported are {} and {}", path, type.dump(), kFull,
                          kSliding);
      windows.push_back(type == kSliding);
    }
    return windows;
  }
  double period = generation == Gemma::kTwo ? 2 : 6;
  if (generation == Gemma::kThree) {
    const auto given = positive(path, json, "sliding_window_pattern", period);
    if (!given) return given.error();
    period = given.value();
    if (period != std::floor(period) || period > (1 << 24))
      return file_error("{}: sliding_window_pattern: {} is not a number of layers", path, period);
  }
  for (int layer = 0; layer < layers; ++layer) windows.push_back((layer + 1) % static_cast<int>(period) != 0);
  return windows;
}

// Returns the shortest pattern that gives these layers.
std::vector<LayerAttention> pattern_of(const std::vector<bool>& windows) {
  size_t period = 1;
  const auto repeats = [&] {
    for (size_t i = period; i < windows.size(); ++i)
      if (windows[i] != windows[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  std::vector<LayerAttention> pattern;
  for (size_t i = 0; i < period; ++i) pattern.push_back(windows[i] ? LayerAttention::kWindow : LayerAttention::kFull);
  return pattern;
}

bool has_window(const ModelConfig& m, int layer) {
  const auto& pattern = m.layer_pattern;
  return m.window > 0 &&
         (pattern.empty() || pattern[static_cast<size_t>(layer) % pattern.size()] == LayerAttention::kWindow);
}

bool has_windows(const ModelConfig& m) {
  for (int layer = 0; layer < m.layers; ++layer)
    if (has_window(m, layer)) return true;
  return false;
}

double embedding_scale(const ModelConfig& m) { return std::sqrt(static_cast<double>(m.hidden)); }

}  // namespace

Result<void> read_gemma(const std::string& path, const Json& json, Gemma generation, ModelConfig& m) {
  m.norm_offset = 1;
  m.embedding_scale = embedding_scale(m);
  const auto scalar = positive(path, json, "query_pre_attn_scalar", 256);
  if (!scalar) return scalar.error();
  m.attention_scale = scalar.value() == m.head_dim ? 0 : 1 / std::sqrt(scalar.value());
  for (const Softcap& softcap : kSoftcaps) {
    m.*softcap.native = 0;
    if (const auto value = json.find(softcap.hf); value != json.end() && value->is_null()) continue;
    const auto cap = positive(path, json, softcap.hf, generation == Gemma::kTwo ? softcap.absent_in_two : 0);
    if (!cap) return cap.error();
    m.*softcap.native = cap.value();
  }
  if (generation == Gemma::kThree && m.attention_softcap > 0)
    return file_error("{}: attn_logit_softcapping: {} is not supported with gemma3_text, where transformers ignores it",
                      path, m.attention_softcap);
  const auto windows = windows_of(path, json, generation, m.layers);
  if (!windows) return windows.error();
  m.layer_pattern.clear();
  if (std::ranges::count(windows.value(), true) == 0) {
    m.window = 0;
    return {};
  }
  if (m.window == 0) return file_error("{}: sliding_window is null, but layers have {}", path, kSliding);
  m.layer_pattern = pattern_of(windows.value());
  fit_window(m);
  return {};
}

Result<void> read_gemma_rope(const std::string& path, const Json& json, Gemma generation, ModelConfig& m) {
  if (generation == Gemma::kTwo) return read_rope(path, json, {}, m);
  Json global = json, local = {{"rope_theta", json.value("rope_local_base_freq", Json(kLocalTheta))}};
  std::string global_path = path, local_path = path;
  if (const auto nested = json.find("rope_parameters"); nested != json.end() && nested->is_object()) {
    for (const auto& [kind, parameters] : nested->items()) {
      if (kind != kFull && kind != kSliding)
        return file_error("{}: rope_parameters.{} is not supported; supported are {} and {}", path, kind, kFull,
                          kSliding);
      (kind == kFull ? global : local)["rope_parameters"] = parameters;
    }
    if (!nested->contains(kFull)) global.erase("rope_parameters");
    // As transformers 5, which adds rope_scaling to the parameters of the global layers.
    if (global.contains("rope_parameters") && global.contains("rope_scaling") && global["rope_scaling"].is_object()) {
      global["rope_parameters"].update(global["rope_scaling"]);
      global.erase("rope_scaling");
    }
  }
  if (auto read = read_rope(path, global, {.theta_when_absent = kGlobalTheta}, m); !read) return read;
  ModelConfig of_local = m;
  of_local.rope_scaling = RopeScaling::kNone;
  if (auto read = read_rope(path, local, {.theta_when_absent = kLocalTheta}, of_local); !read) return read;
  if (of_local.rope_scaling != RopeScaling::kNone)
    return file_error("{}: rope_parameters.{}: rope_type {} is not supported; only default is", path, kSliding,
                      enum_name(of_local.rope_scaling));
  const bool differs = of_local.rope_theta != m.rope_theta || m.rope_scaling != RopeScaling::kNone;
  m.rope_theta_local = differs && has_windows(m) ? of_local.rope_theta : 0;
  return {};
}

void write_gemma(Gemma generation, const ModelConfig& m, Json& json) {
  const double scalar = m.attention_scale > 0 ? 1 / (m.attention_scale * m.attention_scale) : m.head_dim;
  json["query_pre_attn_scalar"] = std::llround(scalar);  // gemma_objections allows integers alone
  for (const Softcap& softcap : kSoftcaps) json[softcap.hf] = m.*softcap.native > 0 ? Json(m.*softcap.native) : Json();
  // Versions that do not know layer_types count layers instead: every second one of Gemma-2, every n-th of Gemma-3, is
  // full. A window of the whole context is none.
  Json types = Json::array();
  int first_full = m.layers;
  for (int layer = m.layers - 1; layer >= 0; --layer)
    if (!has_window(m, layer)) first_full = layer;
  for (int layer = 0; layer < m.layers; ++layer) types.push_back(has_window(m, layer) ? kSliding : kFull);
  json["layer_types"] = types;
  json["sliding_window"] = has_windows(m) ? m.window : m.seq_len;
  if (generation == Gemma::kTwo) return;
  json["sliding_window_pattern"] = first_full + 1;
  const double theta = m.rope_theta_local > 0 ? m.rope_theta_local : m.rope_theta;
  json["rope_local_base_freq"] = theta;
  json["rope_parameters"] = {{kFull, json["rope_parameters"]},
                             {kSliding, {{"rope_type", "default"}, {"rope_theta", theta}}}};
}

std::vector<std::string> gemma_objections(Gemma generation, std::string_view architecture, const ModelConfig& m) {
  std::vector<std::string> lines;
  const auto object = [&](const char* field, double value, const std::string& has) {
    lines.push_back(
        fmt::format("model.{}: {} can't be expressed as {}, which has {}", field, value, architecture, has));
  };
  const bool is_gemma = generation != Gemma::kNone;
  const double embedding = m.embedding_scale == 0 ? 1 : m.embedding_scale, root = is_gemma ? embedding_scale(m) : 1;
  if (m.norm_offset != (is_gemma ? 1 : 0)) object("norm_offset", m.norm_offset, is_gemma ? "1" : "0");
  if (std::abs(embedding - root) > 1e-6 * root)
    object("embedding_scale", m.embedding_scale, is_gemma ? fmt::format("the square root of hidden, {}", root) : "1");
  if (const double scalar = 1 / (m.attention_scale * m.attention_scale);
      is_gemma && m.attention_scale > 0 && std::abs(scalar - std::round(scalar)) > 1e-9 * scalar)
    object("attention_scale", m.attention_scale, "1 / sqrt(an integer)");
  if (!is_gemma && m.attention_scale > 0) object("attention_scale", m.attention_scale, "1 / sqrt(head_dim)");
  if (generation != Gemma::kTwo && m.attention_softcap > 0) object("attention_softcap", m.attention_softcap, "none");
  if (!is_gemma && m.logit_softcap > 0) object("logit_softcap", m.logit_softcap, "none");
  if (generation != Gemma::kThree && m.rope_theta_local > 0)
    object("rope_theta_local", m.rope_theta_local, "the same rope in all layers");
  if (generation == Gemma::kThree && has_windows(m) && m.rope_theta_local == 0 && m.rope_scaling != RopeScaling::kNone)
    object("rope_theta_local", 0, "no rope_scaling in layers with a window");
  bool differ = false;
  for (int layer = 1; layer < m.layers; ++layer) differ = differ || has_window(m, layer) != has_window(m, 0);
  if (!is_gemma && differ)
    lines.push_back(
        fmt::format("model.layer_pattern: windows of some layers can't be expressed as {}, whose layers "
                    "have the same attention",
                    architecture));
  return lines;
}

}  // namespace tri::huggingface
