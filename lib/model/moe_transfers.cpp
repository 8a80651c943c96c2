#include "lib/model/moe_transfers.h"

#include <numeric>

#include "kernels/ops.h"
#include "lib/comm/groups/group_on_stream.h"
#include "lib/comm/peer/windows.h"

namespace tri {
namespace {

enum class Way { kToExperts, kBack };

// The beginning of memory as rows of another type.
Tensor as_type(Tensor rows, Dtype dtype) {
  rows.dtype = dtype;
  return rows;
}
// Memory for rows like `rows` in the order in which messages bring them.
Tensor arrived(const LayerContext& ctx, Tensor rows) { return as_type(ctx.work.moe.arrived, rows.dtype); }

int64_t sum(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

// Sends rows, sorted by expert, to the experts' ranks, where they arrive rank by rank; or back.
void exchange(const LayerContext& ctx, Tensor from, Tensor to, const MoeRoute& route, Way way) {
  if (ctx.moe->ep == nullptr) return;
  GroupOnStream& ep = *ctx.moe->ep;
  const std::vector<int64_t>& out = way == Way::kToExperts ? route.sends : route.receives;
  const std::vector<int64_t>& in = way == Way::kToExperts ? route.receives : route.sends;
  std::vector<CommGroup::Message> sends, receives;
  Tensor kept, own_place;
  int64_t out_first = 0, in_first = 0;
  for (int peer = 0; peer < ep.size(); ++peer) {
    const int64_t out_rows = out[static_cast<size_t>(peer)], in_rows = in[static_cast<size_t>(peer)];
    const Tensor sent = from.rows(out_first, out_rows), received = to.rows(in_first, in_rows);
    out_first += out_rows;
    in_first += in_rows;
    if (peer == ep.rank()) {
      kept = sent;
      own_place = received;
      continue;
    }
    if (out_rows > 0) sends.push_back({sent, peer});
    if (in_rows > 0) receives.push_back({received, peer});
  }
  ep.after(ctx.compute);
  ep.exchange(sends, receives);
  ep.before(ctx.compute);
  if (kept[0] > 0) ctx.compute.copy(own_place.data, kept.data, kept.bytes());
}

}  // namespace

void ExpertRowTransfers::agree(const LayerContext& ctx, const MoeTensors& t, GroupOnStream& ep) const {
  const MoeWorkspace& w = ctx.work.moe;
  MoeRoute& route = *t.route;
  const int64_t members = ep.size(), E = spec_.experts, El = E / members;
  route.offsets.resize(static_cast<size_t>(w.all_offsets.numel()));
  route.counts.resize(static_cast<size_t>(w.arrived_counts.numel()));
  route.sends.assign(static_cast<size_t>(members), 0);
  route.receives = route.sends;
  ep.after(ctx.compute);
  ep.all_gather(w.all_offsets.flat(), t.offsets);
  ep.before(ctx.compute);
  ctx.compute.copy(route.offsets.data(), w.all_offsets.data, w.all_offsets.bytes());
  ctx.compute.synchronize();
  const auto offset = [&](int64_t member, int64_t expert) {
    return int64_t{route.offsets[static_cast<size_t>(member * (E + 1) + expert)]};
  };
  for (int64_t m = 0; m < members; ++m) {
    const auto i = static_cast<size_t>(m);
    route.sends[i] = offset(ep.rank(), (m + 1) * El) - offset(ep.rank(), m * El);
    route.receives[i] = offset(m, (ep.rank() + 1) * El) - offset(m, ep.rank() * El);
    for (int64_t e = 0; e < El; ++e)
      route.counts[static_cast<size_t>(m * El + e)] =
          static_cast<int32_t>(offset(m, ep.rank() * El + e + 1) - offset(m, ep.rank() * El + e));
  }
  require_room(ctx, route, t.rows[0]);
  ctx.compute.copy(w.arrived_counts.data, route.counts.data(), w.arrived_counts.bytes());
  merge_sources(
      {.place = t.arrived_place, .pair = t.arrived_pair, .offsets = t.rank_offsets, .counts = w.arrived_counts},
      ctx.compute);
}

// Fails, alike on all members, if the experts of one of them have more rows than it has memory for.
void ExpertRowTransfers::require_room(const LayerContext& ctx, const MoeRoute& route, int64_t room) const {
  const int64_t E = spec_.experts, members = ctx.config.parallel.ep, El = E / members;
  const auto rows_of = [&](int64_t first, int64_t last) {
    int64_t rows = 0;
    for (int64_t m = 0; m < members; ++m) {
      const int32_t* offsets = route.offsets.data() + m * (E + 1);
      rows += offsets[last] - offsets[first];
    }
    return rows;
  };
  for (int64_t first = 0; first < E; first += El) {
    const int64_t rows = rows_of(first, first + El);
    if (rows <= room) continue;
    int64_t fullest = first;
    for (int64_t e = first; e < first + El; ++e)
      if (rows_of(e, e + 1) > rows_of(fullest, fullest + 1)) fullest = e;
    throw Fatal(ExitCode::kUsage,
                to_string(RowShortage{layer_, rows, first, fullest, rows_of(fullest, fullest + 1)}, ctx.config));
  }
}

Tensor ExpertRowTransfers::own_of_all(const LayerContext& ctx, Tensor all) const {
  return all.rows(0, ctx.dims.Rl * ctx.moe->windows->size());
}

void ExpertRowTransfers::share_tokens(const LayerContext& ctx, Tensor rows, Tensor weights) const {
  const MoeWorkspace& w = ctx.work.moe;
  PeerWindows& windows = *ctx.moe->windows;
  std::vector<Tensor> blocks;
  const auto add = [&](Tensor all, Tensor from) {
    const Tensor block = as_type(all, from.dtype).rows(windows.rank() * ctx.dims.Rl, ctx.dims.Rl);
    ctx.compute.copy(block.data, from.data, from.bytes());
    blocks.push_back(block);
  };
  add(w.tokens, rows);
  if (!weights.empty()) add(w.all_weights, weights);
  windows.start_copies(blocks, ctx.compute);
}

void ExpertRowTransfers::take_rows(const LayerContext& ctx, const MoeTensors& t, Dtype dtype, Tensor rows,
                                   Tensor weights) const {
  ctx.moe->windows->finish_copies(ctx.compute);
  gather_rows({.out = rows,
               .inp = own_of_all(ctx, as_type(ctx.work.moe.tokens, dtype)),
               .index = t.origin,
               .divisor = static_cast<int>(spec_.per_token),
               .weights = weights.empty() ? weights : weights.flat(),
               .used = used(ctx, t)},
              ctx.compute);
}

void ExpertRowTransfers::begin_dispatch(const LayerContext& ctx, const MoeTensors& t, Tensor inp) const {
  const MoeWorkspace& w = ctx.work.moe;
  if (by_copies(ctx)) {
    PeerWindows& windows = *ctx.moe->windows;
    share_pairs({.all_offsets = windows.places(w.all_offsets),
                 .all_pairs = windows.places(w.all_pairs),
                 .offsets = t.offsets,
                 .pair = t.pair,
                 .member = windows.rank()},
                ctx.compute);
    return windows.arrive(ctx.compute, t.offsets.bytes() + t.pair.bytes());
  }
  const Tensor sorted = pairs(ctx, is_divided(ctx) ? as_type(w.sent, inp.dtype) : t.rows);
  gather_rows({.out = sorted, .inp = inp, .index = t.pair, .divisor = static_cast<int>(spec_.per_token)}, ctx.compute);
  if (is_divided(ctx)) send_to_experts(ctx, t, sorted);
}

void ExpertRowTransfers::finish_dispatch(const LayerContext& ctx, const MoeTensors& t, Dtype dtype) const {
  if (!is_divided(ctx)) return;
  if (!by_copies(ctx)) return sort_arrived(ctx, t, t.rows);
  const MoeWorkspace& w = ctx.work.moe;
  PeerWindows& windows = *ctx.moe->windows;
  const int64_t members = windows.size(), pairs = t.pair.numel();
  windows.wait(ctx.compute);
  plan_rows({.first = t.first,
             .offsets = t.rank_offsets,
             .origin = t.origin,
             .shortage = ctx.moe->statistics.shortage.rows(number(), 1).flat(),
             .all_offsets = w.all_offsets,
             .all_pairs = w.all_pairs.flat(0, members * pairs).view({members, pairs}),
             .member = windows.rank()},
            ctx.compute);
  take_rows(ctx, t, dtype, t.rows, {});
}

void ExpertRowTransfers::send_to_experts(const LayerContext& ctx, const MoeTensors& t, Tensor rows) const {
  exchange(ctx, rows, arrived(ctx, rows), *t.route, Way::kToExperts);
}

void ExpertRowTransfers::sort_arrived(const LayerContext& ctx, const MoeTensors& t, Tensor rows) const {
  if (const int64_t count = sum(t.route->receives); count > 0)
    gather_rows({.out = rows.rows(0, count), .inp = arrived(ctx, rows), .index = t.arrived_pair.rows(0, count)},
                ctx.compute);
}

void ExpertRowTransfers::begin_return(const LayerContext& ctx, const MoeTensors& t, Tensor out, Tensor returned) const {
  if (!is_divided(ctx)) return;
  if (by_copies(ctx)) return ctx.moe->windows->arrive(ctx.compute, returned.bytes());
  if (const int64_t count = sum(t.route->receives); count > 0)
    gather_rows({.out = arrived(ctx, out).rows(0, count), .inp = out, .index = t.arrived_place.rows(0, count)},
                ctx.compute);
  exchange(ctx, arrived(ctx, out), returned, *t.route, Way::kBack);
}

namespace {

FetchRows returning(const LayerContext& ctx, const MoeTensors& t, Tensor out, Tensor returned,
                    int multiprocessors = 0) {
  return {.out = returned,
          .from = ctx.moe->windows->places(out),
          .offsets = t.offsets,
          .first = t.first,
          .rows = out[0],
          .multiprocessors = multiprocessors};
}

}  // namespace

void ExpertRowTransfers::finish_return(const LayerContext& ctx, const MoeTensors& t, Tensor out,
                                       Tensor returned) const {
  if (!by_copies(ctx)) return;
  ctx.moe->windows->wait(ctx.compute);
  const TimeCategoryScope scope(ctx.compute, TimeCategory::kEp);
  fetch_rows(returning(ctx, t, out, returned), ctx.compute);
}

void ExpertRowTransfers::begin_concurrent_return(const LayerContext& ctx, const MoeTensors& t, Tensor out,
                                                 Tensor returned) const {
  constexpr int kMultiprocessors = 24;  // suffice for the rate of NVLink
  begin_return(ctx, t, out, returned);
  if (!by_copies(ctx)) return;
  ctx.moe->windows->wait(ctx.compute);
  ctx.moe->windows->start_fetch(returning(ctx, t, out, returned, kMultiprocessors), ctx.compute);
}

void ExpertRowTransfers::finish_concurrent_return(const LayerContext& ctx) const {
  if (by_copies(ctx)) ctx.moe->windows->finish_fetch(ctx.compute);
}

}  // namespace tri
