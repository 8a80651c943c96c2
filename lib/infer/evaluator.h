// Uses of a model without a backward pass: losses of batches, logits, text. The training loop's evaluations and
// samples and `trireme eval` share it. It needs no memory beyond a training run's: for each token of a text it
// processes the whole text (generation.h keeps a cache instead). All calls are collective over the mesh, and come from
// the training thread.
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
  double loss = 0;                  // mean over the targets, nats; NaN if there are none
  int64_t samples = 0, tokens = 0;  // tokens: the targets, without masked ones, of all ranks
  double bytes = 0;                 // bytes of the tokens' text; on world rank 0, if a tokenizer was given

  double perplexity() const;
  double perplexity_per_byte() const;
};

struct Generation {
  int tokens = 0;  // maximum
  Sampling sampling;
  uint64_t key = 0;   // token i is sampled with the i-th number of this stream
  int vocab = 0;      // only smaller ids are sampled
  int32_t stop = -1;  // token that ends the text; -1: none
  std::function<void(std::span<const int32_t> text)> on_token;  // optional, on every rank: all text so far
};

// The extent of an evaluation: the first `samples` of a split, each once, in `batches` global batches. The last batch
// may hold fewer samples than the others: it ends with the last microbatch that has some, whose padding has no targets.
// 0 batches: nothing to evaluate.
struct EvaluationSize {
  int64_t batches = 0, samples = 0;
};
// Returns at most `most` batches of a split that has `available` samples.
EvaluationSize evaluation_size(const Config& config, int64_t available, int64_t most);

class Evaluator {
 public:
  // `engine` outlives the evaluator, which owns only host memory.
  explicit Evaluator(Engine& engine);
  // Waits for the work that reads this memory.
  ~Evaluator();

  // Returns the mean loss over one full batch, tokens (M, B, T) of this dp rank, none of whose targets is masked.
  // `document_starts` as in BatchInputs::load.
  double evaluate(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                  std::span<const int32_t> document_starts = {});
  // Returns the mean loss over the targets, other than kNoTarget, of size.samples samples; needs at least one batch.
  // There may be no such target: then result.tokens is 0. Each call of `next` returns the next batch's tokens,
  // (M, B, T) of this dp rank, valid until the following call; only what its stage needs, ideally in host memory of the
  // device's kind. Of the last batch, M may be smaller (BatchShape::for_samples). `tokenizer`: null if its tokens have
  // no known number of bytes.
  Evaluation evaluate(const EvaluationSize& size, const std::function<StepTokens()>& next, const Tokenizer* tokenizer,
                      const std::function<void()>& on_batch = nullptr);

  // Returns the logits of the token after `tokens` (1 <= size <= T) on the ranks of the last stage; empty elsewhere.
  // With context parallelism they are those of another token on the cp ranks that do not hold the last of `tokens`.
  std::vector<float> next_token_logits(std::span<const int32_t> tokens);
  // Returns `text` (not empty) and the model's continuation, on all ranks. context.h says what the model sees of more
  // than T tokens.
  std::vector<int32_t> generate(std::vector<int32_t> text, const Generation& generation);

 private:
  // Of the loaded tokens of the microbatches of `plan`: the sum, divided by the tokens of a full batch.
  double loss_of_batch(const Plan& plan);
  // The tokens may be released at once.
  void load_copies(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                   std::span<const int32_t> document_starts = {});
  int32_t broadcast_token(int32_t token, int root);  // returns the token of world rank `root` on all ranks

  Engine& engine_;
  const Plan batch_plan_, single_plan_;
  HostBuffer<int32_t> h_inputs_, h_targets_, h_starts_;  // for load_copies()
};

}  // namespace tri
