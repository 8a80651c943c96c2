#include "lib/huggingface/rope_keys.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <span>

namespace tri::huggingface {
namespace {

using Json = nlohmann::ordered_json;

// A number of the object.
struct RopeKey {
  std::string_view hf;
  double ModelConfig::*native;
  double absent = 0;      // what transformers takes where the key is absent or null
  bool required = false;  // transformers takes nothing
};
constexpr RopeKey kFactor{.hf = "factor", .native = &ModelConfig::rope_factor, .required = true};
constexpr RopeKey kLinearKeys[] = {kFactor};
constexpr RopeKey kLlama3Keys[] = {
    kFactor,
    {.hf = "low_freq_factor", .native = &ModelConfig::rope_low_freq_factor, .required = true},
    {.hf = "high_freq_factor", .native = &ModelConfig::rope_high_freq_factor, .required = true}};
constexpr RopeKey kYarnKeys[] = {kFactor,
                                 {"beta_fast", &ModelConfig::rope_beta_fast, 32},
                                 {"beta_slow", &ModelConfig::rope_beta_slow, 1},
                                 {"attention_factor", &ModelConfig::rope_attention_factor}};
constexpr const char* kFraction = "partial_rotary_factor";
constexpr const char* kOriginalLength = "original_max_position_embeddings";

// A rope_type that has an equivalent.
struct RopeType {
  std::string_view hf;
  RopeScaling native;
  std::span<const RopeKey> keys;
  bool original_length = false;  // whether kOriginalLength has an effect
};
constexpr RopeType kTypes[] = {{"default", RopeScaling::kNone, {}},
                               {"linear", RopeScaling::kLinear, kLinearKeys},
                               {"llama3", RopeScaling::kLlama3, kLlama3Keys, true},
                               {"yarn", RopeScaling::kYarn, kYarnKeys, true}};

// The keys that transformers reads with one rope_type or another. With others it ignores them.
constexpr std::string_view kKnownKeys[] = {"rope_type",      "type",          "rope_theta",       kFraction,
                                           "factor",         kOriginalLength, "low_freq_factor",  "high_freq_factor",
                                           "beta_fast",      "beta_slow",     "attention_factor", "mscale",
                                           "mscale_all_dim", "truncate",      "short_factor",     "long_factor"};

// A number above 0; `absent` for a key without a value. `place` and the key name it in messages.
Result<double> positive_number(const std::string& place, const Json& json, std::string_view key, double absent) {
  const auto value = json.find(std::string(key));
  if (value == json.end() || value->is_null()) return absent;
  if (!value->is_number() || !(value->get<double>() > 0))
    return file_error("{}{}: {} is not a number above 0", place, key, value->dump());
  return value->get<double>();
}

// The same under one of two names, which must not disagree.
Result<double> positive_number(const std::string& place, const Json& json, std::string_view key, std::string_view other,
                               double absent) {
  const auto value = positive_number(place, json, key, 0), also = positive_number(place, json, other, 0);
  for (const auto& number : {value, also})
    if (!number) return number.error();
  if (value.value() > 0 && also.value() > 0 && value.value() != also.value())
    return file_error("{}{}: {}, but {}: {}; remove one of the two keys", place, key, value.value(), other,
                      also.value());
  const double found = std::max(value.value(), also.value());
  return found > 0 ? found : absent;
}

Result<void> read_fraction(const std::string& place, const Json& json, const RopeNames& names, double absent,
                           ModelConfig& model) {
  const auto fraction = positive_number(place, json, kFraction, names.fraction, absent);
  if (!fraction) return fraction.error();
  if (fraction.value() > 1 || (fraction.value() < 1 && !names.rotates_parts))
    return file_error("{}{}: {} is not supported{}", place, json.contains(kFraction) ? kFraction : names.fraction,
                      fraction.value(), names.rotates_parts ? "; it must not exceed 1" : "; only 1 is");
  model.rope_fraction = fraction.value();
  return {};
}

// The row of rope_type, which transformers 4 also calls type.
Result<const RopeType*> type_of(const std::string& place, const Json& rope) {
  const auto named = [&](const char* key) {
    const auto value = rope.find(key);
    return value == rope.end() ? Json() : *value;
  };
  const Json type = named("rope_type"), old = named("type");
  if (!type.is_null() && !old.is_null() && type != old)
    return file_error("{}rope_type: {}, but type: {}; remove one of the two keys", place, type.dump(), old.dump());
  const Json& name = type.is_null() ? old : type;
  if (name.is_null()) return &kTypes[0];
  std::vector<std::string_view> known;
  for (const RopeType& candidate : kTypes) {
    known.push_back(candidate.hf);
    if (name == candidate.hf) return &candidate;
  }
  return file_error("{}{}: {} is not supported; supported are {}", place, type.is_null() ? "type" : "rope_type",
                    name.dump(), fmt::join(known, ", "));
}

// Whether the key may have this value. A model has the same rope in all layers. read_rope has read the fraction.
bool is_supported(const RopeType& type, std::string_view key, const Json& value) {
  if (std::ranges::find(kKnownKeys, key) == std::end(kKnownKeys)) return false;
  if (key == "truncate") return value == true || type.native != RopeScaling::kYarn;
  if (key == kFactor.hf) return type.native != RopeScaling::kNone || value == 1;
  return true;
}

// Without attention_factor, DeepSeek's two keys give it.
Result<void> read_mscale(const std::string& place, const Json& rope, ModelConfig& model) {
  const auto scale = positive_number(place, rope, "mscale", 0), all = positive_number(place, rope, "mscale_all_dim", 0);
  for (const auto& number : {scale, all})
    if (!number) return number.error();
  if (model.rope_attention_factor > 0 || scale.value() == 0 || all.value() == 0) return {};
  const auto factor = [&](double by) { return 0.1 * by * std::log(model.rope_factor) + 1; };
  model.rope_attention_factor = factor(scale.value()) / factor(all.value());
  return {};
}

Result<void> read_scaling(const std::string& place, const Json& rope, ModelConfig& model) {
  const auto found = type_of(place, rope);
  if (!found) return found.error();
  const RopeType& type = *found.value();
  for (const auto& [key, value] : rope.items())
    if (!value.is_null() && !is_supported(type, key, value))
      return file_error("{}{}: {} is not supported with rope_type {}", place, key, value.dump(), type.hf);
  model.rope_scaling = type.native;
  if (type.original_length) {
    const auto length = positive_number(place, rope, kOriginalLength, model.seq_len);
    if (!length) return length.error();
    if (length.value() != std::floor(length.value()) || length.value() > (1 << 24))
      return file_error("{}{}: {} is not a length", place, kOriginalLength, length.value());
    model.rope_original_seq_len = static_cast<int>(length.value());
  }
  for (const RopeKey& key : type.keys) {
    const bool is_ratio = key.hf == kFactor.hf && type.native == RopeScaling::kYarn && rope.contains(kFactor.hf);
    const double ratio = is_ratio ? static_cast<double>(model.seq_len) / model.rope_original_seq_len : 0;
    const auto value =
        positive_number(place, rope, key.hf, is_ratio ? ratio : key.absent);  // of yarn: null is the ratio
    if (!value) return value.error();
    if (key.required && value.value() == 0) return file_error("{}{} is missing", place, key.hf);
    model.*key.native = value.value();
  }
  if (model.rope_factor < 1) return file_error("{}factor: {} is below 1", place, model.rope_factor);
  return type.native == RopeScaling::kYarn ? read_mscale(place, rope, model) : Result<void>();
}

}  // namespace

Result<void> read_rope(const std::string& path, const Json& json, const RopeNames& names, ModelConfig& model) {
  const auto theta = positive_number(path + ": ", json, "rope_theta", names.theta, names.theta_when_absent);
  if (!theta) return theta.error();
  model.rope_theta = theta.value();
  if (auto read = read_fraction(path + ": ", json, names, names.fraction_when_absent, model); !read)
    return read.error();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = json.find(key);
    if (rope == json.end() || rope->is_null() || rope->empty()) continue;
    if (!rope->is_object()) return file_error("{}: {}: {} is not an object", path, key, rope->dump());
    const std::string place = fmt::format("{}: {}.", path, key);
    const auto inside = positive_number(place, *rope, "rope_theta", model.rope_theta);
    if (!inside) return inside.error();
    model.rope_theta = inside.value();
    if (auto read = read_fraction(place, *rope, names, model.rope_fraction, model); !read) return read.error();
    return read_scaling(place, *rope, model);
  }
  return {};
}

void write_rope(const ModelConfig& model, const RopeNames& names, Json& json) {
  const auto* const type = std::ranges::find(kTypes, model.rope_scaling, &RopeType::native);
  TRI_REQUIRE(type != std::end(kTypes), "no rope_type for model.rope_scaling {}", enum_name(model.rope_scaling));
  Json rope = {{"rope_type", type->hf}};
  for (const RopeKey& key : type->keys)
    if (model.*key.native > 0) rope[std::string(key.hf)] = model.*key.native;
  if (type->original_length) rope[kOriginalLength] = model.rope_original_seq_len;
  json["rope_theta"] = model.rope_theta;                                            // transformers 4
  json["rope_scaling"] = model.rope_scaling == RopeScaling::kNone ? Json() : rope;  // transformers 4
  if (!names.theta.empty()) json[std::string(names.theta)] = model.rope_theta;
  if (!names.fraction.empty()) json[std::string(names.fraction)] = model.rope_fraction;
  if (names.rotates_parts) json[kFraction] = rope[kFraction] = model.rope_fraction;
  rope["rope_theta"] = model.rope_theta;
  json["rope_parameters"] = rope;  // transformers 5
}

}  // namespace tri::huggingface
