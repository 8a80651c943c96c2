// Generating and scoring with cached keys and values, compared with passes over the whole text.
#include "lib/infer/generation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lib/infer/context.h"
#include "lib/infer/scoring.h"
#include "tests/train/one_rank.h"

namespace tri::test {
namespace {

// The weights of a trained model in an engine with a cache.
class Cached {
 public:
  Cached(OneRank& trained, const CacheSize& cache)
      : config_(for_inference(trained.config)),
        device_(make_cpu_device()),
        arena_(*device_, rank_bytes(config_, mesh_, *device_, EngineKind::kInference, cache)),
        engine_({.config = config_, .mesh = mesh_, .device = *device_, .arena = arena_}, EngineKind::kInference, cache),
        model(engine_, cache) {
    trained.trainer->runtime().synchronize();
    const auto& to = engine_.parameters().front();
    for (size_t i = 0; i < to.size(); ++i)
      std::memcpy(to[i].weight.data, trained.parameters()[i].weight.data, static_cast<size_t>(to[i].weight.bytes()));
  }

 private:
  static Config for_inference(Config config) {
    config.data.micro_batch = config.data.global_batch = 1;
    config.parallel.recompute = Recompute::kFull;
    return config;
  }

  const Config config_;
  const Mesh mesh_ = make_mesh(0, {});
  std::unique_ptr<Device> device_;
  Arena arena_;
  Engine engine_;

 public:
  TextModel model;
};

std::map<std::string, Config> models() {
  Config gpt = tiny_config();
  gpt.model.seq_len = 24;
  gpt.model.vocab = 300;  // more than one block of the vocabulary
  Config llama = gpt;
  llama.model.norm = Norm::kRmsNorm;
  llama.model.activation = Activation::kSwiglu;
  llama.model.position = Position::kRope;
  llama.model.kv_heads = 2;
  llama.model.tie_embeddings = false;
  llama.model.bias = false;
  std::map<std::string, Config> all{{"gpt", gpt}, {"llama", llama}};
  all["parallel block"] = gpt;
  all["parallel block"].model.block = Block::kParallel;
  all["neox"] = gpt;
  all["neox"].model.block = Block::kParallel;
  all["neox"].model.parallel_norms = 2;
  all["neox"].model.activation = Activation::kGeluErf;
  all["neox"].model.position = Position::kRope;
  all["neox"].model.head_dim = 4;
  all["neox"].model.rope_fraction = 0.5;
  all["window"] = llama;
  all["window"].model.window = 5;
  all["olmo2"] = llama;
  all["olmo2"].model.qk_norm = QkNorm::kFull;
  all["olmo2"].model.norm_position = NormPosition::kPost;
  all["qwen3"] = llama;
  all["qwen3"].model.qk_norm = QkNorm::kHead;
  all["qwen3"].model.head_dim = 6;
  all["qwen3"].model.kv_heads = 1;
  all["gemma"] = llama;
  all["gemma"].model.layers = 4;
  all["gemma"].model.activation = Activation::kGeglu;
  all["gemma"].model.norm_position = NormPosition::kBoth;
  all["gemma"].model.norm_offset = 1;
  all["gemma"].model.window = 5;
  all["gemma"].model.layer_pattern = {LayerAttention::kWindow, LayerAttention::kFull};
  all["gemma"].model.rope_theta_local = 100;
  all["gemma"].model.attention_scale = 0.9;
  all["gemma"].model.attention_softcap = 1;
  all["gemma"].model.logit_softcap = 2;
  all["gemma"].model.embedding_scale = 2;
  all["yarn"] = llama;
  all["yarn"].model.rope_scaling = RopeScaling::kYarn;
  all["yarn"].model.rope_factor = 4;
  all["yarn"].model.rope_original_seq_len = 6;
  all["llama3"] = llama;
  all["llama3"].model.rope_scaling = RopeScaling::kLlama3;
  all["llama3"].model.rope_factor = 8;
  all["llama3"].model.rope_original_seq_len = 8;
  return all;
}

std::vector<int32_t> some_tokens(size_t count, uint64_t seed, int vocab) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random_u64(seed, i) % static_cast<uint64_t>(vocab)));
  return tokens;
}

// Returns the generated tokens of all requests.
std::vector<std::vector<int32_t>> generate(TextModel& model, std::span<const TextRequest> requests,
                                           GenerationRules rules) {
  std::vector<std::vector<int32_t>> texts(requests.size());
  std::vector<int> finished(requests.size());
  rules.on_finish = [&](size_t request, std::span<const int32_t> generated, Finish) {
    texts[request].assign(generated.begin(), generated.end());
    ++finished[request];
  };
  generate_texts(model, requests, rules);
  EXPECT_EQ(finished, std::vector<int>(requests.size(), 1));
  return texts;
}

// Prompts of one token, within the context, as long as it and longer; texts that end before and after the context
// does. More prompts than sequences, passes of fewer rows than a prompt.
TEST(Generation, texts_are_those_without_a_cache) {
  for (const auto& [name, config] : models()) {
    SCOPED_TRACE(name);
    OneRank rank(config);
    for (int step = 0; step < 3; ++step) rank.step(step);
    Cached cached(rank, {.sequences = 3, .rows = 7});
    for (const double temperature : {0.0, 1.0}) {
      std::vector<TextRequest> requests;
      for (const auto& [prompt, tokens] :
           std::vector<std::pair<size_t, int>>{{1, 50}, {5, 3}, {24, 30}, {9, 70}, {23, 1}, {40, 28}, {2, 23}, {25, 1}})
        requests.push_back({some_tokens(prompt, prompt, config.model.vocab), tokens, 100 + prompt});
      const GenerationRules rules{.sampling = {.temperature = temperature}, .vocab = config.model.vocab};
      const auto texts = generate(cached.model, requests, rules);
      for (size_t i = 0; i < requests.size(); ++i) {
        auto expected = rank.evaluator->generate(requests[i].prompt, {.tokens = requests[i].tokens,
                                                                      .sampling = rules.sampling,
                                                                      .key = requests[i].key,
                                                                      .vocab = config.model.vocab});
        expected.erase(expected.begin(), expected.begin() + std::ssize(requests[i].prompt));
        EXPECT_EQ(texts[i], expected) << "prompt of " << requests[i].prompt.size() << ", temperature " << temperature;
      }
    }
  }
}

TEST(Generation, the_model_and_the_caller_end_texts) {
  OneRank rank(models().at("gpt"));
  Cached cached(rank, {.sequences = 2, .rows = 4});
  const std::vector<TextRequest> requests{{{1, 2}, 10, 1}, {{3}, 10, 2}};
  GenerationRules rules{.sampling = {.temperature = 1, .top_k = 0}, .vocab = 300};
  const auto all = generate(cached.model, requests, rules);
  rules.end = all[0][4];
  rules.on_token = [](size_t request, std::span<const int32_t> generated) {
    return request == 1 && generated.size() == 3;
  };
  std::vector<Finish> finishes(2);
  const auto begin_of = [](const std::vector<int32_t>& tokens, size_t count) {
    return std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<int64_t>(count));
  };
  const size_t end = static_cast<size_t>(std::find(all[0].begin(), all[0].end(), rules.end) - all[0].begin());
  rules.on_finish = [&](size_t request, std::span<const int32_t> generated, Finish finish) {
    finishes[request] = finish;
    EXPECT_EQ(std::vector(generated.begin(), generated.end()), begin_of(all[request], request == 0 ? end : 3));
  };
  generate_texts(cached.model, requests, rules);
  EXPECT_EQ(finishes, (std::vector{Finish::kEnd, Finish::kStop}));
}

// Counts the rows that pass through the model: without a cache they would grow with the square of the tokens.
TEST(Generation, every_token_passes_through_the_model_once_within_the_context) {
  Config config = models().at("llama");
  config.model.seq_len = 512;
  OneRank rank(config);
  Cached cached(rank, {.sequences = 1, .rows = 64});
  int passes = 0;
  const std::vector<TextRequest> requests{{some_tokens(100, 1, 300), 300, 1}};
  generate_texts(cached.model, requests, {.vocab = 300, .on_pass = [&] { ++passes; }});
  EXPECT_EQ(passes, 2 + 300);  // 99 tokens of the prompt in passes of 64
}

TEST(Context, the_older_half_is_dropped_when_it_is_full) {
  EXPECT_EQ(context_begin(3, 8, 8), 0u);
  EXPECT_EQ(context_begin(3, 9, 8), 4u);
  EXPECT_EQ(context_begin(3, 12, 8), 4u);
  EXPECT_EQ(context_begin(3, 13, 8), 8u);
  EXPECT_EQ(context_begin(20, 20, 8), 12u);
  EXPECT_EQ(context_begin(20, 21, 8), 16u);
  for (size_t length = 1; length < 5; ++length) EXPECT_EQ(context_begin(1, length, 1), length - 1);
}

TEST(Scoring, windows_score_every_token_once) {
  using Windows = std::vector<ScoringWindow>;
  EXPECT_EQ(scoring_windows(9, 1, 8), (Windows{{0, 8, 0}}));
  EXPECT_EQ(scoring_windows(9, 7, 8), (Windows{{0, 8, 6}}));
  EXPECT_EQ(scoring_windows(20, 17, 8), (Windows{{11, 19, 16}}));
  EXPECT_EQ(scoring_windows(14, 1, 8), (Windows{{0, 8, 0}, {4, 12, 8}, {8, 13, 12}}));
  for (size_t context = 1; context < 9; ++context)
    for (size_t tokens = 2; tokens < 40; ++tokens)
      for (size_t first = 1; first < tokens; ++first) {
        size_t next = first - 1;
        for (const ScoringWindow& window : scoring_windows(tokens, first, context)) {
          EXPECT_EQ(window.scored, next);
          EXPECT_LE(window.begin, window.scored);
          EXPECT_LE(window.end - window.begin, context);
          next = window.end;
        }
        EXPECT_EQ(next, tokens - 1);
      }
}

TEST(Scoring, scores_are_the_log_softmax_of_the_logits) {
  for (const auto& [name, config] : models()) {
    SCOPED_TRACE(name);
    OneRank rank(config);
    for (int step = 0; step < 3; ++step) rank.step(step);
    Cached cached(rank, {.sequences = 3, .rows = 10});
    std::vector<ScoredText> texts;
    for (const auto& [tokens, first] :
         std::vector<std::pair<size_t, size_t>>{{2, 1}, {9, 4}, {25, 1}, {60, 1}, {3, 2}, {50, 40}, {4, 1}})
      texts.push_back({some_tokens(tokens, tokens, config.model.vocab), first});
    // A greedy continuation.
    texts.push_back(
        {rank.evaluator->generate({7, 8, 9}, {.tokens = 6, .sampling = {.temperature = 0}, .vocab = 300}), 3});
    int64_t counted = 0;
    const auto scores = score_texts(cached.model, texts, [&](int64_t tokens) { counted += tokens; });
    ASSERT_EQ(scores.size(), texts.size());
    int64_t scored_tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto& [tokens, first] = texts[i];
      double sum = 0;
      bool greedy = true;
      for (const ScoringWindow& window : scoring_windows(tokens.size(), first, 24))
        for (size_t at = window.scored; at < window.end; ++at) {
          const auto logits =
              rank.evaluator->next_token_logits(std::span(tokens).subspan(window.begin, at + 1 - window.begin));
          double total = 0;
          for (const float logit : logits) total += std::exp(double{logit});
          sum += logits[static_cast<size_t>(tokens[at + 1])] - std::log(total);
          greedy &= sample_token(logits, {.temperature = 0}, 0) == tokens[at + 1];
        }
      EXPECT_NEAR(scores[i].logprob, sum, 1e-4 * -sum) << "text " << i;
      EXPECT_EQ(scores[i].tokens, std::ssize(tokens) - static_cast<int64_t>(first));
      EXPECT_EQ(scores[i].is_greedy, greedy) << "text " << i;
      scored_tokens += scores[i].tokens;
    }
    EXPECT_TRUE(scores.back().is_greedy);
    EXPECT_FALSE(scores[3].is_greedy);
    EXPECT_EQ(counted, scored_tokens);
  }
}

}  // namespace
}  // namespace tri::test
