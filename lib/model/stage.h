// A stage: this pp rank's chunks of the model, from the embedding (first virtual stage) to the head and loss (last).
// The head runs inside the backward action of its microbatch, so logits are never kept between actions.
//
// Threads: call only from the training thread; all work is enqueued on the compute stream.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cross_entropy.h"
#include "lib/model/block.h"
#include "lib/model/fp8.h"
#include "lib/schedule/executor.h"

namespace tri {

// What a stage is connected to. All references outlive the stage.
struct StageContext {
  const Config& config;
  const Mesh& mesh;
  StageTensors tensors;
  const std::vector<std::vector<Parameter>>& parameters;  // [chunk][parameter]
  ParameterHooks& hooks;
  Stream& compute;
  AxisTransfers& tp;
  const OverlapSplits& splits;  // may change between runs of a plan
  float loss_scale = 1.0f;      // factor on the gradient of the summed loss: 1 / targets of a step
  CacheSize cache;              // as for the tensors
  GroupOnStream* cp = nullptr;  // if cp has several ranks
  // The ranks that divide the experts (parallel.ep), on the compute stream; null: one rank, or transfers that move
  // nothing.
  GroupOnStream* experts = nullptr;
  PeerWindows* expert_windows = nullptr;  // their memory, if parallel.ep_transfers is copies
  float token_share = 1.0f;               // 1 / tokens of a step, over which the routers' losses are means
};

// What the last virtual stage computes in a pass over cached sequences (cached_rows.h).
enum class CachedHead {
  kNone,
  kLogits,  // head().logits (R, Vl), the first rows
  kStats,   // cross_entropy_stats of the rows' targets, gathered over tp: head().stats as (tp, rows, 3)
};

class Stage final : public StageCompute {
 public:
  explicit Stage(StageContext context);

  // The purpose of the forward actions of the next run.
  enum class Mode {
    kTrain,     // saves activations for the backward pass
    kEvaluate,  // the last virtual stage adds its microbatch's loss
    kLogits,    // the last virtual stage writes its logits to head().logits and calls `on_logits`
    kCached,    // begin_cached()
  };
  void begin(Mode mode);
  // Sets the factor on the gradient of the summed loss; at first that of the context.
  void set_loss_scale(float scale) { loss_scale_ = scale; }
  // Sets the tokens of a step, of which the routers' losses are means; at first those of the context.
  void set_token_share(float share) { moe_.token_share = share; }
  // From the next forward action on, rows go to experts in turn, equally many to each rank of ep, or (kRouter, the
  // default) to those that the routers choose. Call it when the compute stream has no work.
  enum class ExpertChoice { kRouter, kInTurn };
  void set_expert_choice(ExpertChoice choice);
  // The next run, of one microbatch, is a pass over the first `rows` rows of inputs(), targets() and cached(), a
  // multiple of tp: it appends their keys and values to the cache. With a head it calls `on_logits`.
  void begin_cached(int64_t rows, CachedHead head);
  void set_on_logits(std::function<void(int microbatch)> on_logits) { on_logits_ = std::move(on_logits); }

  void forward(int chunk, int microbatch, Tensor input, Tensor output) override;
  // If the tensors have memory for weight gradients that are due, backward() leaves those of the layers' linears to
  // weight_gradients(); the head and the embedding belong to backward().
  void backward(int chunk, int microbatch, Tensor input, Tensor doutput, Tensor dinput) override;
  void weight_gradients(int chunk, int microbatch) override;

  Fp8Layers* fp8() { return fp8_.get(); }  // null: no layer's GEMMs are FP8
  const HeadTensors& head() const { return tensors_.head; }
  Tensor inputs() const { return tensors_.inputs; }                    // (M, B, T) i32; empty except on the first stage
  Tensor targets() const { return tensors_.targets; }                  // (M, B, T) i32; empty except on the last stage
  Tensor document_starts() const { return tensors_.document_starts; }  // (M, B, T) i32; empty without documents
  const MoeStatistics& experts() const { return tensors_.experts; }
  const CachedRowTensors& cached() const { return tensors_.cached; }

 private:
  struct Chunk {
    bool first = false, last = false;  // virtual stage
    std::vector<TransformerBlock> blocks;
    const Parameter* tokens = nullptr;     // first
    const Parameter* positions = nullptr;  // first, learned positions
    NormLayer final_norm;                  // last
    const Parameter* head = nullptr;       // last; may be the first one's `tokens`
    std::vector<int> free_slots;           // of tensors_.chunks[chunk]
    std::vector<int> slot_of;              // [microbatch]
    std::vector<int> free_due, due_of;     // the same of tensors_.due[chunk]
  };

  // Takes a free slot for a microbatch; gives it back.
  static int take_slot(std::vector<int>& free, std::vector<int>& slot_of, int microbatch);
  static void free_slot(std::vector<int>& free, std::vector<int>& slot_of, int microbatch);
  // Makes the documents of a microbatch those of the following layers, and looks up their positions.
  void use_documents(int microbatch);
  // The context of the current run's forward actions.
  const LayerContext& forward_context() const { return cached_ctx_ ? *cached_ctx_ : ctx_; }
  // Rounded to the embeddings' type, as transformers does.
  float embedding_scale() const {
    const double scale = ctx_.config.model.embedding_scale;
    const float exact = scale > 0 ? static_cast<float>(scale) : 1.0f;
    return ctx_.dims.dtype == Dtype::kBF16 ? static_cast<float>(bf16(exact)) : exact;
  }
  // `tokens` (R): those of the microbatch.
  void embed(const LayerContext& ctx, const Chunk& chunk, Tensor tokens, Tensor out);
  void add_positions(const LayerContext& ctx, const Parameter& positions, Tensor out);
  void embed_backward(const Chunk& chunk, int microbatch);
  // Computes the logits of final-norm rows `inp` (Rl, C); the gathered norm stays in work.normed.
  void head_forward(const LayerContext& ctx, const Chunk& chunk, Tensor inp);
  // Computes this rank's statistics of the loss and gathers them over tp. `stats` (tp, R, 3).
  void gather_stats(const LayerContext& ctx, Tensor stats, Tensor targets);
  void loss(int microbatch, LogitGradient gradient);
  // Computes the gradient of the local rows, in work.dstream, from that of the logits.
  void head_backward(const Chunk& chunk, Tensor inp);

  StageTensors tensors_;
  const std::unique_ptr<Fp8Layers> fp8_;
  MoeRun moe_;  // of the layers with experts
  LayerContext ctx_;
  const Axis ep_;  // this rank among those that divide the experts
  const int vocab_;
  const int first_token_;  // of this tp rank's share of the vocabulary
  float loss_scale_;
  Mode mode_ = Mode::kTrain;
  // In passes over cached sequences: views of the first rows, the context with them, and the head.
  LayerWorkspace cached_work_;
  std::optional<LayerContext> cached_ctx_;
  CachedHead cached_head_ = CachedHead::kNone;
  std::function<void(int)> on_logits_;
  std::vector<Chunk> chunks_;
};

}  // namespace tri
