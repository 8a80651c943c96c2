// A model that appends tokens to cached sequences (lib/model/cached_rows.h), and computes what follows them. Time and
// memory are proportional to the tokens of a pass, except attention, which reads the cache.
//
// All calls are collective over the mesh, with the same arguments on all ranks. Call only from the training thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/no_target.h"
#include "lib/engine/engine.h"

namespace tri {

// A token of a cached sequence. Positions of one sequence are appended in order; position 0 begins it again.
struct TextRow {
  int sequence = 0;  // 0 <= sequence < sequences()
  int position = 0;  // 0 <= position < context()
  int32_t token = 0;
  int32_t target = kNoTarget;  // the token that follows, to be scored
};

struct TokenScore {
  double logprob = 0;      // log-probability of the target
  bool is_greedy = false;  // no token is more probable
};

class TextModel {
 public:
  // `engine` has a cache of this size, and outlives the model.
  TextModel(Engine& engine, const CacheSize& size);
  ~TextModel();

  int sequences() const { return size_.sequences; }
  int64_t rows() const { return size_.rows; }  // of a pass, at most
  int context() const { return engine_.config().model.seq_len; }
  Job* job() const { return engine_.job(); }
  bool is_root() const { return engine_.mesh().world_rank == root_; }

  // Appends the rows, at most rows().
  void append(std::span<const TextRow> rows);
  // Appends the rows, at most one per sequence. Returns the logits of the token after each, (rows, vocabulary), on the
  // ranks of the last stage; empty elsewhere.
  std::vector<float> logits(std::span<const TextRow> rows);
  // Appends the rows, at most rows(), and scores their targets. Returns a score per row on the root; empty elsewhere.
  std::vector<TokenScore> score(std::span<const TextRow> rows);
  // Returns the root's tokens, at most one per sequence, on all ranks.
  std::vector<int32_t> broadcast(std::vector<int32_t> tokens);

 private:
  void run(std::span<const TextRow> rows, CachedHead head, const std::function<void(int64_t rows)>& on_head);

  Engine& engine_;
  const CacheSize size_;
  const int tp_, root_;  // the root: the first rank of the last stage
  const Plan plan_;
  HostBuffer<int32_t> h_tokens_, h_targets_, h_sequences_, h_positions_;  // of a pass
};

}  // namespace tri
