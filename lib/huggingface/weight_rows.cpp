#include <fmt/format.h>

#include <algorithm>

#include "lib/huggingface/weight_format.h"

namespace tri::huggingface {

int64_t row_width(const ParamSpec& spec) {
  return spec.shape.size() == 1 || is_bias(spec.name) ? 1 : spec.shape.back();
}

std::vector<int64_t> row_map(Rows rows, const ModelConfig& model, int64_t our_rows) {
  const int64_t size = model.head_dim, group = model.heads / model.kv_heads, half = size / 2;
  const int64_t rotated = rotated_elements(model.rope_fraction, model.head_dim) / 2;  // pairs
  std::vector<int64_t> map;
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) map.push_back(row);
  };
  // Adds a query or key: both halves of the pairs that rotate, then the rest.
  const auto add_pairs = [&](int64_t first) {
    add(first, rotated);
    add(first + half, rotated);
    add(first + rotated, half - rotated);
    add(first + half + rotated, size - half - rotated);
  };
  // Each key/value head has G queries, a key and a value; adds its heads [from, from + count).
  const auto add_heads_of = [&](int64_t kv, int64_t from, int64_t count) {
    for (int64_t head = from; head < from + count; ++head) {
      const int64_t first = (kv * (group + 2) + head) * size;
      head <= group ? add_pairs(first) : add(first, size);
    }
  };
  const auto add_heads = [&](int64_t from, int64_t count) {
    for (int64_t kv = 0; kv < model.kv_heads; ++kv) add_heads_of(kv, from, count);
  };
  switch (rows) {
    case Rows::kAll:
      add(0, our_rows);
      break;
    case Rows::kVocab:
      add(0, model.vocab);
      break;
    case Rows::kQuery:
      add_heads(0, group);
      break;
    case Rows::kKey:
      add_heads(group, 1);
      break;
    case Rows::kValue:
      add_heads(group + 1, 1);
      break;
    case Rows::kQueryKeyValue:
      add_heads(0, group);
      add_heads(group, 1);
      add_heads(group + 1, 1);
      break;
    case Rows::kByHead:
      add_heads(0, group + 2);
      break;
    case Rows::kGate:
      add(0, our_rows / 2);
      break;
    case Rows::kUp:
      add(our_rows / 2, our_rows / 2);
      break;
  }
  return map;
}

std::vector<int64_t> row_map(const Mapped& mapped, const ModelConfig& model) {
  const int64_t all = mapped.spec->numel() / row_width(*mapped.spec);
  if (mapped.expert < 0) return row_map(mapped.rows, model, all);
  const int64_t of_expert = all / mapped.spec->shape[0];
  std::vector<int64_t> rows = row_map(mapped.rows, model, of_expert);
  for (int64_t& row : rows) row += mapped.expert * of_expert;
  return rows;
}

std::vector<Mapped> map_tensors(const WeightFormat& format, const ModelConfig& model,
                                const std::vector<ParamSpec>& parameters) {
  const auto find = [&](const std::string& name) {
    const auto at = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.name == name; });
    return at == parameters.end() ? nullptr : &*at;
  };
  std::vector<Mapped> all;
  const auto add = [&](const TensorRule& rule, int layer) {
    const bool bias = rule.part == Part::kBias;
    const std::string name = bias ? bias_of(rule.module, layer) : weight_of(rule.module, layer);
    // The name of a tensor of experts is that of the first.
    Mapped mapped{
        .hf = fmt::format(fmt::runtime(rule.hf), layer, 0), .spec = find(name), .rows = rule.rows, .form = rule.form};
    if (mapped.spec == nullptr && !(bias && format.zero_biases)) return;
    // A bias that the native model lacks has as many elements as its weight has rows.
    const ParamSpec* shaped = mapped.spec;
    if (shaped == nullptr) shaped = find(weight_of(rule.module, layer));
    TRI_REQUIRE(shaped != nullptr, "{}: neither it nor its weight", name);
    const int64_t width = row_width(*shaped);
    if (shaped->experts) {
      for (int expert = 0; expert < model.experts; ++expert) {
        mapped.hf = fmt::format(fmt::runtime(rule.hf), layer, expert);
        mapped.expert = expert;
        mapped.shape = {static_cast<int64_t>(row_map(mapped, model).size()), width};
        all.push_back(mapped);
      }
      return;
    }
    const auto count = static_cast<int64_t>(row_map(rule.rows, model, shaped->numel() / width).size());
    if (bias || width == 1)
      mapped.shape = {count};
    else
      mapped.shape = rule.form == Form::kSame ? std::vector{count, width} : std::vector{width, count};
    all.push_back(std::move(mapped));
  };
  // The rules of the layers are adjacent and are applied once per layer.
  const auto of_layers = [](const TensorRule& rule) { return of_layer(rule.module); };
  const auto first = std::find_if(format.tensors.begin(), format.tensors.end(), of_layers);
  const auto last = std::find_if_not(first, format.tensors.end(), of_layers);
  for (auto rule = format.tensors.begin(); rule != first; ++rule) add(*rule, kNoLayer);
  for (int layer = 0; layer < model.layers; ++layer)
    for (auto rule = first; rule != last; ++rule) add(*rule, layer);
  for (auto rule = last; rule != format.tensors.end(); ++rule) add(*rule, kNoLayer);
  for (const ParamSpec& spec : parameters)
    TRI_REQUIRE(std::ranges::find(all, &spec, &Mapped::spec) != all.end(), "{} has no rule for {}", format.architecture,
                spec.name);
  return all;
}

}  // namespace tri::huggingface
