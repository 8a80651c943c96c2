#include "kernels/peer_rows.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

void require_members(const char* op, const PeerPlaces& places, int64_t experts) {
  TRI_REQUIRE(places.members > 0 && places.members <= PeerPlaces::kMost && experts % places.members == 0,
              "{}: {} members of {} experts", op, places.members, experts);
}

}  // namespace

void check(const SharePairs& a) {
  require_members("share_pairs", a.all_offsets, a.offsets.numel() - 1);
  require_members("share_pairs", a.all_pairs, a.offsets.numel() - 1);
  require_tensor("share_pairs", "offsets", a.offsets, Dtype::kI32, {a.offsets.numel()});
  require_tensor("share_pairs", "pair", a.pair, Dtype::kI32, {a.pair.numel()});
  TRI_REQUIRE(a.member >= 0 && a.member < a.all_offsets.members, "share_pairs: member {}", a.member);
}

void check(const PlanRows& a) {
  TRI_REQUIRE(a.all_offsets.dims == 2 && a.all_pairs.dims == 2, "plan_rows: all_offsets {}, all_pairs {}",
              a.all_offsets.shape_text(), a.all_pairs.shape_text());
  const int64_t members = a.all_offsets[0], experts = a.all_offsets[1] - 1;
  require_tensor("plan_rows", "all_offsets", a.all_offsets, Dtype::kI32, {members, experts + 1});
  require_tensor("plan_rows", "all_pairs", a.all_pairs, Dtype::kI32, {members, a.all_pairs[1]});
  require_tensor("plan_rows", "first", a.first, Dtype::kI32, {experts});
  require_tensor("plan_rows", "offsets", a.offsets, Dtype::kI32, {experts / members + 1});
  require_tensor("plan_rows", "origin", a.origin, Dtype::kI32, {a.origin.numel()});
  require_tensor("plan_rows", "shortage", a.shortage, Dtype::kI32, {kRowShortage});
  TRI_REQUIRE(experts % members == 0 && a.member >= 0 && a.member < members, "plan_rows: member {} of {}", a.member,
              members);
}

void check(const FetchRows& a) {
  require_members("fetch_rows", a.from, a.first.numel());
  require_tensor("fetch_rows", "first", a.first, Dtype::kI32, {a.first.numel()});
  require_tensor("fetch_rows", "offsets", a.offsets, Dtype::kI32, {a.first.numel() + 1});
  require_matrix("fetch_rows", "out", a.out);
}

}  // namespace tri
