#include "lib/train/run_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lib/checkpoint/weights.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

Config parse(const std::string& yaml) { return value_or_throw(parse_config(yaml, "test.yaml", {})); }

TEST(RunFolder, separates_requested_from_decided_settings) {
  const TemporaryFolder folder;
  const Config written = parse("run: {name: mine, steps: 7}\nparallel: {tp: 2}");
  const Config decided = value_or_throw(resolve_config(written, 8));
  ASSERT_TRUE(write_configs(folder.path(), "elsewhere.yaml", written, decided));
  EXPECT_TRUE(read_all(folder / "resolved.yaml").starts_with("run:\n"));
  const Config again = parse(read_all(folder / "config.yaml"));
  EXPECT_EQ(again, written);
  EXPECT_TRUE(resolve_config(again, 4)) << "bound to a number of ranks";
  EXPECT_EQ(parse(read_all(folder / "resolved.yaml")), decided);
}

TEST(RunFolder, leaves_the_config_alone_that_is_its_input) {
  const TemporaryFolder folder;
  const std::string path = folder / "config.yaml", text = "run: {name: mine}  # by hand\n";
  write_all(path, text);
  std::filesystem::create_symlink(path, folder / "another_name.yaml");
  for (const std::string& source : {path, folder.path().string() + "/./config.yaml", folder / "another_name.yaml"}) {
    ASSERT_TRUE(write_configs(folder.path(), source, parse(text), parse(text)));
    EXPECT_EQ(read_all(path), text) << source;
  }
  ASSERT_TRUE(write_configs(folder.path(), "elsewhere.yaml", parse(text), parse(text)));
  EXPECT_EQ(read_all(path), to_yaml(parse(text)));
}

// A hard link to the old file still shows the old text: a reader never sees a partly written file.
TEST(RunFolder, replaces_configs_whole) {
  const TemporaryFolder folder;
  const Config first = parse("run: {steps: 7}"), second = parse("run: {steps: 8}");
  ASSERT_TRUE(write_configs(folder.path(), "", first, first));
  for (const std::string name : {"config.yaml", "resolved.yaml"})
    std::filesystem::create_hard_link(folder / name, folder / ("old_" + name));
  ASSERT_TRUE(write_configs(folder.path(), "", second, second));
  for (const std::string name : {"config.yaml", "resolved.yaml"}) {
    EXPECT_EQ(parse(read_all(folder / name)), second);
    EXPECT_EQ(parse(read_all(folder / ("old_" + name))), first);
  }
}

// Returns accept_checkpoint's refusal of a run of `config`; "" if the run may continue.
std::string refusal(const Config& config, std::map<std::string, std::string> texts) {
  Manifest manifest;
  manifest.info.texts = std::move(texts);
  const auto accepted = accept_checkpoint(config, "the/checkpoint", manifest);
  if (accepted) return "";
  EXPECT_EQ(accepted.error().code, ExitCode::kUsage);
  return accepted.error().message;
}

TEST(AcceptCheckpoint, refuses_another_model_by_field_and_both_values) {
  const std::map<std::string, std::string> saved = {
      {"config", to_yaml(parse("model: {heads: 8, rope_theta: 5e5}\nlr: {peak: 1}"))}};
  EXPECT_EQ(refusal(parse("model: {heads: 8, rope_theta: 5e5}\nrun: {steps: 7}"), saved), "");
  EXPECT_EQ(
      refusal(parse("model: {heads: 4}"), saved),
      "the/checkpoint was saved with a different model:\n  model.heads: 8, now 4\n  model.rope_theta: 500000, now "
      "10000\nrestore these fields or, if the change is intended, set checkpoint.accept_changes to "
      "model.heads,model.rope_theta");
  EXPECT_EQ(
      refusal(parse("model: {heads: 4}\ncheckpoint: {accept_changes: model.heads}"), saved),
      "the/checkpoint was saved with a different model:\n  model.rope_theta: 500000, now 10000\nrestore these fields "
      "or, "
      "if the change is intended, set checkpoint.accept_changes to model.rope_theta");
  EXPECT_EQ(refusal(parse("model: {heads: 4}\ncheckpoint: {accept_changes: true}"), saved), "");
}

TEST(AcceptCheckpoint, refuses_an_optimizer_with_another_state) {
  const std::map<std::string, std::string> adamw = {{"config", to_yaml(parse("optimizer: {name: adamw}"))}};
  EXPECT_EQ(refusal(parse("optimizer: {name: lamb}"), adamw), "");
  EXPECT_EQ(refusal(parse("optimizer: {name: muon}"), adamw),
            "the/checkpoint has the optimizer state of optimizer.name adamw, but muon needs another one; restore the "
            "field, or start a new run from the weights: trireme checkpoint export, then import");
  EXPECT_NE(refusal(parse(""), {{"config", to_yaml(parse("optimizer: {name: muon}"))}}), "");
}

TEST(AcceptCheckpoint, takes_one_whose_config_has_removed_settings_and_one_of_the_other_gemms) {
  const std::string bf16 = "precision: {compute: bf16}", fp8 = "precision: {compute: bf16, gemm: fp8}";
  for (const char* removed : {"", ", fp8_wgrad: fp8, fp8_guard: off", ", fp8_wgrad: compute, fp8_guard: on"})
    for (const char* gemm : {"compute", "fp8", "auto"})
      for (const std::string& now : {bf16, fp8}) {
        const std::string saved = fmt::format("precision: {{compute: bf16, gemm: {}{}}}", gemm, removed);
        EXPECT_EQ(refusal(parse(now), {{"config", saved}}), "") << saved << " -> " << now;
      }
  EXPECT_NE(refusal(parse(fp8), {{"config", std::string("precision: {fp8_guards: on}")}}), "") << "never a field";
}

// A manifest with the tensors of the model.
Manifest with_tensors(const Config& config) {
  Manifest manifest;
  manifest.info.texts = {{"config", to_yaml(config)}};
  for (const ParamSpec& spec : model_parameters(config))
    manifest.tensors.push_back({.name = weight_name(spec.name), .type = StoredType::kF32, .shape = spec.shape});
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const TensorRecord& a, const TensorRecord& b) { return a.name < b.name; });
  return manifest;
}

TEST(AcceptCheckpoint, offers_to_accept_changes_only_where_the_tensors_keep_their_shapes) {
  const std::string model = "model: {layers: 2, hidden: 16, heads: 2, seq_len: 16, vocab: 257";
  const Config saved = value_or_throw(resolve_config(parse(model + "}"), 1));
  const Manifest manifest = with_tensors(saved);
  const auto said = [&](const std::string& yaml) {
    const auto accepted = accept_checkpoint(value_or_throw(resolve_config(parse(yaml), 1)), "the/checkpoint", manifest);
    return accepted ? "" : accepted.error().message;
  };
  EXPECT_EQ(said(model + "}"), "");
  EXPECT_NE(said(model + ", window: 4}").find("accept_changes to model.window"), std::string::npos);
  for (const char* change : {", ffn_hidden: 32}", ", window: 4, ffn_hidden: 32}", ", activation: swiglu}"}) {
    const std::string text = said(model + change);
    EXPECT_EQ(text.find("accept_changes"), std::string::npos) << text;
    EXPECT_NE(text.find("tensor model/"), std::string::npos) << text;
    EXPECT_NE(text.find("restore the fields"), std::string::npos) << text;
  }
  EXPECT_NE(said("model: {layers: 2, hidden: 32, heads: 2, seq_len: 16, vocab: 257}").find("expected f32"),
            std::string::npos);
  EXPECT_NE(said("model: {layers: 3, hidden: 16, heads: 2, seq_len: 16, vocab: 257}").find("there is no tensor"),
            std::string::npos);
}

TEST(RateWarning, names_both_rates_where_a_changed_schedule_makes_them_jump) {
  const auto config = [](const std::string& yaml) { return value_or_throw(resolve_config(parse(yaml), 1)); };
  const std::string finished = "run: {steps: 60}\nlr: {peak: 3e-3, warmup_steps: 10";
  const Config before = config(finished + "}");
  const Config longer = config("run: {steps: 120}\nlr: {peak: 3e-3, warmup_steps: 10}");
  const std::string text = rate_warning(before, longer, 60);
  EXPECT_NE(text.find("2.96e-06 in step 60, 0.00171 in step 61"), std::string::npos) << text;
  EXPECT_NE(text.find("set lr.decay_steps=60;"), std::string::npos) << text;
  EXPECT_NE(text.find("lr.rule=constant, lr.peak=2.95991e-06, lr.warmup_steps=0"), std::string::npos) << text;
  // The suggested settings work.
  const Config held = config("run: {steps: 120}\nlr: {rule: constant, peak: 2.96e-06, warmup_steps: 0}");
  EXPECT_EQ(rate_warning(before, held, 60), "");
  EXPECT_EQ(rate_warning(before, config("run: {steps: 120}\nlr: {peak: 3e-3, warmup_steps: 10, decay_steps: 60}"), 60),
            "");
  EXPECT_EQ(rate_warning(before, before, 30), "");
  EXPECT_EQ(rate_warning(before, longer, 2), "") << "the warm-up is the same";
  EXPECT_NE(rate_warning(before, config("run: {steps: 60}\nlr: {peak: 1e-3, warmup_steps: 10}"), 30), "");
  EXPECT_EQ(rate_warning(before, longer, 120), "") << "no step remains";
}

TEST(AcceptCheckpoint, refuses_what_it_cannot_compare) {
  const Config trusting = parse("checkpoint: {accept_changes: true}");
  for (const auto& texts : {std::map<std::string, std::string>{}, {{"config", "model: {spin: up}"}}}) {
    EXPECT_NE(refusal(Config{}, texts).find("checkpoint.accept_changes"), std::string::npos);
    EXPECT_EQ(refusal(trusting, texts), "");
  }
}

}  // namespace
}  // namespace tri
