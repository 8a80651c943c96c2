#include "lib/config/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "lib/config/batch_sizes.h"
#include "lib/config/fields.h"
#include "lib/config/layer_counts.h"
#include "lib/config/nearest.h"

namespace tri {
namespace {

Config parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return value_or_throw(parse_config(yaml, "test.yaml", overrides));
}

Config resolve(const std::string& yaml, int world_size, const std::vector<std::string>& overrides = {}) {
  return value_or_throw(resolve_config(parse(yaml, overrides), world_size));
}

TEST(Config, empty_text_means_defaults) {
  for (const char* text : {"", "\n# a comment alone\n", "model:\n", "run: {}\nlr: ~\n"})
    EXPECT_EQ(parse(text), Config{}) << text;
}

TEST(Config, values_reach_their_fields) {
  const Config config = parse(R"(
run: {name: a-b_1.2, seed: 18446744073709551615, device: cuda, sample_prompt: "tab\t, quote \", end"}
model: {layers: 3, bias: false, norm: rmsnorm, rope_theta: 5e5}
data: {sources: [runs/a, {path: "b c", weight: 0.25}, {path: d}]}
parallel: {schedule: "1f1b", dp: 0}
precision: {compute: bf16}
lr: {rule: wsd, decay_steps: 9000000000}
)");
  EXPECT_EQ(config.run.name, "a-b_1.2");
  EXPECT_EQ(config.run.seed, 18446744073709551615u);
  EXPECT_EQ(config.run.device, DeviceChoice::kCuda);
  EXPECT_EQ(config.run.sample_prompt, "tab\t, quote \", end");
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_FALSE(config.model.bias);
  EXPECT_EQ(config.model.norm, Norm::kRmsNorm);
  EXPECT_EQ(config.model.rope_theta, 500000.0);
  const std::vector<Source> sources = {{"runs/a", 1.0}, {"b c", 0.25}, {"d", 1.0}};
  EXPECT_EQ(config.data.sources, sources);
  EXPECT_EQ(config.parallel.schedule, Schedule::k1F1B);
  EXPECT_EQ(config.precision.compute, Dtype::kBF16);
  EXPECT_EQ(config.lr.rule, LrRule::kWsd);
  EXPECT_EQ(config.lr.decay_steps, 9000000000);
}

TEST(Config, bounds_are_included_or_excluded_as_the_help_says) {
  EXPECT_EQ(parse("data: {validation_fraction: 0.5}").data.validation_fraction, 0.5);
  EXPECT_EQ(parse("data: {validation_fraction: 0}").data.validation_fraction, 0.0);
  EXPECT_EQ(parse("lr: {wsd_decay_fraction: 1}").lr.wsd_decay_fraction, 1.0);
  EXPECT_EQ(parse("optimizer: {beta1: 0}").optimizer.beta1, 0.0);
  EXPECT_EQ(parse("parallel: {bucket_elements: 1024}").parallel.bucket_elements, 1024);
}

TEST(Overrides, replace_the_file_and_the_last_one_wins) {
  const Config config = parse("model: {layers: 2}\nrun: {steps: 7}",
                              {"model.layers=4", "model.layers=8", "lr.rule=linear", "model.bias=false"});
  EXPECT_EQ(config.model.layers, 8);
  EXPECT_EQ(config.lr.rule, LrRule::kLinear);
  EXPECT_FALSE(config.model.bias);
  EXPECT_EQ(config.run.steps, 7);
}

TEST(Overrides, text_is_taken_as_it_stands) {
  const Config config = parse("run: {dir: here}", {"run.sample_prompt=He said: \"a=b\" #1", "run.dir="});
  EXPECT_EQ(config.run.sample_prompt, "He said: \"a=b\" #1");
  EXPECT_EQ(config.run.dir, "");
}

TEST(Overrides, lists_are_yaml) {
  const Config config = parse("data: {sources: [x]}", {"data.sources=[a, {path: b, weight: 2}]"});
  const std::vector<Source> sources = {{"a", 1.0}, {"b", 2.0}};
  EXPECT_EQ(config.data.sources, sources);
  const std::vector<LayerAttention> pattern = {LayerAttention::kWindow, LayerAttention::kFull};
  EXPECT_EQ(parse("", {"model.layer_pattern=[window,full]"}).model.layer_pattern, pattern);
  EXPECT_TRUE(parse("model: {layer_pattern: [full]}", {"model.layer_pattern=[]"}).model.layer_pattern.empty());
}

TEST(Resolve, fills_what_is_derived) {
  const Config config = resolve("run: {name: r, steps: 30}\ndata: {global_batch: 12}\nparallel: {tp: 2, pp: 2}", 12);
  EXPECT_EQ(config.parallel.dp, 3);
  EXPECT_EQ(config.model.kv_heads, 12);
  EXPECT_EQ(config.model.ffn_hidden, 3072);
  EXPECT_EQ(config.run.dir, "runs/r");
  EXPECT_EQ(config.lr.decay_steps, 30);
}

TEST(Config, numbers_of_tokens_may_have_a_suffix) {
  EXPECT_EQ(parse("run: {tokens: 250B}").run.tokens, 250'000'000'000);
  EXPECT_EQ(parse("", {"run.tokens=1.5T"}).run.tokens, 1'500'000'000'000);
  for (const auto& [text, value] :
       std::initializer_list<std::pair<const char*, std::optional<int64_t>>>{{"0", 0},
                                                                             {"12", 12},
                                                                             {"3k", 3000},
                                                                             {"0.25M", 250000},
                                                                             {"9223372036854775807", INT64_MAX},
                                                                             {"", {}},
                                                                             {"k", {}},
                                                                             {"1.", {}},
                                                                             {".5k", {}},
                                                                             {"1.5", {}},
                                                                             {"1.0001k", {}},
                                                                             {"-1", {}},
                                                                             {"+1", {}},
                                                                             {"1e3", {}},
                                                                             {"9300000T", {}},
                                                                             {"1 k", {}}})
    EXPECT_EQ(parse_count(text), value) << text;
}

TEST(Resolve, tokens_replace_steps) {
  const char* yaml = "run: {tokens: 1000}\nmodel: {seq_len: 10}\ndata: {global_batch: 3}";
  EXPECT_EQ(resolve(yaml, 1).run.steps, 34);  // 33 steps train 990 tokens
  EXPECT_EQ(resolve(yaml, 1).lr.decay_steps, 34);
  const Config by_tokens = resolve(std::string(yaml) + "\nlr: {by: tokens}", 1);
  EXPECT_EQ(by_tokens.lr.decay_tokens, 1000);
  EXPECT_EQ(by_tokens.lr.decay_steps, 0);
  EXPECT_EQ(value_or_throw(resolve_config(by_tokens, 1)), by_tokens);
  EXPECT_EQ(
      resolve("run: {steps: 7}\nmodel: {seq_len: 10}\ndata: {global_batch: 3}\nlr: {by: tokens}", 1).lr.decay_tokens,
      210);
  // A run that used another batch before ends by its own tokens.
  EXPECT_EQ(last_step(resolve(yaml, 1), 5, 10), 5 + 30);
  EXPECT_EQ(last_step(resolve("run: {steps: 7}", 1), 5, 1000), 7);
}

TEST(BatchSizes, a_ramp_is_a_prefix_sum) {
  using Entries = std::vector<RampEntry>;
  EXPECT_EQ(parse_batch_ramp("0:768 250B:1536"), (Entries{{0, 768}, {250'000'000'000, 1536}}));
  EXPECT_EQ(parse_batch_ramp(" 0:1 "), (Entries{{0, 1}}));
  EXPECT_EQ(parse_batch_ramp("0:1,1.5k:2"), (Entries{{0, 1}, {1500, 2}}));
  for (const char* text :
       {"", "1:2", "0:0", "0:2 0:4", "0:2 9:4 8:6", "0", "0:2;9:4", "0:-2", "0:1.5", "0:2 x:4", "0:9B"})
    EXPECT_FALSE(parse_batch_ramp(text)) << text;

  const BatchSizes sizes({{0, 4}, {10, 8}, {11, 2}, {30, 16}});
  int64_t sample = 0;
  std::vector<int64_t> first, size;
  for (int step = 0; step < 16; ++step) {
    EXPECT_EQ(sizes.after(0, step), sample);
    EXPECT_EQ(sizes.steps_until(0, sample), step);
    first.push_back(sample);
    size.push_back(sizes.at(sample));
    sample += sizes.at(sample);
  }
  // A step keeps the size with which it begins; the phase of size 8 is over before a step begins in it.
  EXPECT_EQ(first, (std::vector<int64_t>{0, 4, 8, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 46, 62, 78}));
  EXPECT_EQ(size, (std::vector<int64_t>{4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 16, 16, 16, 16}));
  EXPECT_EQ(sizes.after(46, 2), 78);
  EXPECT_EQ(sizes.steps_until(8, 31), 11);
  EXPECT_EQ(sizes.largest(), 16);
  EXPECT_EQ(sizes.smallest(), 2);
  EXPECT_EQ(sizes.divisor(), 2);
}

TEST(Resolve, a_ramp_replaces_the_global_batch) {
  const Config config =
      resolve("run: {tokens: 1000}\nmodel: {seq_len: 10}\ndata: {batch_ramp: \"0:4 405:12\"}\nlr: {by: tokens}", 1);
  EXPECT_EQ(config.data.global_batch, 12);
  EXPECT_EQ(config.run.steps, 11 + 5);  // 11 steps of 40 tokens, then 5 of 120
  EXPECT_EQ(value_or_throw(resolve_config(config, 1)), config);
  EXPECT_EQ(batch_sizes(config).phases()[1], (BatchSizes::Phase{41, 12}));
}

TEST(Resolve, a_written_config_names_no_default_that_is_replaced) {
  for (const char* text : {"run: {tokens: 1000}\nmodel: {seq_len: 10}\ndata: {batch_ramp: \"0:4 405:12\"}",
                           "run: {tokens: 1000}", "data: {batch_ramp: \"0:1 9:2\"}"}) {
    const Config asked = parse(text), resolved = value_or_throw(resolve_config(asked, 1));
    EXPECT_EQ(parse(to_yaml(asked)), asked) << text;
    EXPECT_EQ(parse(to_yaml(resolved)), resolved) << text;
    EXPECT_NE(to_yaml(resolved).find("\n  steps: "), std::string::npos) << text;
    EXPECT_NE(to_yaml(resolved).find("\n  global_batch: "), std::string::npos) << text;
  }
  EXPECT_NE(to_yaml(parse("run: {}")).find("\n  steps: 100\n"), std::string::npos);
}

TEST(Resolve, rates_by_token_need_no_run_tokens) {
  const Config config = resolve(
      "run: {steps: 6}\nmodel: {seq_len: 10}\ndata: {batch_ramp: \"0:4 100:12\"}\nlr: {by: tokens, warmup_tokens: 50}",
      1);
  EXPECT_EQ(config.lr.decay_tokens, 10 * (3 * 4 + 3 * 12)) << "the tokens of six steps";
  EXPECT_EQ(config.lr.decay_steps, 0);
  EXPECT_EQ(
      resolve("run: {steps: 7}\nmodel: {seq_len: 10}\ndata: {global_batch: 4}\nlr: {by: tokens}", 1).lr.decay_tokens,
      7 * 4 * 10);
}

TEST(Resolve, run_tokens_and_the_step_that_they_give_do_not_conflict) {
  EXPECT_EQ(resolve("run: {tokens: 1000, steps: 25}\nmodel: {seq_len: 10}\ndata: {global_batch: 4}", 1).run.steps, 25);
}

TEST(Resolve, swiglu_width_is_eight_thirds_up_to_a_multiple_of_64) {
  EXPECT_EQ(resolve("model: {activation: swiglu, hidden: 768}", 1).model.ffn_hidden, 2048);    // exactly 8/3
  EXPECT_EQ(resolve("model: {activation: swiglu, hidden: 4092}", 1).model.ffn_hidden, 10944);  // 10912, + 32
  EXPECT_EQ(resolve("model: {activation: swiglu, hidden: 12}", 1).model.ffn_hidden, 64);
}

TEST(Resolve, keeps_what_is_given) {
  const Config config =
      resolve("run: {dir: d}\nmodel: {kv_heads: 4, ffn_hidden: 100}\nlr: {decay_steps: 7}\nparallel: {dp: 2}", 2);
  EXPECT_EQ(config.run.dir, "d");
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.ffn_hidden, 100);
  EXPECT_EQ(config.lr.decay_steps, 7);
  EXPECT_EQ(config.parallel.dp, 2);
}

TEST(Resolve, twice_changes_nothing) {
  const Config once =
      resolve("parallel: {tp: 2}\nmodel: {activation: swiglu, position: rope, rope_scaling: yarn, rope_factor: 2}", 4);
  EXPECT_EQ(value_or_throw(resolve_config(once, 4)), once);
}

TEST(Resolve, derives_the_bias_of_queries_and_the_original_length_of_rope) {
  EXPECT_EQ(resolve("", 1).model.qkv_bias, AutoFlag::kTrue);
  EXPECT_EQ(resolve("model: {bias: false}", 1).model.qkv_bias, AutoFlag::kFalse);
  EXPECT_EQ(resolve("model: {bias: false, qkv_bias: true}", 1).model.qkv_bias, AutoFlag::kTrue);
  EXPECT_EQ(resolve("model: {qkv_bias: false}", 1).model.qkv_bias, AutoFlag::kFalse);
  const std::string rope = "position: rope, seq_len: 64, rope_factor: 2";
  EXPECT_EQ(resolve("model: {rope_scaling: llama3, " + rope + "}", 1).model.rope_original_seq_len, 64);
  EXPECT_EQ(
      resolve("model: {rope_scaling: yarn, rope_original_seq_len: 16, " + rope + "}", 1).model.rope_original_seq_len,
      16);
  EXPECT_EQ(resolve("model: {rope_scaling: linear, " + rope + "}", 1).model.rope_original_seq_len, 0);
}

// A config in which no field but parallel.chunks, model.norm_position and those of experts has its default value.
Config all_changed() {
  return parse(R"(
run: {name: n, dir: "d\\e\n", seed: 5, steps: 6, tokens: 1100, device: cuda, eval_every: 1, eval_batches: 2,
      gemm_search: false, deterministic: false, sample_every: 3, sample_tokens: 4, sample_prompt: "\x07 \"q\" – ~",
      sample_temperature: 0.1, sample_top_k: 5}
model: {layers: 4, hidden: 64, heads: 4, kv_heads: 2, head_dim: 24, ffn_hidden: 96, vocab: 300, seq_len: 32,
        window: 16, layer_pattern: [window, full], block: parallel, parallel_norms: 2, norm: rmsnorm, norm_offset: 1,
        activation: swiglu, position: rope, qk_norm: head, attention_scale: 0.25, attention_softcap: 50,
        logit_softcap: 30, embedding_scale: 8, attention: builtin, bias: false, qkv_bias: true, tie_embeddings: false,
        norm_eps: 0.1, rope_theta: 123456.789, rope_theta_local: 1000, rope_fraction: 0.5, rope_scaling: yarn,
        rope_factor: 4.5, rope_original_seq_len: 16, rope_low_freq_factor: 1.5, rope_high_freq_factor: 5,
        rope_beta_fast: 31, rope_beta_slow: 0.5, rope_attention_factor: 1.25, init_std: 1e-300}
data: {sources: [a, {path: "b\"", weight: 0.3333333333333333}], tokenizer: t, global_batch: 12,
       stages: [{until_tokens: 1k, sources: ["x y", "$$z"], weights: [0.25, 3]}, {sources: [c]}],
       validation: [{name: web, path: "v w"}], packing: best_fit, batch_ramp: "0:6 1k:12",
       document_mask: true, reset_positions: false, eod_loss: false,
       micro_batch: 3, seed: 9, validation_fraction: 0.3, prefetch: 7, shared: false}
parallel: {tp: 2, cp: 2, pp: 2, dp: 2, layers_per_chunk: "1,3", schedule: gpipe, zero: 2, recompute: full,
           bucket_elements: 2048, overlap_tp: false, tp_transfers: copies, overlap_cp: false, overlap_pp: false,
           dp_transfers: collectives, pp_transfers: messages, overlap_dp: false,
           overlap_update: false}
precision: {compute: bf16, gemm: fp8, fp8_first_layers: 1, fp8_last_layers: 2, fp8_gradients: e4m3,
            fp8_fast_accumulation: all}
optimizer: {name: muon, beta1: 0.1, beta2: 0.2, eps: 0.3, momentum: 0.9, adamw_lr: 0.05, weight_decay: 0.4, clip: 0.5,
            skip_spikes: 6, z_loss: 1e-4, moments: bf16, ema: 0.999}
lr: {rule: wsd, peak: 0.1, min: 0.01, by: tokens, warmup_steps: 1, decay_steps: 5, warmup_tokens: 2, decay_tokens: 9,
     wsd_decay_fraction: 0.7}
checkpoint: {dir: c, every_minutes: 2.5, every: 7, memory_every: 3, keep_last: 2, keep_every: 70, max_failures: 5,
             accept_changes: model.window}
fault: {grace_seconds: 7.5, on_nonfinite: skip, max_skips: 4, connect_seconds: 8.5, black_box: false, watchdog: off,
        setup_seconds: 1.5, load_seconds: 2.5, step_seconds: 3.5, checkpoint_seconds: 4.5, evaluation_seconds: 5.5}
metrics: {log_every: 2, log: debug, log_ranks: true, ranks_every: 3, fp8_every: 7, experts_every: 8,
          tensorboard: false, prometheus: "[::1]:9400", prometheus_file: p.prom,
          timeline: "20:22"}
cluster: {ranks_per_node: 4, rank_tflops: 1.5, node_gb_per_s: 2.5, network_gb_per_s: 3.5, storage_gb_per_s: 4.5,
          rank_mtbf_hours: 5.5}
)");
}

TEST(LayerCounts, are_read_and_written_with_runs) {
  EXPECT_EQ(parse_layer_counts("9,9,8"), (std::vector{9, 9, 8}));
  EXPECT_EQ(parse_layer_counts(" 2x9 8 "), (std::vector{9, 9, 8}));
  EXPECT_EQ(layer_counts_text({9, 9, 8, 9}), "2x9,8,9");
  for (const char* text : {"", "auto", "0", "3,-1", "2x", "x2", "0x3", "1.5", "100000x2,1", "3;4"})
    EXPECT_FALSE(parse_layer_counts(text)) << text;
  EXPECT_EQ(parse("parallel: {layers_per_chunk: [3, 2]}").parallel.layers_per_chunk, "3,2");
  EXPECT_EQ(Config{}.parallel.layers_per_chunk, kEvenLayers);
}

TEST(ResolvedYaml, parses_back_to_an_equal_config) {
  Config changed = all_changed();
  changed.parallel.chunks = 3;                        // gpipe refuses it, but only resolve_config checks that
  changed.model.norm_position = NormPosition::kPost;  // as the parallel block does
  ModelConfig& m = changed.model;                     // which also refuses experts
  m.experts = 8;
  m.experts_per_token = 3;
  m.expert_hidden = 32;
  m.shared_experts = m.dense_layers = 1;
  m.router = Router::kSigmoid;
  m.router_renormalize = false;
  m.router_scale = 2.5;
  m.router_groups = 4;
  m.router_top_groups = 2;
  m.router_bias_rate = m.aux_loss = m.router_z_loss = 0.001;
  changed.parallel.ep = 4;
  changed.parallel.ep_capacity = 1.25;
  changed.parallel.ep_transfers = Transfers::kCollectives;
  for (const Section& section : config_sections())
    for (const Field& field : section.fields)
      EXPECT_NE(field.print(changed), field.rule.default_text) << field.name() << " still has its default";
  EXPECT_EQ(parse(to_yaml(changed)), changed);
  EXPECT_EQ(parse(to_yaml(Config{})), Config{});
  changed = all_changed();
  changed.data.sources.clear();  // the stages name the sources
  changed.lr.warmup_steps = changed.lr.decay_steps = 0;
  const Config resolved = value_or_throw(resolve_config(changed, 16));
  EXPECT_EQ(parse(to_yaml(resolved)), resolved);
}

// The config.yaml of an earlier version: it has every field, and removed ones with their defaults.
TEST(RemovedSettings, files_may_have_them_with_the_values_that_change_nothing) {
  const Config plain = parse("precision: {compute: bf16, gemm: fp8}");
  EXPECT_EQ(parse("precision: {compute: bf16, gemm: fp8, fp8_wgrad: fp8, fp8_guard: off}"), plain);
}

TEST(RemovedSettings, are_refused_with_reason_and_remedy) {
  const std::tuple<const char*, const char*, const char*, const char*> settings[] = {
      {"fp8_guard", "on", "it doubled the memory", "resume with precision.gemm=compute"},
      {"fp8_wgrad", "compute", "served comparisons only", "delete the setting"},
      {"gemm", "auto", "should not decide the number format", "run `trireme bench step` with"}};
  for (const auto& [key, value, reason, remedy] : settings) {
    const auto file = parse_config(fmt::format("precision:\n  compute: bf16\n  {}: {}\n", key, value), "a.yaml", {});
    const auto set = parse_config("", "a.yaml", {fmt::format("precision.{}={}", key, value)});
    ASSERT_FALSE(file) << key;
    ASSERT_FALSE(set) << key;
    EXPECT_TRUE(file.error().message.starts_with(fmt::format("a.yaml:3: precision.{}: {} was removed: ", key, value)))
        << file.error().message;
    EXPECT_TRUE(set.error().message.starts_with(fmt::format("--set precision.{}={}: was removed: ", key, value)))
        << set.error().message;
    for (const auto& refused : {file, set}) {
      EXPECT_EQ(refused.error().code, ExitCode::kUsage);
      EXPECT_NE(refused.error().message.find(reason), std::string::npos) << refused.error().message;
      EXPECT_NE(refused.error().message.find(remedy), std::string::npos) << refused.error().message;
    }
  }
  EXPECT_FALSE(parse_config("", "a.yaml", {"precision.fp8_guard=off"})) << "no saved config has it there";
  EXPECT_FALSE(parse_config("precision: {fp8_guard: [on]}", "a.yaml", {})) << "a list";
  EXPECT_FALSE(parse_config("precision: {fp8_guard: }", "a.yaml", {})) << "no value";
}

TEST(RemovedSettings, saved_configs_load_with_a_warning) {
  const auto loaded = [](const std::string& precision) {
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    const Config config = value_or_throw(parse_saved_config("precision:\n  compute: bf16\n" + precision, "its config"));
    const std::string out = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    return std::pair(config, out);
  };
  const auto [plain, nothing] = loaded("  gemm: fp8\n");
  const auto [neutral, quiet] = loaded("  gemm: fp8\n  fp8_wgrad: fp8\n  fp8_guard: off\n");
  EXPECT_EQ(neutral, plain);
  EXPECT_EQ(quiet, "");
  const auto [guarded, warned] = loaded("  gemm: fp8\n  fp8_wgrad: compute\n  fp8_guard: on\n");
  EXPECT_EQ(guarded, plain);
  EXPECT_NE(warned.find("its config:4: precision.fp8_wgrad: compute was removed: the weight gradients of FP8 layers "
                        "are always computed in FP8"),
            std::string::npos)
      << warned;
  EXPECT_NE(warned.find("its config:5: precision.fp8_guard: on was removed: layers stay in FP8"), std::string::npos)
      << warned;
  const auto [timed, shown] = loaded("  gemm: auto\n");
  EXPECT_EQ(timed.precision.gemm, GemmFormat::kCompute);
  EXPECT_NE(shown.find("its config:3: precision.gemm: auto was removed"), std::string::npos) << shown;
  EXPECT_FALSE(parse_saved_config("precision: {gemm: auto, fp8_guards: on}", "its config")) << "never existed";
}

TEST(ResolvedYaml, lists_every_field_once) {
  const std::string yaml = to_yaml(Config{});
  size_t fields = 0;
  for (const Section& section : config_sections()) fields += section.fields.size() + 1;
  EXPECT_EQ(static_cast<size_t>(std::count(yaml.begin(), yaml.end(), '\n')), fields);
  EXPECT_NE(yaml.find("\n  global_batch: 8\n"), yaml.npos);
}

TEST(ConfigValue, gives_each_field_as_scripts_want_it) {
  const Config config = resolve("run: {name: n, dir: \"d\\\\e f\"}\nparallel: {tp: 2}\nlr: {peak: 1e-3}", 4);
  EXPECT_EQ(value_or_throw(config_value(config, "run.dir")), "d\\e f");
  EXPECT_EQ(value_or_throw(config_value(config, "parallel.dp")), "2");
  EXPECT_EQ(value_or_throw(config_value(config, "lr.peak")), "0.001");
  const Result<std::string> unknown = config_value(config, "run.dirr");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, "run.dirr: no such field; did you mean run.dir?");
}

TEST(Help, names_every_field_with_default_allowed_and_consequence) {
  const std::string help = config_help();
  size_t at = 0;
  for (const Section& section : config_sections()) {
    at = help.find(section.name + ": " + std::string(section.title) + "\n", at);
    ASSERT_NE(at, help.npos) << section.name;
    for (const Field& field : section.fields) {
      ASSERT_FALSE(field.consequence.empty()) << field.name();
      const size_t line = help.find("  " + field.name() + " = " + field.rule.default_text + " ", at);
      ASSERT_NE(line, help.npos) << field.name();
      const size_t end = help.find('\n', line);
      EXPECT_NE(help.substr(line, end - line).find(" " + field.rule.allowed_text), help.npos) << field.name();
      at = help.find(field.consequence, end);
      ASSERT_EQ(at, end + 7) << field.name();  // the line below, indented by six spaces
    }
  }
}

TEST(Fields, have_unique_names_and_defaults_that_are_allowed) {
  std::set<std::string> names;
  for (const Section& section : config_sections())
    for (const Field& field : section.fields) EXPECT_TRUE(names.insert(field.name()).second) << field.name();
  EXPECT_TRUE(names.contains("model.tie_embeddings") && names.contains("cluster.ranks_per_node"));
  EXPECT_TRUE(parse_config(to_yaml(Config{}), "defaults", {}).ok());
}

TEST(Nearest, counts_insertions_deletions_substitutions_and_swaps) {
  EXPECT_EQ(edit_distance("heads", "heads"), 0);
  EXPECT_EQ(edit_distance("heds", "heads"), 1);
  EXPECT_EQ(edit_distance("headss", "heads"), 1);
  EXPECT_EQ(edit_distance("haeds", "heads"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, suggests_only_what_is_near) {
  EXPECT_EQ(nearest("HEADS", {"layers", "heads"}), "heads");
  EXPECT_EQ(nearest("num_kv_heads", {"heads", "kv_heads"}), "kv_heads");
  EXPECT_EQ(nearest("gpu", {"cpu", "cuda"}), "");
  EXPECT_EQ(nearest("colour", {"layers", "heads"}), "");
}

class ConfigFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "tri_config_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST(Ranks, are_the_requested_ones_or_those_of_the_mesh) {
  Config config;
  config.parallel = {.tp = 2, .pp = 3, .dp = 4};
  EXPECT_EQ(value_or_throw(planned_ranks(config, 0)), 24);
  EXPECT_EQ(value_or_throw(planned_ranks(config, 5)), 5);
  EXPECT_EQ(value_or_throw(planned_ranks(config, kMostRanks)), kMostRanks);
  EXPECT_FALSE(planned_ranks(config, kMostRanks + 1));
  EXPECT_FALSE(planned_ranks(config, -1));
  config.parallel = {.tp = kMostRanks, .pp = kMostRanks, .dp = kMostRanks};  // 2^60
  EXPECT_FALSE(planned_ranks(config, 0));
  config.parallel.dp = 0;
  EXPECT_EQ(planned_ranks(config, 0).error().message,
            "--ranks N is needed: parallel.dp 0 leaves the number of ranks open");
}

TEST(Overrides, are_known_by_their_names) {
  EXPECT_TRUE(names_field({"run.steps=5", "parallel.tp=2"}, "parallel.tp"));
  EXPECT_FALSE(names_field({"parallel.tp_transfers=auto", "parallel.tp"}, "parallel.tp"));
}

TEST_F(ConfigFile, is_read_whole) {
  const std::string path = folder_ / "a.yaml";
  std::ofstream(path) << "run:\r\n  steps: 5\r\n";
  EXPECT_EQ(value_or_throw(read_config_text(path)), "run:\r\n  steps: 5\r\n");
  EXPECT_EQ(parse(value_or_throw(read_config_text(path))).run.steps, 5);
}

TEST_F(ConfigFile, missing_is_a_usage_error) {
  const std::string path = folder_ / "none.yaml";
  const Result<std::string> text = read_config_text(path);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().message, path + ": cannot read the config: No such file or directory");
  EXPECT_EQ(text.error().code, ExitCode::kUsage);
  const std::string preset = folder_ / "llama_8b";
  EXPECT_EQ(read_config_text(preset).error().message,
            preset +
                ": cannot read the config: No such file or directory; llama_8b is a preset: trireme config new --model "
                "llama_8b --gpus N --output my.yaml writes a config from it");
}

TEST_F(ConfigFile, folder_is_a_usage_error) {
  const Result<std::string> text = read_config_text(folder_);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().message, folder_.string() + ": is a folder; name a config file");
  const std::string inside = folder_ / "config.yaml";
  std::ofstream(inside) << "run: {}\n";
  EXPECT_EQ(read_config_text(folder_).error().message,
            folder_.string() + ": is a folder; name a config file, such as " + inside);
}

}  // namespace
}  // namespace tri
