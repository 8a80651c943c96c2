#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "io/base/json.h"
#include "io/safetensors.h"
#include "lib/checkpoint/diff.h"
#include "lib/checkpoint/weights.h"
#include "lib/huggingface/elements.h"
#include "lib/huggingface/export.h"
#include "lib/huggingface/import.h"
#include "tests/huggingface/models.h"
#include "tests/io/temporary_folder.h"

namespace tri::huggingface {
namespace {

TEST(HuggingFace, export_and_import_give_back_every_bit) {
  for (const auto& [name, config] : models())
    for (const int64_t most : {int64_t{5'000'000'000}, int64_t{4000}, int64_t{1}}) {
      SCOPED_TRACE(fmt::format("{}, at most {} bytes a file", name, most));
      const TemporaryFolder dir;
      write_run(config, dir / "run");
      const auto exported =
          export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf", .max_shard_bytes = most});
      ASSERT_EQ(message(exported), "");
      EXPECT_EQ(exported.value().files == exported.value().tensors, most == 1);
      EXPECT_EQ(std::filesystem::exists(dir / "hf/model.safetensors.index.json"), exported.value().files > 1);
      const auto imported = import_model({.folder = dir / "hf", .run_dir = dir / "back"});
      ASSERT_EQ(message(imported), "");
      const auto diff = diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "", 2);
      ASSERT_EQ(message(diff), "");
      EXPECT_TRUE(diff.value().equal());
      EXPECT_EQ(diff.value().tensors.size(), model_parameters(config).size());
      for (const ConfigDiff& field : diff.value().config)
        EXPECT_FALSE(field.field.starts_with("model.")) << field.field;
    }
}

// The tensors as transformers expects them: right counts of fused or divided rows, none missing, padding removed.
TEST(HuggingFace, names_and_shapes_are_those_of_transformers) {
  const TemporaryFolder dir;
  const std::map<std::string, std::map<std::string, std::vector<int64_t>>> expected = {
      {"gpt2",
       {{"transformer.wte.weight", {300, 12}},
        {"transformer.wpe.weight", {8, 12}},
        {"transformer.h.1.attn.c_attn.weight", {12, 36}},
        {"transformer.h.1.attn.c_attn.bias", {36}},
        {"transformer.h.0.mlp.c_fc.weight", {12, 48}},
        {"transformer.h.0.mlp.c_proj.weight", {48, 12}},
        {"transformer.ln_f.bias", {12}}}},
      {"llama",
       {{"lm_head.weight", {300, 12}},
        {"model.layers.1.self_attn.q_proj.weight", {12, 12}},
        {"model.layers.1.self_attn.k_proj.weight", {4, 12}},
        {"model.layers.1.mlp.gate_proj.weight", {20, 12}},
        {"model.layers.1.mlp.down_proj.weight", {12, 20}}}},
      {"gemma2",
       {{"model.layers.0.input_layernorm.weight", {12}},
        {"model.layers.1.post_attention_layernorm.weight", {12}},
        {"model.layers.1.pre_feedforward_layernorm.weight", {12}},
        {"model.layers.1.post_feedforward_layernorm.weight", {12}},
        {"model.layers.1.mlp.up_proj.weight", {20, 12}}}},
      {"qwen2",
       {{"model.layers.0.self_attn.q_proj.bias", {12}},
        {"model.layers.1.self_attn.k_proj.bias", {4}},
        {"model.layers.1.self_attn.v_proj.bias", {4}}}},
      {"neox",
       {{"embed_out.weight", {300, 16}},
        {"gpt_neox.layers.1.attention.query_key_value.weight", {48, 16}},
        {"gpt_neox.layers.1.attention.query_key_value.bias", {48}},
        {"gpt_neox.layers.0.post_attention_layernorm.bias", {16}},
        {"gpt_neox.layers.0.mlp.dense_4h_to_h.weight", {16, 20}}}},
      {"olmo2",
       {{"model.layers.0.self_attn.q_norm.weight", {12}},
        {"model.layers.0.self_attn.k_norm.weight", {4}},
        {"model.layers.1.post_attention_layernorm.weight", {12}},
        {"model.layers.1.post_feedforward_layernorm.weight", {12}}}}};
  for (const auto& [name, shapes] : expected) {
    write_run(models().at(name), dir / name);
    value_or_throw(export_checkpoint({.checkpoint = dir / name + "/step_00000007", .folder = dir / (name + "_hf")}));
    const auto file = value_or_throw(SafetensorsFile::open(dir / (name + "_hf/model.safetensors")));
    const std::map<std::string, size_t> counts{{"gpt2", 28},  {"llama", 21}, {"qwen2", 27},
                                               {"olmo2", 25}, {"neox", 28},  {"gemma2", 24}};
    EXPECT_EQ(file.entries().size(), counts.at(name));
    for (const auto& [tensor, shape] : shapes) {
      ASSERT_NE(file.find(tensor), nullptr) << tensor;
      EXPECT_EQ(file.find(tensor)->shape, shape) << tensor;
    }
  }
}

TEST(HuggingFace, queries_keys_and_values_come_out_of_their_groups) {
  const ModelConfig m = llama().model;  // 6 heads of 2, 2 groups of (3 queries, key, value)
  EXPECT_EQ(row_map(Rows::kQuery, m, 20), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(row_map(Rows::kKey, m, 20), (std::vector<int64_t>{6, 7, 16, 17}));
  EXPECT_EQ(row_map(Rows::kValue, m, 20), (std::vector<int64_t>{8, 9, 18, 19}));
  std::vector<int64_t> all = row_map(Rows::kQueryKeyValue, m, 20);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 20u);
}

// transformers rotates the first elements of a head; here the first elements of both halves rotate.
TEST(HuggingFace, rows_of_a_head_that_rotates_in_part_are_reordered) {
  EXPECT_EQ(row_map(Rows::kByHead, neox().model, 48),
            (std::vector<int64_t>{0,  1,  4,  5,  2,  3,  6,  7,  8,  9,  12, 13, 10, 11, 14, 15,
                                  16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 28, 29, 26, 27, 30, 31,
                                  32, 33, 36, 37, 34, 35, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47}));
  ModelConfig whole = neox().model;
  whole.rope_fraction = 1;
  std::vector<int64_t> same = row_map(Rows::kByHead, whole, 48);
  EXPECT_TRUE(std::ranges::is_sorted(same));
}

TEST(HuggingFace, halves_become_the_same_numbers) {
  EXPECT_EQ(float_of_half(0x3C00), 1.0f);
  EXPECT_EQ(float_of_half(0xC101), -2.501953125f);
  EXPECT_EQ(float_of_half(0x0001), 0x1p-24f);
  EXPECT_EQ(float_of_half(0x83FF), -1023 * 0x1p-24f);
  EXPECT_EQ(float_of_half(0x7BFF), 65504.0f);
  EXPECT_EQ(float_of_half(0x7C00), INFINITY);
  EXPECT_TRUE(std::isnan(float_of_half(0x7E01)));
  EXPECT_TRUE(std::signbit(float_of_half(0x8000)));
}

// Damage to an exported folder, and the import's message about it. Nothing remains in the run's folder except its lock.
TEST(HuggingFace, a_folder_with_a_missing_a_strange_or_a_misshapen_tensor_is_refused) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  const std::string intact = read_all(dir / "hf/model.safetensors");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = intact;
    bytes.replace(bytes.find(from), from.size(), to);
    write_all(dir / "hf/model.safetensors", bytes);
    const std::string text = message(import_model({.folder = dir / "hf", .run_dir = dir / "back"}));
    EXPECT_FALSE(std::filesystem::exists(dir / "back/config.yaml"));
    EXPECT_TRUE(value_or_throw(list_checkpoints(dir / "back/checkpoints")).empty());
    return text;
  };
  EXPECT_NE(with("h.0.ln_1.bias", "h.0.ln_9.bias").find("tensor transformer.h.0.ln_1.bias is missing"),
            std::string::npos);
  EXPECT_NE(with("[12,36]", "[36,12]").find("is [36, 12], expected [12, 36]"), std::string::npos);
  std::filesystem::remove(dir / "hf/model.safetensors");
  EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("save_pretrained"),
            std::string::npos);
  for (const char* index : {R"({"metadata": {}})", "[]"}) {
    write_all(dir / "hf/model.safetensors.index.json", index);
    EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("weight_map is missing"),
              std::string::npos);
  }
  std::filesystem::remove(dir / "hf/model.safetensors.index.json");

  auto writer = value_or_throw(SafetensorsWriter::create(dir / "hf/model.safetensors", {{"x.weight", {}, {1}}}));
  const float one = 1;
  writer.write("x.weight", &one, 4);
  value_or_throw(writer.finish());
  EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("is missing"),
            std::string::npos);
}

TEST(HuggingFace, an_import_with_a_path_that_is_not_utf8_is_refused_before_it_begins) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  const std::string latin1 = dir / "caf\xe9";
  // An export stores no path, so it may have any name.
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = latin1 + "/hf"}));
  std::filesystem::copy(latin1 + "/hf", dir / "hf");
  for (const auto& [from, to] : {std::pair{latin1 + "/hf", dir / "back"}, {dir / "hf", latin1 + "/back"}}) {
    const auto imported = import_model({.folder = from, .run_dir = to});
    ASSERT_FALSE(imported);
    EXPECT_EQ(imported.error().code, ExitCode::kUsage);
    EXPECT_NE(imported.error().message.find("not UTF-8 text"), std::string::npos) << imported.error().message;
    EXPECT_TRUE(imported.error().message.starts_with(latin1)) << imported.error().message;
    EXPECT_FALSE(std::filesystem::exists(to));
  }
}

TEST(HuggingFace, tensors_without_a_place_are_refused_and_old_masks_and_short_names_are_not) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  // The same tensors without "transformer.", and one additional tensor.
  const auto rewrite = [&](const std::string& more) {
    std::filesystem::create_directories(dir / "old");
    std::filesystem::copy_file(dir / "hf/config.json", dir / "old/config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const auto file = value_or_throw(SafetensorsFile::open(dir / "hf/model.safetensors"));
    std::vector<SafetensorsEntry> entries = file.entries();
    for (SafetensorsEntry& entry : entries) entry.name = entry.name.substr(std::string("transformer.").size());
    entries.push_back({more, StoredType::kU8, {3}});
    auto writer = value_or_throw(SafetensorsWriter::create(dir / "old/model.safetensors", entries));
    for (size_t i = 0; i + 1 < entries.size(); ++i)
      writer.write(entries[i].name, file.data(file.entries()[i]).data(), entries[i].bytes());
    writer.write(more, "abc", 3);
    value_or_throw(writer.finish());
  };
  rewrite("h.0.attn.bias");
  const auto imported = import_model({.folder = dir / "old", .run_dir = dir / "back"});
  ASSERT_EQ(message(imported), "");
  EXPECT_TRUE(
      value_or_throw(diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "model/", 1)).equal());
  rewrite("h.0.attn.rotary");
  EXPECT_NE(message(import_model({.folder = dir / "old", .run_dir = dir / "other"})).find("is not part of"),
            std::string::npos);
}

// Rewrites the file in `hf` with `change` applied to names, types and data of its tensors.
struct StoredTensor {
  SafetensorsEntry entry;
  std::string bytes;
};
void rewrite_model(const std::string& folder, const std::function<void(std::vector<StoredTensor>&)>& change) {
  std::vector<StoredTensor> tensors;
  {
    const auto file = value_or_throw(SafetensorsFile::open(folder + "/model.safetensors"));
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto data = file.data(entry);
      tensors.push_back({entry, std::string(reinterpret_cast<const char*>(data.data()), data.size())});
    }
  }
  change(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const StoredTensor& t : tensors) {
    header[t.entry.name] = {{"dtype", t.entry.dtype()},
                            {"shape", t.entry.shape},
                            {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  write_all(folder + "/model.safetensors",
            std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}
StoredTensor& tensor_of(std::vector<StoredTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.entry.name == name; });
  TRI_REQUIRE(at != tensors.end(), "no tensor {}", name);
  return *at;
}
void edit_config(const std::string& folder, const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(read_all(folder + "/config.json"));
  change(json);
  write_all(folder + "/config.json", json.dump());
}

// As in transformers 5: tied only if the head is absent or equals the embedding.
TEST(HuggingFace, a_head_of_its_own_is_not_tied_whatever_the_config_says) {
  const std::string head = "lm_head.weight", embedding = "model.embed_tokens.weight";
  const TemporaryFolder dir;
  write_run(llama(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  edit_config(dir / "hf", [](nlohmann::json& json) { json["tie_word_embeddings"] = true; });
  const auto imported = import_model({.folder = dir / "hf", .run_dir = dir / "other"});
  ASSERT_EQ(message(imported), "");
  EXPECT_NE(imported.value().head.find("lm_head.weight differs"), std::string::npos) << imported.value().head;
  EXPECT_TRUE(
      value_or_throw(diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "model/", 1)).equal());
  EXPECT_NE(read_all(imported.value().config).find("tie_embeddings: false"), std::string::npos);
  EXPECT_NE(message(import_model(
                        {.folder = dir / "hf", .run_dir = dir / "forced", .overrides = {"model.tie_embeddings=true"}}))
                .find("would drop lm_head.weight"),
            std::string::npos);

  rewrite_model(dir / "hf",
                [&](auto& tensors) { tensor_of(tensors, head).bytes = tensor_of(tensors, embedding).bytes; });
  const auto same = import_model({.folder = dir / "hf", .run_dir = dir / "same"});
  ASSERT_EQ(message(same), "");
  EXPECT_EQ(same.value().head, "");
  EXPECT_NE(read_all(same.value().config).find("tie_embeddings: true"), std::string::npos);

  rewrite_model(dir / "hf", [&](auto& tensors) {
    std::erase_if(tensors, [&](const StoredTensor& t) { return t.entry.name == embedding; });
  });
  const auto alone = import_model({.folder = dir / "hf", .run_dir = dir / "alone"});
  ASSERT_EQ(message(alone), "");
  EXPECT_TRUE(value_or_throw(diff_checkpoints(same.value().checkpoint, alone.value().checkpoint, "model/", 1)).equal());
}

TEST(HuggingFace, tensors_that_hold_no_weights_are_ignored_whatever_their_type) {
  for (const std::string model : {"gpt2", "llama"}) {
    const TemporaryFolder dir;
    write_run(models().at(model), dir / "run");
    value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
    const auto add = [](const std::string& name, const std::string& dtype, int64_t bytes) {
      return [=](std::vector<StoredTensor>& tensors) {
        StoredTensor tensor{{.name = name, .shape = {8}, .other_dtype = dtype},
                            std::string(static_cast<size_t>(bytes), '\1')};
        tensors.push_back(std::move(tensor));
      };
    };
    const std::string buffer =
        model == "gpt2" ? "transformer.h.0.attn.bias" : "model.layers.0.self_attn.rotary_emb.inv_freq";
    const std::string other = model == "gpt2" ? "transformer.h.1.attn.masked_bias" : "rotary_emb.inv_freq";
    rewrite_model(dir / "hf", add(buffer, "BOOL", 8));
    rewrite_model(dir / "hf", add(other, "F64", 64));
    rewrite_model(dir / "hf",
                  add(model == "gpt2" ? "transformer.h.1.attn.bias" : "model.layers.1.self_attn.rotary_emb.cos_cached",
                      "I64", 64));
    const auto imported = import_model({.folder = dir / "hf", .run_dir = dir / "back"});
    ASSERT_EQ(message(imported), "") << model;
    EXPECT_TRUE(
        value_or_throw(diff_checkpoints(dir / "run/step_00000007", imported.value().checkpoint, "model/", 1)).equal());
    rewrite_model(dir / "hf", add("spare", "BOOL", 8));
    EXPECT_NE(
        message(import_model({.folder = dir / "hf", .run_dir = dir / "spare"})).find("tensor spare is not part of"),
        std::string::npos);
    // A weight of such a type is refused.
    const std::string norm = model == "gpt2" ? "transformer.ln_f.weight" : "model.norm.weight";
    rewrite_model(dir / "hf", [&](auto& tensors) {
      std::erase_if(tensors, [](const StoredTensor& t) { return t.entry.name == "spare"; });
      StoredTensor& weight = tensor_of(tensors, norm);
      weight.entry.other_dtype = "F8_E4M3";
      weight.bytes.resize(12);
    });
    EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "fp8"}))
                  .find("tensor " + norm + " is F8_E4M3; weights must be"),
              std::string::npos);
  }
}

// Without a window Mistral's model is one of Llama's too: an imported one keeps its class.
TEST(HuggingFace, an_imported_model_is_exported_as_the_class_that_it_was) {
  const TemporaryFolder dir;
  write_run(llama(), dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  edit_config(dir / "hf", [](nlohmann::json& json) {
    json["model_type"] = "mistral";
    json["architectures"] = {"MistralForCausalLM"};
    json["sliding_window"] = nullptr;
  });
  const auto imported = value_or_throw(import_model({.folder = dir / "hf", .run_dir = dir / "back"}));
  const auto exported = value_or_throw(export_checkpoint({.checkpoint = imported.checkpoint, .folder = dir / "again"}));
  EXPECT_EQ(exported.architecture, "MistralForCausalLM");
  const auto json = nlohmann::json::parse(read_all(dir / "again/config.json"));
  EXPECT_EQ(json["model_type"], "mistral");
  EXPECT_TRUE(json["sliding_window"].is_null());
}

// A chat model: several end tokens, a template, generation settings. `tokenizer`: whether its tokenizer is included.
TEST(HuggingFace, what_generation_needs_comes_out_as_it_went_in) {
  const TemporaryFolder dir;
  Config config = gpt2();
  config.model.vocab = 257;
  config.data.tokenizer = "bytes";
  config = value_or_throw(resolve_config(config, 1));
  write_run(config, dir / "run");
  value_or_throw(export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"}));
  const std::map<std::string, std::string> files = {
      {"generation_config.json", R"({"eos_token_id": [256, 10], "temperature": 0.6})"},
      {"chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"},
      {"additional_chat_templates/tool.jinja", "{{ tools }}"}};
  std::filesystem::create_directory(dir / "hf/additional_chat_templates");
  for (const auto& [name, text] : files) write_all(dir / "hf/" + name, text);
  auto settings = nlohmann::json::parse(read_all(dir / "hf/tokenizer_config.json"));
  settings["bos_token"] = "a";
  settings["pad_token"] = "b";
  write_all(dir / "hf/tokenizer_config.json", settings.dump());
  for (const bool bytes : {true, false}) {
    SCOPED_TRACE(bytes ? "tokenizer bytes" : "tokenizer.json");
    edit_config(dir / "hf", [&](nlohmann::json& json) {
      json["bos_token_id"] = 97;
      json["eos_token_id"] = {256, 10};
      json["pad_token_id"] = 98;
      if (!bytes) json.erase("trireme");
    });
    const std::string run = dir / (bytes ? "bytes" : "json"), out = dir / (bytes ? "bytes_hf" : "json_hf");
    const auto imported = import_model({.folder = dir / "hf", .run_dir = run});
    ASSERT_EQ(message(imported), "");
    EXPECT_EQ(imported.value().kept.size(), files.size() + 1);
    const auto exported = export_checkpoint({.checkpoint = run + "/checkpoints/step_00000000", .folder = out});
    ASSERT_EQ(message(exported), "");
    for (const auto& [name, text] : files) EXPECT_EQ(read_all(out + "/" + name), text) << name;
    const auto json = nlohmann::json::parse(read_all(out + "/config.json"));
    EXPECT_EQ(json["bos_token_id"], 97);
    EXPECT_EQ(json["eos_token_id"], (std::vector<int>{256, 10}));
    EXPECT_EQ(json["pad_token_id"], 98);
    const auto written = nlohmann::json::parse(read_all(out + "/tokenizer_config.json"));
    EXPECT_EQ(written["bos_token"], "a");
    EXPECT_EQ(written["pad_token"], "b");
  }
  // Another tokenizer has its own end tokens.
  const auto changed = import_model(
      {.folder = dir / "hf", .run_dir = dir / "changed", .overrides = {"data.tokenizer=" + (dir / "bytes_hf")}});
  ASSERT_EQ(message(changed), "");
  value_or_throw(export_checkpoint({.checkpoint = dir / "changed/checkpoints/step_00000000", .folder = dir / "own"}));
  EXPECT_FALSE(std::filesystem::exists(dir / "own/generation_config.json"));
  EXPECT_EQ(nlohmann::json::parse(read_all(dir / "own/config.json"))["eos_token_id"], 256);
}

TEST(HuggingFace, neither_way_overwrites_what_is_there) {
  const TemporaryFolder dir;
  write_run(gpt2(), dir / "run");
  const ExportOptions options{.checkpoint = dir / "run/step_00000007", .folder = dir / "hf"};
  value_or_throw(export_checkpoint(options));
  EXPECT_NE(message(export_checkpoint(options)).find("already contains a model"), std::string::npos);
  value_or_throw(import_model({.folder = dir / "hf", .run_dir = dir / "back"}));
  EXPECT_NE(message(import_model({.folder = dir / "hf", .run_dir = dir / "back"})).find("already contains a run"),
            std::string::npos);
}

TEST(HuggingFace, bf16_is_rounded_and_half_the_size) {
  const TemporaryFolder dir;
  write_run(llama(), dir / "run");
  const auto summary = value_or_throw(
      export_checkpoint({.checkpoint = dir / "run/step_00000007", .folder = dir / "hf", .dtype = Dtype::kBF16}));
  const auto file = value_or_throw(SafetensorsFile::open(dir / "hf/model.safetensors"));
  int64_t elements = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.type, StoredType::kBf16);
    elements += entry.bytes() / 2;
  }
  EXPECT_EQ(summary.bytes, 2 * elements);
  bf16 second;
  std::memcpy(&second, file.data(*file.find("model.embed_tokens.weight")).data() + 2, 2);
  EXPECT_EQ(second.bits, bf16(2 * 0.37f).bits);
}

}  // namespace
}  // namespace tri::huggingface
