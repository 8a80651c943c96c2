// Context parallelism of attention: the keys and values of whole samples, from the cp ranks that computed them
// (lib/parallel/sequence_chunks.h). Each rank sends its rows to the ranks whose queries attend to them, which with a
// window are few; in the backward pass each sends the gradients of the rows that it received, and each adds up those of
// its own rows in rank order, so the sums have the same bits from run to run. Between machines the heads are exchanged
// in groups (kv_head_groups): the transfer of a group overlaps attention over the one before.
//
// Threads: call only from the training thread; all work is enqueued on ctx.compute and on the cp stream.
#pragma once

#include "lib/model/layers.h"

namespace tri {

// Whether the keys of a sample are on several ranks.
inline bool divides_samples(const LayerContext& ctx) { return ctx.cp != nullptr; }

// The exchange of one layer's keys and values in work.attention.kv, and of their gradients in dkv. Keeps no state, so
// the two halves of a gather may be those of two objects. All ranks of cp make the same calls in the same order.
class KvExchange {
 public:
  KvExchange(const LayerContext& ctx, const AttentionSpec& attention);

  int groups() const { return static_cast<int>(ctx_.work.attention.kv[0]); }
  // Returns `attention` with the arguments that make it one of this group's heads.
  template <class Args>
  Args of_group(int group, Args attention) const {
    const SequenceChunks& chunks = ctx_.dims.chunks;
    attention.kv = kv(group);
    if constexpr (requires { attention.dkv; }) attention.dkv = dkv(group);
    attention.key_len = static_cast<int>(chunks.seq_len);
    for (size_t i = 0; i < 2; ++i) attention.chunk_start[i] = static_cast<int>(chunks.starts()[i]);
    attention.first_kv_head = first_head(group);
    return attention;
  }

  // Starts to fill kv from `qkv` (R, qkv_width) of all cp ranks. Work enqueued on compute before finish_gather()
  // overlaps the transfer; it must not change the keys and values of `qkv`.
  void start_gather(Tensor qkv) const;
  // Makes compute wait for the keys and values of `group`. Call it for all groups in ascending order.
  void finish_gather(int group) const;
  // Starts to send the gradients of `group`, which attention has written to dkv. Overwrites kv of this group.
  void start_reduce(int group) const;
  // Writes the sum of all ranks' gradients of all groups to the key and value columns of this rank's `dqkv`
  // (R, qkv_width).
  void finish_reduce(Tensor dqkv) const;

 private:
  struct Rows {
    int64_t local, whole, count;  // the first one among a rank's rows, and among those of whole samples
  };
  // Returns the rows of cp rank `rank`, piece by piece of each sample, or those of them that `reader` attends to. All
  // ranks go through them in the same order.
  std::vector<Rows> rows_of(int rank) const;
  std::vector<Rows> rows_for(int rank, int reader) const;
  std::vector<Rows> in_samples(int rank, const std::vector<SequencePiece>& pieces) const;
  Tensor kv(int group) const { return of(ctx_.work.attention.kv, group); }
  Tensor dkv(int group) const { return of(ctx_.work.attention.dkv, group); }
  static Tensor of(Tensor groups, int group);
  int first_head(int group) const { return group * (share_.NKVl / groups()); }
  // The gradients of this rank's rows from `rank`, which lie in kv.
  Tensor part(int group, int rank) const;
  void exchange(int group) const;

  const LayerContext& ctx_;
  const AttentionShare share_;
  const int window_;
  const Axis cp_;
};

}  // namespace tri
