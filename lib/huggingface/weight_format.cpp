#include "lib/huggingface/weight_format.h"

#include <fmt/ranges.h>
#include <algorithm>

#include "io/base/json.h"
#include "lib/config/error_list.h"
#include "lib/huggingface/weight_tables.h"

namespace tri::huggingface {
namespace {

using Json = nlohmann::ordered_json;

std::vector<SizeField> sizes_of(const FormatTable& table) {
  std::vector<SizeField> sizes(table.sizes.begin(), table.sizes.end());
  sizes.insert(sizes.end(), table.more_sizes.begin(), table.more_sizes.end());
  return sizes;
}

const FormatTable& table_of(const WeightFormat& format) {
  for (const FormatTable& table : format_tables())
    if (table.format.model_type == format.model_type) return table;
  TRI_REQUIRE(false, "weight format {}", format.model_type);
  return format_tables()[0];
}

// Returns one line for each property of the model that the format can't express.
std::vector<std::string> objections(const FormatTable& t, const ModelConfig& m) {
  std::vector<std::string> lines;
  const auto object = [&](bool objects, const char* field, const auto& value, const std::string& has) {
    if (objects)
      lines.push_back(fmt::format("model.{}: {} can't be expressed as {}{}", field, value, t.format.architecture, has));
  };
  const auto must_be = [&](const char* field, auto value, auto expected) {
    object(value != expected, field, enum_name(value), fmt::format(", which has {}", enum_name(expected)));
  };
  must_be("norm", m.norm, t.norm);
  if (std::ranges::find(t.activations, m.activation, &ActivationName::native) == t.activations.end())
    must_be("activation", m.activation, t.activation);
  must_be("position", m.position, t.position);
  must_be("qk_norm", m.qk_norm, t.qk_norm);
  must_be("norm_position", m.norm_position, t.norm_position);
  if (!t.parallel) must_be("block", m.block, Block::kSequential);
  object(t.parallel && m.block == Block::kParallel && m.parallel_norms != 2, "parallel_norms", m.parallel_norms,
         ", which has 2");
  object(m.rope_fraction < 1 && !t.rope.rotates_parts, "rope_fraction", m.rope_fraction, ", which rotates whole heads");
  if (t.experts == Experts::kNone) {
    object(m.experts > 0, "experts", m.experts, ", which has none");
  } else {
    object(m.experts == 0, "experts", m.experts, ", which has experts");
    object(m.shared_experts > 0, "shared_experts", m.shared_experts, ", which has none");
    object(m.dense_layers > 0, "dense_layers", m.dense_layers, ", which has none");
    object(m.router != Router::kSoftmax, "router", enum_name(m.router), ", which has softmax");
    object(m.router_scale != 1, "router_scale", m.router_scale, ", which has 1");
    object(!m.router_renormalize && t.experts == Experts::kMixtral, "router_renormalize", false, ", which has true");
  }
  for (std::string& line : gemma_objections(t.gemma, t.format.architecture, m)) lines.push_back(std::move(line));
  object(m.kv_heads != m.heads && !t.groups, "kv_heads", m.kv_heads,
         fmt::format(", which has as many key/value heads as model.heads ({})", m.heads));
  object(int64_t{m.head_dim} * m.heads != m.hidden && t.equal_heads, "head_dim", m.head_dim,
         fmt::format(", whose heads have model.hidden {} / model.heads {}", m.hidden, m.heads));
  object(m.window > 0 && !t.window, "window", m.window, ", which attends to all earlier tokens");
  object(m.bias && t.biases != Biases::kSame && t.biases != Biases::kAny, "bias", m.bias, "");
  const bool qkv_bias = has_qkv_bias(m), expected = t.biases == Biases::kQkv || (t.biases == Biases::kSame && m.bias);
  object(qkv_bias != expected && t.biases != Biases::kAny, "qkv_bias", qkv_bias,
         t.biases == Biases::kSame ? ", where it equals model.bias" : "");
  return lines;
}

// Returns the number or flag of a key that may be absent. Fails, naming the key, if it has another type.
Result<double> number_of(const std::string& path, const Json& json, std::string_view key, double absent) {
  const auto value = json.find(std::string(key));
  if (value == json.end()) return absent;
  if (!value->is_number()) return file_error("{}: {}: {} is not a number", path, key, value->dump());
  return value->get<double>();
}
Result<bool> flag_of(const std::string& path, const Json& json, std::string_view key, bool absent) {
  const auto value = json.find(std::string(key));
  if (value == json.end()) return absent;
  if (!value->is_boolean()) return file_error("{}: {}: {} is neither true nor false", path, key, value->dump());
  return value->get<bool>();
}

// The value of a size: under its name, or the other name that transformers reads. Null: there is none.
Result<const Json*> size_value(const std::string& path, const Json& json, const SizeField& field) {
  const auto value = json.find(std::string(field.hf)), other = json.find(std::string(field.also));
  if (field.also.empty() || other == json.end()) return value == json.end() ? nullptr : &*value;
  if (value != json.end() && *value != *other)
    return file_error("{}: {}: {}, but {}: {}; both name the same size", path, field.hf, value->dump(), field.also,
                      other->dump());
  return &*other;
}

// Qwen: the window counts with use_sliding_window alone, and in the layers from max_window_layers on.
Result<void> read_window_layers(const std::string& path, const Json& json, ModelConfig& model) {
  const auto used = flag_of(path, json, "use_sliding_window", false);
  if (!used) return used.error();
  const auto first = number_of(path, json, "max_window_layers", 28);
  if (!first) return first.error();
  if (!used.value() || first.value() >= model.layers) model.window = 0;
  if (model.window > 0 && first.value() > 0)
    return file_error(
        "{}: max_window_layers: {} is not supported with use_sliding_window and {} layers; all layers "
        "must have the same attention",
        path, first.value(), model.layers);
  return {};
}

// Reads hidden_act of a family with several activations.
Result<void> read_activation(const std::string& path, const Json& json, std::span<const ActivationName> names,
                             ModelConfig& model) {
  const auto value = json.find("hidden_act");
  if (names.empty() || value == json.end() || value->is_null()) return {};
  const auto found = std::ranges::find_if(names, [&](const ActivationName& name) { return *value == name.hf; });
  if (found != names.end()) {
    model.activation = found->native;
    return {};
  }
  std::vector<std::string_view> known;
  for (const ActivationName& name : names) known.push_back(name.hf);
  return file_error("{}: hidden_act: {} is not supported; supported are {}", path, value->dump(),
                    fmt::join(known, ", "));
}

Result<void> read_biases(const std::string& path, const Json& json, Biases biases, ModelConfig& model) {
  model.bias = false;
  if (biases == Biases::kAny) {
    model.bias = true;
    return {};
  }
  if (biases == Biases::kQkv) {  // whatever attention_bias says
    model.qkv_bias = AutoFlag::kTrue;
    return {};
  }
  const auto attention = flag_of(path, json, "attention_bias", false), mlp = flag_of(path, json, "mlp_bias", false);
  for (const auto& flag : {attention, mlp})
    if (!flag) return flag.error();
  if (attention.value() != mlp.value())
    return file_error("{}: attention_bias {} and mlp_bias {} are not supported; they must be equal", path,
                      attention.value(), mlp.value());
  if (attention.value() && biases == Biases::kNone)
    return file_error("{}: attention_bias: true is not supported with this model_type", path);
  model.bias = attention.value();
  return {};
}

Result<Described> read_model(const std::string& path, const Json& json) {
  const Json type_value = json.value("model_type", Json());
  const std::string type = type_value.is_string() ? type_value.get<std::string>() : "";
  const FormatTable* table = nullptr;
  std::vector<std::string_view> known;
  for (const FormatTable& candidate : format_tables()) {
    known.push_back(candidate.format.model_type);
    if (candidate.format.model_type == type) table = &candidate;
  }
  if (type_value.is_null())
    return file_error("{}: model_type is missing; add it as one of {}", path, fmt::join(known, ", "));
  if (table == nullptr)
    return file_error("{}: model_type: {} is not supported; those that are: {}", path, type_value.dump(),
                      fmt::join(known, ", "));
  Described described{.format = &table->format};
  ModelConfig& m = described.model;
  m.norm = table->norm;
  m.activation = table->activation;
  m.position = table->position;
  m.qk_norm = table->qk_norm;
  m.norm_position = table->norm_position;
  m.block = Block::kSequential;
  if (auto read = read_activation(path, json, table->activations, m); !read) return read.error();
  if (table->parallel) {
    const auto parallel = flag_of(path, json, "use_parallel_residual", true);
    if (!parallel) return parallel.error();
    if (parallel.value()) {
      m.block = Block::kParallel;
      m.parallel_norms = 2;
    }
  }
  m.kv_heads = m.head_dim = m.ffn_hidden = m.window = 0;
  for (const SizeField& field : sizes_of(*table)) {
    const auto found = size_value(path, json, field);
    if (!found) return found.error();
    const Json* const value = found.value();
    if (value == nullptr || value->is_null()) {
      if (!field.optional) return file_error("{}: {} is missing", path, field.hf);
      if (value == nullptr) m.*field.native = field.absent;
      continue;
    }
    if (!value->is_number_integer() || *value < 1 || *value > (1 << 27))
      return file_error("{}: {}: {} is not a valid size", path, field.hf, value->dump());
    m.*field.native = value->get<int>();
  }
  if (table->experts == Experts::kQwen3) {
    const auto renormalize = flag_of(path, json, "norm_topk_prob", false);
    if (!renormalize) return renormalize.error();
    m.router_renormalize = renormalize.value();
  }
  if (table->window_of_layers)
    if (auto read = read_window_layers(path, json, m); !read) return read.error();
  if (table->gemma != Gemma::kNone) {
    if (auto read = read_gemma(path, json, table->gemma, m); !read) return read.error();
  } else {
    fit_window(m);
  }
  if (const auto kinds = json.find("layer_types");
      table->gemma == Gemma::kNone && kinds != json.end() && kinds->is_array())
    for (const Json& kind : *kinds)
      if (kind != (m.window > 0 ? "sliding_attention" : "full_attention"))
        return file_error("{}: layer_types: {} is not supported; all layers must have the same attention", path,
                          kind.dump());
  for (const FixedField& field : table->fixed) {
    const auto value = json.find(std::string(field.hf));
    if (value == json.end() || value->is_null()) continue;
    const std::string found = value->dump();
    if (!field.any && found != field.json && found != field.also)
      return file_error("{}: {}: {} is not supported; only {} is", path, field.hf, found, field.json);
  }
  if (const auto code = json.find("auto_map"); code != json.end() && !code->is_null())
    return file_error("{}: auto_map: models whose code is in their folder can't be imported", path);
  if (const auto quantized = json.find("quantization_config"); quantized != json.end() && !quantized->is_null())
    return file_error("{}: quantization_config: quantized weights can't be imported; save the model in bf16 or fp32",
                      path);
  if (const auto native = json.find("trireme"); native != json.end())
    described.tokenizer = native->value("tokenizer", "");
  const auto eps = number_of(path, json, table->eps, table->eps_when_absent);
  if (!eps) return eps.error();
  const auto tied = flag_of(path, json, "tie_word_embeddings", table->tied_when_absent);
  if (!tied) return tied.error();
  const auto init_std = number_of(path, json, "initializer_range", m.init_std);
  if (!init_std) return init_std.error();
  m.norm_eps = eps.value();
  m.tie_embeddings = tied.value();
  m.init_std = init_std.value();
  if (m.position == Position::kLearned) return described;

  if (auto read = read_biases(path, json, table->biases, m); !read) return read.error();
  if (const auto head = json.find("head_dim"); head != json.end() && !head->is_null()) {
    if (!head->is_number_integer() || *head < 1 || *head > (1 << 16))
      return file_error("{}: head_dim: {} is not the size of a head", path, head->dump());
    m.head_dim = head->get<int>();
  }
  auto rope = table->gemma == Gemma::kNone ? read_rope(path, json, table->rope, m)
                                           : read_gemma_rope(path, json, table->gemma, m);
  if (!rope) return rope.error();
  return described;
}

}  // namespace

Result<const WeightFormat*> weight_format_of(const ModelConfig& model, std::string_view preferred) {
  for (const FormatTable& table : format_tables())
    if (table.format.model_type == preferred && objections(table, model).empty()) return &table.format;
  const FormatTable* nearest = nullptr;
  std::vector<std::string> fewest;
  for (const FormatTable& table : format_tables()) {
    std::vector<std::string> lines = objections(table, model);
    if (lines.empty()) return &table.format;
    if (nearest == nullptr || lines.size() < fewest.size()) {
      nearest = &table;
      fewest = std::move(lines);
    }
  }
  return join_errors(fewest);
}

std::string config_json(const WeightFormat& format, const ModelConfig& model, Dtype dtype, Ends ends,
                        const std::string& tokenizer, int64_t step) {
  const FormatTable& table = table_of(format);
  Json json = {{"architectures", {format.architecture}}, {"model_type", format.model_type}};
  json["torch_dtype"] = dtype == Dtype::kF32 ? "float32" : "bfloat16";
  for (const SizeField& field : sizes_of(table)) {
    Json& value = json[std::string(field.hf)];
    if (field.native != &ModelConfig::window || model.window > 0) value = model.*field.native;
  }
  if (table.window_of_layers) {
    json["use_sliding_window"] = model.window > 0;
    json["max_window_layers"] = model.window > 0 ? 0 : model.layers;
  }
  if (table.experts == Experts::kQwen3) json["norm_topk_prob"] = model.router_renormalize;
  for (const FixedField& field : table.fixed) json[std::string(field.hf)] = parse_json<Json>(field.json);
  if (const auto name = std::ranges::find(table.activations, model.activation, &ActivationName::native);
      name != table.activations.end())
    json["hidden_act"] = name->hf;
  if (table.parallel) json["use_parallel_residual"] = model.block == Block::kParallel;
  json[std::string(table.eps)] = model.norm_eps;
  json["initializer_range"] = model.init_std;
  json["tie_word_embeddings"] = model.tie_embeddings;
  json["bos_token_id"] = ends.bos.empty() ? Json() : parse_json<Json>(ends.bos);
  json["eos_token_id"] = ends.eos.empty() ? Json() : parse_json<Json>(ends.eos);
  if (!ends.pad.empty()) json["pad_token_id"] = parse_json<Json>(ends.pad);
  if (model.position == Position::kRope) {
    if (table.biases == Biases::kNone || table.biases == Biases::kSame)
      json["attention_bias"] = json["mlp_bias"] = model.bias;
    if (!table.equal_heads) json["head_dim"] = model.head_dim;
    write_rope(model, table.rope, json);
    if (table.gemma != Gemma::kNone) write_gemma(table.gemma, model, json);
  }
  json["trireme"] = {{"step", step}, {"tokenizer", tokenizer}};
  return json.dump(2) + "\n";
}

Result<Described> parse_config_json(const std::string& path, std::string_view text) {
  try {
    const Json json = parse_json<Json>(text);
    if (!json.is_object()) return file_error("{}: not a JSON object", path);
    return read_model(path, json);
  } catch (const Json::exception& problem) {
    return file_error("{}: {}", path, problem.what());
  }
}

}  // namespace tri::huggingface
