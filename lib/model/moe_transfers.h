// The rows of a layer with experts on their way to the experts' ranks and back, by copies or by messages (moe.h).
// Collective over the ranks of ep; threads as in moe.h.
#pragma once

#include <vector>

#include "lib/model/layers.h"
#include "lib/model/moe.h"

namespace tri {

class ExpertRowTransfers {
 public:
  ExpertRowTransfers(const MoeSpec& spec, int layer) : spec_(spec), layer_(layer) {}

  static bool is_divided(const LayerContext& ctx) { return ctx.config.parallel.ep > 1; }
  static bool by_copies(const LayerContext& ctx) { return ctx.moe->windows != nullptr; }
  int64_t number() const { return layer_ - spec_.first_layer; }  // among the layers with experts

  // Views of tensors of this rank's rows; a pass over cached sequences has fewer than were allocated.
  Tensor own(const LayerContext& ctx, Tensor tensor) const { return tensor.rows(0, ctx.dims.Rl); }
  Tensor pairs(const LayerContext& ctx, Tensor tensor) const { return tensor.rows(0, ctx.dims.Rl * spec_.per_token); }
  // Of memory for all ranks' tokens, the part that a pass uses.
  Tensor own_of_all(const LayerContext& ctx, Tensor all) const;
  // Of the rows that the rank's experts have memory for, how many are used; absent: all.
  Tensor used(const LayerContext& ctx, const MoeTensors& t) const {
    return is_divided(ctx) ? t.rank_offsets.flat(t.rank_offsets.numel() - 1, 1) : Tensor{};
  }

  // Messages: agrees with the other ranks on how many rows are sent. The host waits for the numbers once a layer.
  void agree(const LayerContext& ctx, const MoeTensors& t, GroupOnStream& ep) const;

  // Copies: begins to send this rank's `rows` (Rl, C), and the weights of its pairs if there are any, to all ranks.
  void share_tokens(const LayerContext& ctx, Tensor rows, Tensor weights) const;
  // Fills `rows`, those of the rank's experts, from all ranks' tokens of `dtype`, times the weights of their pairs.
  void take_rows(const LayerContext& ctx, const MoeTensors& t, Dtype dtype, Tensor rows, Tensor weights) const;

  // Fills t.rows, which the rank's experts read, with rows of all ranks. `inp` (Rl, C): this rank's tokens.
  void begin_dispatch(const LayerContext& ctx, const MoeTensors& t, Tensor inp) const;
  void finish_dispatch(const LayerContext& ctx, const MoeTensors& t, Dtype dtype) const;

  // Messages: sends `rows`, sorted by expert; sorts those that have arrived by expert.
  void send_to_experts(const LayerContext& ctx, const MoeTensors& t, Tensor rows) const;
  void sort_arrived(const LayerContext& ctx, const MoeTensors& t, Tensor rows) const;

  // Returns the experts' rows `out`, sorted by expert, to where they came from. Nothing to do with ep 1.
  void begin_return(const LayerContext& ctx, const MoeTensors& t, Tensor out, Tensor returned) const;
  void finish_return(const LayerContext& ctx, const MoeTensors& t, Tensor out, Tensor returned) const;
  // The same, but copies run on a stream of their own, alongside what is enqueued before finish_concurrent_return().
  // They begin at once, so that a kernel whose blocks take work until there is none left uses the other
  // multiprocessors.
  void begin_concurrent_return(const LayerContext& ctx, const MoeTensors& t, Tensor out, Tensor returned) const;
  void finish_concurrent_return(const LayerContext& ctx) const;

 private:
  void require_room(const LayerContext& ctx, const MoeRoute& route, int64_t room) const;

  const MoeSpec spec_;
  const int layer_;
};

}  // namespace tri
