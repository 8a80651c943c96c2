#include "lib/model/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/ops.h"
#include "lib/model/layer_division.h"

namespace tri {
namespace {

// The head's GEMM is long compared with its transfers: the GEMM on the local rows hides the gather, and the weight
// gradient hides the reduce.
constexpr OverlapSplit kHeadForward{.num_splits = 2}, kHeadBackward{.num_splits = 1};

// Calls f(rows, rows of the table, first row) for rows [first_row, ...) of a microbatch and the rows of `table` (the
// length of a sample, C) at their positions: once, or with context parallelism for each run of consecutive positions.
template <class F>
void for_positions(const StageDims& dims, int64_t first_row, Tensor rows, Tensor table, F f) {
  if (dims.chunks.cp.size == 1) return f(rows, table, first_row);
  const int64_t chunk = dims.chunks.chunk_len(), end = first_row + rows[0];
  for (int64_t row = first_row; row < end;) {
    const int64_t local = row % dims.T, in_chunk = local % chunk, count = std::min(chunk - in_chunk, end - row);
    const int64_t position = dims.chunks.starts()[static_cast<size_t>(local / chunk)] + in_chunk;
    f(rows.rows(row - first_row, count), table.rows(position, count), 0);
    row += count;
  }
}

}  // namespace

Stage::Stage(StageContext context)
    : tensors_(std::move(context.tensors)),
      fp8_(any_fp8_layer(context.config)
               ? std::make_unique<Fp8Layers>(context.config, context.mesh, tensors_.fp8, context.compute,
                                             context.tp.collectives(), context.hooks)
               : nullptr),
      moe_{.ep = context.experts,
           .windows = context.expert_windows,
           .statistics = tensors_.experts,
           .token_share = context.token_share},
      ctx_{.config = context.config,
           .dims = stage_dims(context.config, context.mesh, context.cache),
           .work = tensors_.work,
           .compute = context.compute,
           .tp = context.tp,
           .splits = context.splits,
           .hooks = context.hooks,
           .fp8 = fp8_.get(),
           .cp = context.cp,
           .moe = &moe_},
      ep_(context.mesh.axis("ep")),
      vocab_(context.config.model.vocab),
      first_token_(context.mesh.axis("tp").rank * ctx_.dims.Vl),
      loss_scale_(context.loss_scale) {
  const Config& config = context.config;
  const Mesh& mesh = context.mesh;
  TRI_REQUIRE((context.cp != nullptr) == (mesh.axis("cp").size > 1), "a stage of {} cp ranks {} a group of them",
              mesh.axis("cp").size, context.cp == nullptr ? "without" : "with");
  const auto& parameters = context.parameters;
  for (int c = 0; c < config.parallel.chunks; ++c) {
    Chunk chunk;
    chunk.first = is_first_virtual_stage(mesh.axis("pp"), c);
    chunk.last = is_last_virtual_stage(mesh.axis("pp"), c, config.parallel.chunks);
    const LayerRange layers = layers_of(config, mesh.axis("pp"), c);
    for (int i = 0; i < layers.count; ++i) chunk.blocks.emplace_back(layers.first + i, parameters[c], config);
    if (chunk.first) {
      chunk.tokens = find_weight(parameters[c], modules::kTokens);
      if (config.model.position == Position::kLearned)
        chunk.positions = find_weight(parameters[c], modules::kPositions);
    }
    if (chunk.last) {
      chunk.final_norm = NormLayer::bind(parameters[c], modules::kFinalNorm);
      const bool shares_table = config.model.tie_embeddings && mesh.axis("pp").end() == 0;  // with chunk 0
      chunk.head = find_weight(parameters[shares_table ? 0 : c],
                               config.model.tie_embeddings ? modules::kTokens : modules::kHead);
    }
    chunks_.push_back(std::move(chunk));
  }
}

void Stage::begin(Mode mode) {
  mode_ = mode;
  cached_ctx_.reset();
  if (mode == Mode::kTrain && !tensors_.experts.totals.empty()) ctx_.compute.zero(tensors_.experts.totals);
  if (!tensors_.experts.shortage.empty()) ctx_.compute.zero(tensors_.experts.shortage);
  if (fp8_) fp8_->begin(mode == Mode::kTrain ? Fp8Layers::Run::kStep : Fp8Layers::Run::kForward);
  const auto free_all = [](std::vector<int>& free, std::vector<int>& slot_of, size_t slots) {
    slot_of.clear();
    free.clear();
    for (int slot = static_cast<int>(slots) - 1; slot >= 0; --slot) free.push_back(slot);
  };
  for (size_t c = 0; c < chunks_.size(); ++c) {
    free_all(chunks_[c].free_slots, chunks_[c].slot_of, tensors_.chunks[c].size());
    if (!tensors_.due.empty()) free_all(chunks_[c].free_due, chunks_[c].due_of, tensors_.due[c].size());
  }
}

void Stage::set_expert_choice(ExpertChoice choice) {
  moe_.experts.clear();
  const Config& config = ctx_.config;
  if (choice == ExpertChoice::kRouter || config.model.experts == 0) return;
  moe_.experts = experts_in_turn({.experts = config.model.experts, .per_token = config.model.experts_per_token},
                                 ctx_.dims.Rl, ep_);
}

int Stage::take_slot(std::vector<int>& free, std::vector<int>& slot_of, int microbatch) {
  const int slot = free.back();
  free.pop_back();
  if (static_cast<int>(slot_of.size()) <= microbatch) slot_of.resize(static_cast<size_t>(microbatch) + 1, -1);
  slot_of[static_cast<size_t>(microbatch)] = slot;
  return slot;
}

void Stage::free_slot(std::vector<int>& free, std::vector<int>& slot_of, int microbatch) {
  free.push_back(std::exchange(slot_of[static_cast<size_t>(microbatch)], -1));
}

void Stage::begin_cached(int64_t rows, CachedHead head) {
  begin(Mode::kCached);
  const int tp = ctx_.dims.tp;
  const CachedRowTensors& cached = tensors_.cached;
  StageDims dims = ctx_.dims;
  dims.R = rows;
  dims.Rl = rows / tp;
  cached_work_ = first_rows(tensors_.work, cached, rows, tp);
  cached_head_ = head;
  cached_ctx_.emplace(LayerContext{.config = ctx_.config,
                                   .dims = dims,
                                   .work = cached_work_,
                                   .compute = ctx_.compute,
                                   .tp = ctx_.tp,
                                   .splits = ctx_.splits,
                                   .hooks = ctx_.hooks,
                                   .moe = &moe_});
  look_up_angles(cached_work_.attention.rope, tensors_.work.attention.rope, cached_work_.attention.positions,
                 ctx_.compute);
}

// All work of a microbatch is enqueued on one stream, so the rows of its positions may be overwritten for the next one.
void Stage::use_documents(int microbatch) {
  const Tensor all = tensors_.document_starts;
  if (all.empty()) return;
  const SequenceChunks& chunks = ctx_.dims.chunks;
  ctx_.document_starts = all.rows(microbatch, 1).view({ctx_.dims.B, chunks.seq_len});
  const AttentionWorkspace& w = ctx_.work.attention;
  if (w.positions.empty()) return;
  const auto [first, second] = chunks.starts();
  row_positions({.out = w.positions,
                 .document_starts = ctx_.document_starts,
                 .chunk_start = {static_cast<int>(first), static_cast<int>(second)}},
                ctx_.compute);
  look_up_angles(w.document_rope, w.rope, w.positions, ctx_.compute);
}

void Stage::forward(int chunk_index, int microbatch, Tensor input, Tensor output) {
  Chunk& chunk = chunks_[static_cast<size_t>(chunk_index)];
  TRI_REQUIRE(!chunk.free_slots.empty(), "chunk {} has no free slot for microbatch {}", chunk_index, microbatch);
  const int slot =
      mode_ == Mode::kTrain ? take_slot(chunk.free_slots, chunk.slot_of, microbatch) : chunk.free_slots.back();
  MicrobatchTensors& kept = tensors_.chunks[static_cast<size_t>(chunk_index)][static_cast<size_t>(slot)];

  use_documents(microbatch);
  moe_.counts = mode_ == Mode::kTrain;
  const LayerContext& ctx = forward_context();
  const bool cached = mode_ == Mode::kCached;
  const auto rows_of_pass = [&](Tensor rows) { return cached && !rows.empty() ? rows.rows(0, ctx.dims.Rl) : rows; };
  input = rows_of_pass(input);
  output = rows_of_pass(output);
  if (chunk.first) embed(ctx, chunk, tensors_.inputs.rows(microbatch, 1).flat(0, ctx.dims.R), input);
  ResidualStream stream{.inp = input};
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    LayerTensors& t = kept.layers[i];
    const LayerSpec& layer = chunk.blocks[i].spec();
    if (ctx_.config.parallel.recompute == Recompute::kFull) {
      LayerTensors shared = recomputed_tensors(ctx.work, layer);  // only the layer's input is saved
      shared.input = rows_of_pass(t.input);
      if (!t.moe.all_counts.empty()) shared.moe.all_counts = t.moe.all_counts;
      if (cached) shared.attention.cache = tensors_.cached.layers[static_cast<size_t>(chunk_index)][i];
      stream = chunk.blocks[i].forward(ctx, stream, shared);
      if (!cached) t.input = shared.input;
    } else {
      LayerTensors with_shared = with_workspace(t, ctx_.work, layer);
      stream = chunk.blocks[i].forward(ctx_, stream, with_shared);
      t.input = with_shared.input;
    }
  }
  const Tensor end = chunk.last ? rows_of_pass(kept.output) : output;
  residual_add({.out = end, .inp = stream.inp, .add = stream.add, .add_bias = stream.add_bias}, ctx.compute);
  if (!chunk.last || mode_ == Mode::kTrain || (cached && cached_head_ == CachedHead::kNone)) return;
  head_forward(ctx, chunk, end);
  if (mode_ == Mode::kEvaluate) return loss(microbatch, LogitGradient::kNone);
  if (cached && cached_head_ == CachedHead::kStats)
    gather_stats(ctx, tensors_.head.stats.flat(0, 3 * ctx.dims.tp * ctx.dims.R).view({ctx.dims.tp, ctx.dims.R, 3}),
                 tensors_.targets.flat(0, ctx.dims.R));
  if (on_logits_) on_logits_(microbatch);
}

void Stage::backward(int chunk_index, int microbatch, Tensor input, Tensor doutput, Tensor dinput) {
  Chunk& chunk = chunks_[static_cast<size_t>(chunk_index)];
  const int slot = chunk.slot_of[static_cast<size_t>(microbatch)];
  TRI_REQUIRE(slot >= 0, "backward of microbatch {} of chunk {} was called before its forward", microbatch,
              chunk_index);
  MicrobatchTensors& kept = tensors_.chunks[static_cast<size_t>(chunk_index)][static_cast<size_t>(slot)];
  kept.layers.front().input = input;  // the stage input of this microbatch

  moe_.counts = false;  // the forward pass has counted
  use_documents(microbatch);
  const Tensor dstream = ctx_.local_rows(ctx_.work.dstream);
  if (chunk.last) {
    head_forward(ctx_, chunk, kept.output);
    loss(microbatch, LogitGradient::kInPlace);
    head_backward(chunk, kept.output);
  } else {
    ctx_.compute.copy(dstream.data, doutput.data, doutput.bytes());
  }
  const bool splits = !tensors_.due.empty();
  TRI_REQUIRE(!splits || !chunk.free_due.empty(), "chunk {} has no free slot for the weight gradients of microbatch {}",
              chunk_index, microbatch);
  const int due = splits ? take_slot(chunk.free_due, chunk.due_of, microbatch) : -1;
  TransformerBlock::WeightGradient deferred;
  for (size_t i = chunk.blocks.size(); i-- > 0;) {
    const bool leaves_stage = i == 0 && !chunk.first;
    const Tensor gradient = leaves_stage ? dinput : dstream;
    if (splits)
      chunk.blocks[i].backward_input(ctx_, kept.layers[i], gradient,
                                     tensors_.due[static_cast<size_t>(chunk_index)][static_cast<size_t>(due)][i]);
    else
      chunk.blocks[i].backward(ctx_, kept.layers[i], gradient, deferred,
                               i == 0 ? TransformerBlock::QkvWeight::kEnqueue : TransformerBlock::QkvWeight::kDefer);
  }
  if (chunk.first) embed_backward(chunk, microbatch);
  if (!splits) free_slot(chunk.free_slots, chunk.slot_of, microbatch);
}

void Stage::weight_gradients(int chunk_index, int microbatch) {
  Chunk& chunk = chunks_[static_cast<size_t>(chunk_index)];
  const auto c = static_cast<size_t>(chunk_index), m = static_cast<size_t>(microbatch);
  TRI_REQUIRE(m < chunk.due_of.size() && chunk.due_of[m] >= 0,
              "weight gradients of microbatch {} of chunk {} were due before its backward", microbatch, chunk_index);
  const MicrobatchTensors& kept = tensors_.chunks[c][static_cast<size_t>(chunk.slot_of[m])];
  const std::vector<DueLayer>& due = tensors_.due[c][static_cast<size_t>(chunk.due_of[m])];
  for (size_t i = chunk.blocks.size(); i-- > 0;) chunk.blocks[i].weight_gradients(ctx_, kept.layers[i], due[i]);
  free_slot(chunk.free_due, chunk.due_of, microbatch);
  free_slot(chunk.free_slots, chunk.slot_of, microbatch);
}

void Stage::embed(const LayerContext& ctx, const Chunk& chunk, Tensor tokens, Tensor out) {
  const Tensor weight = ctx.use(*chunk.tokens);
  const auto embed_rows = [&](Tensor rows, int64_t first) {
    embedding_forward({.out = rows,
                       .tokens = tokens.flat(first, rows[0]),
                       .weight = weight,
                       .first_token = first_token_,
                       .scale = embedding_scale()},
                      ctx.compute);
  };
  if (ctx.tp.size() == 1) {
    embed_rows(out, 0);
  } else {
    // A token's row is in one tp rank's share of the vocabulary, and zero on the others.
    for (const RowBlock& block : ctx.begin_reduce(ctx.work.partial, {})) {
      embed_rows(block.out, block.first);
      ctx.send(block);
    }
    sum_parts({.out = out, .parts = ctx.finish_reduce()}, ctx.compute);
  }
  if (chunk.positions != nullptr) add_positions(ctx, *chunk.positions, out);
}

void Stage::add_positions(const LayerContext& ctx, const Parameter& positions, Tensor out) {
  const Tensor weight = ctx.use(positions);
  const int64_t first_row = ctx.tp.rank() * ctx.dims.Rl;
  const bool resets = !ctx.document_starts.empty() && !ctx.work.attention.positions.empty();
  if (mode_ != Mode::kCached && !resets)
    return for_positions(ctx.dims, first_row, out, weight, [&](Tensor rows, Tensor of_rows, int64_t first) {
      position_forward({.inout = rows, .weight = of_rows, .first_row = first}, ctx.compute);
    });
  const Tensor rows = (resets ? tensors_.position_rows : tensors_.cached.position_rows).rows(0, ctx.dims.Rl);
  const Tensor of_rows = ctx.work.attention.positions.flat(first_row, ctx.dims.Rl);
  embedding_forward({.out = rows, .tokens = of_rows, .weight = weight}, ctx.compute);
  accumulate({.inout = out.flat(), .inp = rows.flat()}, ctx.compute);
}

void Stage::embed_backward(const Chunk& chunk, int microbatch) {
  const LayerWorkspace& w = ctx_.work;
  if (chunk.positions != nullptr) {
    const Tensor dweight = ctx_.hooks.gradient(*chunk.positions), dout = ctx_.local_rows(w.dstream);
    const int64_t first_row = ctx_.tp.rank() * ctx_.dims.Rl;
    if (!w.attention.positions.empty())
      embedding_backward(
          {.dweight = dweight, .dout = dout, .tokens = w.attention.positions.flat(first_row, ctx_.dims.Rl)},
          ctx_.compute);
    else
      for_positions(ctx_.dims, first_row, dout, dweight, [&](Tensor rows, Tensor of_rows, int64_t first) {
        position_backward({.dweight = of_rows, .dout = rows, .first_row = first}, ctx_.compute);
      });
    ctx_.hooks.gradient_ready(*chunk.positions);
  }
  ctx_.gather(w.dstream);
  ctx_.need(w.dstream);
  embedding_backward({.dweight = ctx_.hooks.gradient(*chunk.tokens),
                      .dout = w.dstream,
                      .tokens = tensors_.inputs.rows(microbatch, 1).flat(),
                      .first_token = first_token_,
                      .scale = embedding_scale()},
                     ctx_.compute);
  ctx_.hooks.gradient_ready(*chunk.tokens);
}

void Stage::head_forward(const LayerContext& ctx, const Chunk& chunk, Tensor inp) {
  const LayerWorkspace& w = ctx.work;
  const HeadTensors& h = tensors_.head;
  const Tensor mean = h.mean.empty() ? h.mean : h.mean.rows(0, ctx.dims.Rl), rstd = h.rstd.rows(0, ctx.dims.Rl);
  chunk.final_norm.forward(ctx, {.inp = inp}, {}, {mean, rstd}, w.normed);
  const Tensor weight = ctx.use(*chunk.head);
  ctx.for_arriving(w.normed, kHeadForward, [&](int64_t first, int64_t count) {
    gemm({.out = h.logits.rows(first, count), .a = w.normed.rows(first, count), .b = weight, .trans_b = Trans::kYes},
         ctx.compute);
  });
}

void Stage::gather_stats(const LayerContext& ctx, Tensor stats, Tensor targets) {
  ctx.begin_gather(stats);
  cross_entropy_stats({.stats = ctx.local_rows(stats).view({ctx.dims.R, 3}),
                       .logits = tensors_.head.logits.rows(0, ctx.dims.R),
                       .targets = targets,
                       .first_token = first_token_,
                       .vocab = vocab_,
                       .softcap = static_cast<float>(ctx.config.model.logit_softcap)},
                      ctx.compute);
  ctx.start_gather(stats);
  ctx.need(stats);
}

void Stage::loss(int microbatch, LogitGradient gradient) {
  const HeadTensors& h = tensors_.head;
  const Tensor targets = tensors_.targets.rows(microbatch, 1).flat();
  if (ctx_.tp.size() > 1) gather_stats(ctx_, h.stats, targets);
  cross_entropy_loss({.loss = h.losses.rows(microbatch, 1),
                      .logits = h.logits,
                      .stats = h.stats,
                      .targets = targets,
                      .first_token = first_token_,
                      .vocab = vocab_,
                      .gradient = gradient,
                      .grad_scale = loss_scale_,
                      .z_loss = static_cast<float>(ctx_.config.optimizer.z_loss),
                      .softcap = static_cast<float>(ctx_.config.model.logit_softcap)},
                     ctx_.compute);
}

void Stage::head_backward(const Chunk& chunk, Tensor inp) {
  const LayerWorkspace& w = ctx_.work;
  const HeadTensors& h = tensors_.head;
  for (const RowBlock& block : ctx_.begin_reduce(w.dnormed, kHeadBackward)) {
    gemm({.out = block.out, .a = h.logits.rows(block.first, block.out[0]), .b = ctx_.use(*chunk.head)}, ctx_.compute);
    ctx_.send(block);
  }
  const auto target = ctx_.hooks.gradient_target(*chunk.head);
  gemm({.out = target.tensor, .a = h.logits, .b = w.normed, .trans_a = Trans::kYes, .beta = target.beta},
       ctx_.compute);  // alongside the reduce
  // The embedding adds to the gradient of its own table later.
  if (chunk.head != chunks_.front().tokens) ctx_.hooks.gradient_ready(*chunk.head);
  chunk.final_norm.backward(ctx_, ctx_.local_rows(w.dstream), {}, ctx_.finish_reduce(), inp, {h.mean, h.rstd});
}

}  // namespace tri
