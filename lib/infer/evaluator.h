// What a model does without a backward pass: losses of batches, logits, text. Shared by the training loop's evaluations
// and samples and by `trireme eval` and `trireme generate`. All calls are collective over the mesh.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "io/tokens/tokenizer.h"
#include "lib/data/loader.h"
#include "lib/engine/engine.h"
#include "lib/infer/sampling.h"

namespace tri {

struct Evaluation {
  double loss = 0;  // mean, nats a token
  int64_t samples = 0, tokens = 0;
  double bytes = 0;  // of text that the tokens stand for; world rank 0, where a tokenizer was given

  double perplexity() const;
  double perplexity_per_byte() const;
};

struct Generation {
  int tokens = 0;  // at most
  Sampling sampling;
  uint64_t key = 0;   // token i is sampled with the i-th number of this stream
  int vocab = 0;      // only ids below are sampled
  int32_t stop = -1;  // ends the text; -1: nothing does
  std::function<void(std::span<const int32_t> text)> on_token;  // optional, on every rank: all there is so far
};

// What an evaluation covers: the first `samples` of a split, each once, in `batches` global batches. The last batch may
// hold fewer samples than the others; what fills it up has no targets. 0 batches: nothing to evaluate.
struct EvaluationSize {
  int64_t batches = 0, samples = 0;
};
// At most `most` batches of a split that has `available` samples.
EvaluationSize evaluation_size(const Config& config, int64_t available, int64_t most);

class Evaluator {
 public:
  // On an engine that outlives the evaluator. Owns host memory alone.
  explicit Evaluator(Engine& engine);
  // Waits for the work that reads this memory.
  ~Evaluator();

  // Mean loss over one full batch, tokens (M, B, T) of this dp rank.
  double evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets);
  // Mean loss over the tokens of size.samples samples; at least one batch. Each call of `next` returns the next batch's
  // tokens, valid until the following call: (M, B, T) of this dp rank, what its stage takes of them, best in host
  // memory of the device's kind. `tokenizer`: null where its tokens stand for no known number of bytes.
  Evaluation evaluate(const EvaluationSize& size, const std::function<StepTokens()>& next, const Tokenizer* tokenizer,
                      const std::function<void()>& on_batch = nullptr);

  // Logits of the token after `tokens` (1 <= size <= T), on the ranks of the last stage; empty elsewhere.
  std::vector<float> next_token_logits(std::span<const int32_t> tokens);
  // `text` (not empty) and what the model says next, on all ranks. Beyond T tokens the model sees the last T.
  std::vector<int32_t> generate(std::vector<int32_t> text, const Generation& generation);

 private:
  double loss_of_batch();  // of the tokens that were loaded
  void load_copies(std::span<const int32_t> inputs, std::span<const int32_t> targets);  // tokens may go at once
  int32_t broadcast_token(int32_t token, int root);  // the token that world rank `root` holds, on all ranks

  Engine& engine_;
  const Plan batch_plan_, single_plan_;
  HostBuffer<int32_t> h_inputs_, h_targets_;  // of load_copies()
};

}  // namespace tri
