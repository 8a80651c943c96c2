// Exports what an independent implementation needs to repeat a run of one rank: settings, initial weights, token order.
//   export_run CONFIG OUT_DIR [--set section.key=value ...]
// OUT_DIR gets
//   weights.bin  fp32: every tensor of the model, whole, one after another
//   tokens.bin   int32 (steps, 2, global_batch, seq_len): inputs, then targets of each step
//   run.json     settings, the learning rate of every step, and the offset of each tensor in weights.bin
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/random.h"
#include "lib/config/config.h"
#include "lib/model/parameter.h"
#include "lib/optim/lr.h"
#include "tests/data/expected_batch.h"
#include "tests/golden/tool.h"
#include "tests/model/initial_values.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Json settings_of(const Config& config) {
  const ModelConfig& m = config.model;
  const OptimizerConfig& o = config.optimizer;
  Json lr = Json::array();
  for (int64_t step = 0; step < config.run.steps; ++step) lr.push_back(learning_rate(config.lr, step));
  Json settings = {{"layers", m.layers},
                   {"hidden", m.hidden},
                   {"heads", m.heads},
                   {"kv_heads", m.kv_heads},
                   {"ffn_hidden", m.ffn_hidden},
                   {"vocab", m.vocab},
                   {"padded_vocab", padded_vocab(m)},
                   {"seq_len", m.seq_len},
                   {"window", m.window},
                   {"block", enum_name(m.block)},
                   {"norm", enum_name(m.norm)},
                   {"activation", enum_name(m.activation)},
                   {"position", enum_name(m.position)},
                   {"bias", m.bias},
                   {"tie_embeddings", m.tie_embeddings},
                   {"norm_eps", m.norm_eps},
                   {"rope_theta", m.rope_theta},
                   {"init_std", m.init_std},
                   {"seed", config.run.seed},
                   {"optimizer", enum_name(o.name)},
                   {"beta1", o.beta1},
                   {"beta2", o.beta2},
                   {"eps", o.eps},
                   {"weight_decay", o.weight_decay},
                   {"clip", o.clip},
                   {"global_batch", config.data.global_batch},
                   {"micro_batch", config.data.micro_batch},
                   {"steps", config.run.steps},
                   {"lr", std::move(lr)}};
  // Only where they are not the default: the fingerprints of kept curves stay.
  if (m.head_dim * m.heads != m.hidden) settings["head_dim"] = m.head_dim;
  if (m.qk_norm != QkNorm::kNone) settings["qk_norm"] = enum_name(m.qk_norm);
  if (m.norm_position != NormPosition::kPre) settings["norm_position"] = enum_name(m.norm_position);
  if (m.parallel_norms != 1) settings["parallel_norms"] = m.parallel_norms;
  if (m.rope_fraction < 1) settings["rope_fraction"] = m.rope_fraction;
  if (o.name == OptimizerKind::kMuon) {
    settings["momentum"] = o.momentum;
    settings["adamw_lr_factor"] = o.adamw_lr > 0 ? o.adamw_lr / config.lr.peak : 1.0;
  }
  if (m.rope_scaling != RopeScaling::kNone)
    settings["rope_scaling"] = {{"type", enum_name(m.rope_scaling)},
                                {"factor", m.rope_factor},
                                {"original_seq_len", m.rope_original_seq_len},
                                {"low_freq_factor", m.rope_low_freq_factor},
                                {"high_freq_factor", m.rope_high_freq_factor},
                                {"beta_fast", m.rope_beta_fast},
                                {"beta_slow", m.rope_beta_slow},
                                {"attention_factor", m.rope_attention_factor}};
  return settings;
}

Result<Json> export_weights(const Config& config, const std::string& path) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  Json tensors = Json::array();
  int64_t offset = 0;
  for (const ParamSpec& spec : model_parameters(config)) {
    const std::vector<float> values = initial_values(spec, Axis{.rank = 0, .size = 1}, config.run.seed);
    file.value().write(values.data(), values.size() * sizeof(float));
    tensors.push_back({{"name", spec.name}, {"shape", spec.shape}, {"offset", offset}, {"decay", spec.decay}});
    offset += spec.numel();
  }
  if (auto done = file.value().commit(); !done) return done.error();
  return tensors;
}

// Returns a digest of all tokens.
Result<uint64_t> export_tokens(const Config& config, const std::string& path) {
  std::vector<SourceSpec> sources;
  for (const Source& source : config.data.sources) sources.push_back({source.path, source.weight});
  if (sources.empty()) return usage_error("data.sources: a run needs at least one token file");
  auto dataset = Dataset::open(sources, config.model.seq_len, config.data.validation_fraction, config.data.seed,
                               config.model.vocab);
  if (!dataset) return dataset.error();
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  const BatchShape shape{.global_batch = config.data.global_batch, .micro_batch = config.data.micro_batch};
  uint64_t digest = 0;
  for (int64_t step = 0; step < config.run.steps; ++step) {
    const Batch batch = make_batch(dataset.value(), Split::kTrain, step, shape);
    for (const auto* tokens : {&batch.inputs, &batch.targets}) {
      file.value().write(tokens->data(), tokens->size() * sizeof(int32_t));
      digest = derive_key(digest, bytes_of(*tokens));
    }
  }
  if (auto done = file.value().commit(); !done) return done.error();
  return digest;
}

Result<void> export_run(const std::string& config_path, const std::string& folder,
                        const std::vector<std::string>& overrides) {
  const auto text = read_config_text(config_path);
  if (!text) return text.error();
  auto parsed = parse_config(text.value(), config_path, overrides);
  if (!parsed) return parsed.error();
  const auto resolved = resolve_config(std::move(parsed).value(), 1);
  if (!resolved) return resolved.error();
  const Config& config = resolved.value();

  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) return file_error("{}: {}", folder, problem.message());
  const auto digest = export_tokens(config, folder + "/tokens.bin");
  if (!digest) return digest.error();
  auto tensors = export_weights(config, folder + "/weights.bin");
  if (!tensors) return tensors.error();

  Json run = {{"name", config.run.name},
              {"precision", enum_name(config.precision.compute)},
              {"fingerprint", ""},
              {"settings", settings_of(config)}};
  // Runs with equal fingerprints have equal curves, up to rounding.
  run["fingerprint"] = fmt::format("{:016x}", derive_key(digest.value(), run["settings"].dump()));
  run["tensors"] = std::move(tensors).value();
  return write_file(folder + "/run.json", run.dump(1) + "\n");
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  CLI::App app{"Exports settings, start weights and token order of a run of one rank"};
  std::string config, folder;
  std::vector<std::string> overrides;
  app.add_option("config", config, "YAML run config")->required();
  app.add_option("out_dir", folder, "Folder to write")->required();
  app.add_option("--set", overrides, "section.key=value, overrides the file; repeatable");
  CLI11_PARSE(app, argc, argv);
  return tri::tool_status([&] { return tri::export_run(config, folder, overrides); });
}
