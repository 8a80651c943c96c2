#include "lib/model/kv_exchange.h"

#include "kernels/attention.h"
#include "kernels/ops.h"

namespace tri {

using Messages = std::vector<CommGroup::Message>;

KvExchange::KvExchange(const LayerContext& ctx, const AttentionSpec& attention)
    : ctx_(ctx), share_(share_of(attention, ctx.dims.tp)), window_(attention.window), cp_(ctx.dims.chunks.cp) {}

void KvExchange::start_gather(Tensor qkv) const {
  for (int group = 0; group < groups(); ++group)
    for (const Rows& rows : rows_of(cp_.rank))
      pack_kv({.kv = kv(group).rows(rows.whole, rows.count),
               .qkv = qkv.rows(rows.local, rows.count),
               .order = share_.order,
               .first_kv_head = first_head(group),
               .num_kv_heads = share_.NKVl,
               .group = share_.G},
              ctx_.compute);
  ctx_.cp->after(ctx_.compute);
  exchange(0);
}

void KvExchange::finish_gather(int group) const {
  ctx_.cp->before(ctx_.compute);
  if (group + 1 < groups()) exchange(group + 1);
}

void KvExchange::exchange(int group) const {
  Messages sends, recvs;
  for (int step = 1; step < cp_.size; ++step) {
    const int to = (cp_.rank + step) % cp_.size, from = (cp_.rank + cp_.size - step) % cp_.size;
    for (const Rows& rows : rows_for(cp_.rank, to)) sends.push_back({kv(group).rows(rows.whole, rows.count), to});
    for (const Rows& rows : rows_for(from, cp_.rank)) recvs.push_back({kv(group).rows(rows.whole, rows.count), from});
  }
  ctx_.cp->exchange(sends, recvs);
}

void KvExchange::start_reduce(int group) const {
  const Tensor gradients = dkv(group);
  for (const Rows& rows : rows_of(cp_.rank)) {
    const Tensor from = gradients.rows(rows.whole, rows.count);
    ctx_.compute.copy(part(group, cp_.rank).rows(rows.local, rows.count).data, from.data, from.bytes());
  }
  Messages sends, recvs;
  for (int step = 1; step < cp_.size; ++step) {
    const int to = (cp_.rank + step) % cp_.size, from = (cp_.rank + cp_.size - step) % cp_.size;
    for (const Rows& rows : rows_for(to, cp_.rank)) sends.push_back({gradients.rows(rows.whole, rows.count), to});
    const std::vector<Rows> received = rows_for(cp_.rank, from);
    int64_t count = 0;
    for (const Rows& rows : received) {
      recvs.push_back({part(group, from).rows(rows.local, rows.count), from});
      count += rows.count;
    }
    if (count < ctx_.dims.R) ctx_.compute.zero(part(group, from));
  }
  ctx_.cp->after(ctx_.compute);
  ctx_.cp->exchange(sends, recvs);
}

void KvExchange::finish_reduce(Tensor dqkv) const {
  ctx_.cp->before(ctx_.compute);
  for (int group = 0; group < groups(); ++group)
    unpack_kv({.qkv = dqkv,
               .parts = kv(group).view({cp_.size, dqkv[0], kv(group)[1]}),
               .order = share_.order,
               .first_kv_head = first_head(group),
               .num_kv_heads = share_.NKVl,
               .group = share_.G},
              ctx_.compute);
}

std::vector<KvExchange::Rows> KvExchange::rows_of(int rank) const {
  return in_samples(rank, ctx_.dims.chunks.of_rank(rank).pieces());
}

std::vector<KvExchange::Rows> KvExchange::rows_for(int rank, int reader) const {
  return in_samples(rank, ctx_.dims.chunks.of_rank(rank).pieces_for(reader, window_, kKeyTile));
}

std::vector<KvExchange::Rows> KvExchange::in_samples(int rank, const std::vector<SequencePiece>& pieces) const {
  const SequenceChunks chunks = ctx_.dims.chunks.of_rank(rank);
  std::vector<Rows> rows;
  for (int64_t sample = 0; sample < ctx_.dims.B; ++sample)
    for (const SequencePiece& piece : pieces)
      rows.push_back({sample * chunks.local_len() + piece.local, sample * chunks.seq_len + piece.global, piece.count});
  return rows;
}

Tensor KvExchange::of(Tensor groups, int group) {
  const int64_t rows = groups[1], width = groups[2];
  return groups.view({groups[0] * rows, width}).rows(group * rows, rows);
}

Tensor KvExchange::part(int group, int rank) const { return kv(group).rows(rank * ctx_.dims.R, ctx_.dims.R); }

}  // namespace tri
