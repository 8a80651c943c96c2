#include "lib/model/kv_exchange.h"

#include "kernels/ops.h"

namespace tri {
namespace {

// Calls f(rows of this rank, first and count of the same rows among those of whole samples) for each piece of each
// sample, as cp rank `rank` holds them. All ranks go through the pieces in the same order.
template <class F>
void for_each_piece(const LayerContext& ctx, int rank, F f) {
  const SequenceChunks chunks = ctx.dims.chunks.of_rank(rank);
  for (int sample = 0; sample < ctx.dims.B; ++sample)
    for (const SequencePiece& piece : chunks.pieces())
      f(sample * chunks.local_len() + piece.local, sample * chunks.seq_len + piece.global, piece.count);
}

// Returns messages of the rows of `whole` (B · T, n) that cp rank `rank` holds, one for each piece.
void add_pieces(const LayerContext& ctx, int rank, Tensor whole, int peer, std::vector<CommGroup::Message>& messages) {
  for_each_piece(ctx, rank, [&](int64_t, int64_t first, int64_t count) {
    messages.push_back({whole.rows(first, count), peer});
  });
}

}  // namespace

void start_kv_gather(const LayerContext& ctx, const AttentionShare& share, Tensor qkv) {
  const Tensor kv = ctx.work.attention.kv;
  const Axis cp = ctx.dims.chunks.cp;
  for_each_piece(ctx, cp.rank, [&](int64_t local, int64_t first, int64_t count) {
    pack_kv({.kv = kv.rows(first, count),
             .qkv = qkv.rows(local, count),
             .order = share.order,
             .num_kv_heads = share.NKVl,
             .group = share.G},
            ctx.compute);
  });
  std::vector<CommGroup::Message> sends, recvs;
  for (int step = 1; step < cp.size; ++step) {
    const int to = (cp.rank + step) % cp.size, from = (cp.rank + cp.size - step) % cp.size;
    add_pieces(ctx, cp.rank, kv, to, sends);
    add_pieces(ctx, from, kv, from, recvs);
  }
  ctx.cp->after(ctx.compute);
  ctx.cp->exchange(sends, recvs);
}

void finish_kv_gather(const LayerContext& ctx) { ctx.cp->before(ctx.compute); }

void reduce_dkv(const LayerContext& ctx, const AttentionShare& share, Tensor dqkv) {
  const AttentionWorkspace& w = ctx.work.attention;
  const Axis cp = ctx.dims.chunks.cp;
  const int64_t rows = dqkv[0], width = w.dkv[1];
  const auto part = [&](int rank) { return w.kv.rows(rank * rows, rows); };  // kv is read no more
  std::vector<CommGroup::Message> sends, recvs;
  for_each_piece(ctx, cp.rank, [&](int64_t local, int64_t first, int64_t count) {
    const Tensor from = w.dkv.rows(first, count);
    ctx.compute.copy(part(cp.rank).rows(local, count).data, from.data, from.bytes());
  });
  for (int step = 1; step < cp.size; ++step) {
    const int to = (cp.rank + step) % cp.size, from = (cp.rank + cp.size - step) % cp.size;
    add_pieces(ctx, to, w.dkv, to, sends);
    for_each_piece(ctx, cp.rank, [&](int64_t local, int64_t, int64_t count) {
      recvs.push_back({part(from).rows(local, count), from});
    });
  }
  ctx.cp->after(ctx.compute);
  ctx.cp->exchange(sends, recvs);
  ctx.cp->before(ctx.compute);
  unpack_kv({.qkv = dqkv,
             .parts = w.kv.view({cp.size, rows, width}),
             .order = share.order,
             .num_kv_heads = share.NKVl,
             .group = share.G},
            ctx.compute);
}

}  // namespace tri
