#include "lib/parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "io/base/error.h"
#include "lib/config/axis_fields.h"
#include "lib/parallel/sequence_chunks.h"
#include "lib/parallel/stage_ring.h"

namespace tri {
namespace {

struct Sizes {
  int tp, dp, pp;
};
constexpr Sizes kSizes[] = {{1, 1, 1}, {4, 1, 1}, {1, 3, 1}, {1, 1, 5}, {2, 3, 4}, {3, 2, 2}};

Mesh small_mesh(const Sizes& s, int rank) { return make_mesh(rank, {{"tp", s.tp}, {"dp", s.dp}, {"pp", s.pp}}); }

TEST(Mesh, tp_is_fastest_and_pp_is_slowest) {
  for (const Sizes& s : kSizes)
    for (int pp = 0, rank = 0; pp < s.pp; ++pp)
      for (int dp = 0; dp < s.dp; ++dp)
        for (int tp = 0; tp < s.tp; ++tp, ++rank) {
          const Mesh mesh = small_mesh(s, rank);
          EXPECT_EQ(mesh.world_size(), s.tp * s.dp * s.pp);
          EXPECT_EQ(mesh.axis("tp").rank, tp);
          EXPECT_EQ(mesh.axis("dp").rank, dp);
          EXPECT_EQ(mesh.axis("pp").rank, pp);
          EXPECT_EQ(mesh.axis("dp").size, s.dp);
          EXPECT_EQ(mesh.place(), fmt::format("pp{} dp{} tp{}", pp, dp, tp));
          EXPECT_EQ(mesh.grid.rank_at({{"dp", dp}, {"tp", tp}, {"pp", pp}}), rank);
        }
}

TEST(Mesh, groups_of_any_axes_part_the_ranks) {
  const std::vector<AxisSet> sets{{}, {"tp"}, {"dp"}, {"pp"}, {"tp", "pp"}, {"dp", "pp"}, {"tp", "dp", "pp"}};
  for (const Sizes& s : kSizes)
    for (const AxisSet axes : sets) {
      std::map<int, int> seen;
      for (int rank = 0; rank < s.tp * s.dp * s.pp; ++rank) {
        const Mesh mesh = small_mesh(s, rank);
        const std::vector<int> group = mesh.group(axes);
        const Axis joint = mesh.joint_axis(axes);
        EXPECT_TRUE(std::ranges::is_sorted(group));
        ASSERT_EQ(static_cast<int>(group.size()), joint.size) << to_string(axes);
        EXPECT_EQ(group[static_cast<size_t>(joint.rank)], rank) << to_string(axes);
        for (const int member : group) {
          EXPECT_EQ(small_mesh(s, member).group(axes), group) << to_string(axes);
          const Mesh other{mesh.grid, member};
          for (const AxisName axis : {AxisName("tp"), AxisName("dp"), AxisName("pp")})
            if (!axes.contains(axis)) {
              EXPECT_EQ(other.axis(axis).rank, mesh.axis(axis).rank) << to_string(axes);
            }
        }
        ++seen[group.front()];
      }
      for (const auto& [first, members] : seen) EXPECT_EQ(members, small_mesh(s, first).joint_axis(axes).size);
    }
}

TEST(Mesh, an_axis_of_one_rank_that_need_not_be_named_changes_nothing) {
  RankGrid grid = small_mesh({2, 3, 4}, 0).grid, wider = grid;
  for (const size_t at : {size_t{0}, size_t{1}, size_t{3}})
    wider.axes.insert(wider.axes.begin() + static_cast<std::ptrdiff_t>(at), {"other", 1});
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    for (const char* axis : {"tp", "dp", "pp"}) EXPECT_EQ(wider.rank_on(axis, rank), grid.rank_on(axis, rank));
    EXPECT_EQ(wider.group(rank, {"dp", "other"}), grid.group(rank, {"dp"}));
    EXPECT_EQ(grid.rank_on("other", rank), 0);
  }
  // An axis with several ranks in the middle increases the stride of slower axes.
  RankGrid replicas{{{"tp", 2}, {"x", 2}, {"dp", 3}, {"pp", 1}}};
  EXPECT_EQ(replicas.place(7), "pp0 dp1 x1 tp1");
  EXPECT_EQ(replicas.sizes(), "tp 2 x x 2 x dp 3 x pp 1");
  EXPECT_EQ(replicas.group(7, {"x"}), (std::vector<int>{5, 7}));
  EXPECT_EQ(replicas.group_without(7, {"x", "pp"}), (std::vector<int>{2, 3, 6, 7, 10, 11}));
  EXPECT_EQ(replicas.stride("dp"), 4);
  EXPECT_EQ(replicas.stride("pp"), 12);
  EXPECT_EQ(replicas.stride("other"), 1);
}

// Each token of a step counts on exactly one rank of each stage.
TEST(Mesh, one_rank_of_those_with_the_same_tokens_is_the_first) {
  for (const Sizes& s : kSizes) {
    std::map<std::pair<int, int>, int> firsts;  // (stage, index among the ranks that divide the tokens)
    for (int rank = 0; rank < s.tp * s.dp * s.pp; ++rank) {
      const Mesh mesh = small_mesh(s, rank);
      firsts[{mesh.axis("pp").rank, mesh.joint_axis(kTokenAxes).rank}] += mesh.first_of_replicas() ? 1 : 0;
    }
    EXPECT_EQ(std::ssize(firsts), int64_t{s.pp} * small_mesh(s, 0).joint_axis(kTokenAxes).size);
    for (const auto& [place, count] : firsts) EXPECT_EQ(count, 1) << place.first << " " << place.second;
  }
}

TEST(Mesh, cp_lies_between_tp_and_dp_and_divides_tokens_but_no_samples) {
  const std::vector<AxisSize> sizes{{"tp", 2}, {"cp", 2}, {"dp", 2}, {"pp", 2}};
  const Mesh mesh = make_mesh(11, sizes);
  EXPECT_EQ(mesh.place(), "pp1 dp0 cp1 tp1");
  EXPECT_EQ(mesh.grid.sizes(), "tp 2 x cp 2 x dp 2 x pp 2");
  EXPECT_EQ(mesh.group({"cp"}), (std::vector<int>{9, 11}));
  EXPECT_EQ(mesh.group(kTokenAxes), (std::vector<int>{9, 11, 13, 15}));
  EXPECT_EQ(kTokenAxes, (AxisSet{"cp", "dp"}));
  EXPECT_EQ(kSampleAxes, AxisSet{"dp"});
  int firsts = 0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) firsts += make_mesh(rank, sizes).first_of_replicas() ? 1 : 0;
  EXPECT_EQ(firsts, 2 * 4) << "of each stage one rank for each part of the tokens";
}

TEST(Mesh, only_the_pipeline_of_a_folded_mesh_ends_on_its_first_stage) {
  Mesh mesh = small_mesh({.tp = 2, .dp = 2, .pp = 4}, 0);
  EXPECT_EQ(mesh.axis("pp").end(), 3);
  mesh.folded = true;
  for (const int stage : {0, 1, 3}) {
    const Axis pp = mesh.moved("pp", stage).axis("pp");
    EXPECT_TRUE(pp.folded);
    EXPECT_EQ(pp.end(), 0);
    EXPECT_EQ(pp.ends_here(), stage == 0);
  }
  EXPECT_FALSE(mesh.axis("tp").folded || mesh.axis("dp").folded);
  EXPECT_TRUE(mesh.seen_from(5).folded);
}

// With causal attention the work of a rank is the sum of its positions.
TEST(SequenceChunks, each_position_is_on_one_rank_and_all_ranks_have_the_same_work) {
  for (const auto& [seq_len, size] : {std::pair<int64_t, int>{7, 1}, {16, 2}, {24, 3}, {64, 8}}) {
    std::vector<int> owner(static_cast<size_t>(seq_len), -1);
    std::set<int64_t> work;
    for (int rank = 0; rank < size; ++rank) {
      const SequenceChunks chunks{seq_len, {rank, size}};
      int64_t local = 0, sum = 0;
      for (const SequencePiece& piece : chunks.pieces()) {
        EXPECT_EQ(piece.local, local);
        for (int64_t i = 0; i < piece.count; ++i, ++local) {
          const int64_t position = piece.global + i;
          EXPECT_EQ(std::exchange(owner[static_cast<size_t>(position)], rank), -1) << position;
          EXPECT_EQ(chunks.place_of(position).rank, rank);
          EXPECT_EQ(chunks.of_rank(0).place_of(position).local, local);
          sum += position;
        }
      }
      EXPECT_EQ(local, chunks.local_len());
      work.insert(sum);
    }
    EXPECT_EQ(std::ranges::count(owner, -1), 0);
    EXPECT_EQ(work.size(), 1u) << "cp " << size;
  }
  EXPECT_EQ((SequenceChunks{16, {0, 2}}.pieces()), (std::vector<SequencePiece>{{0, 0, 4}, {4, 12, 4}}));
  EXPECT_EQ((SequenceChunks{16, {1, 2}}.pieces()), (std::vector<SequencePiece>{{0, 4, 4}, {4, 8, 4}}));
}

// Whatever attends to a position gets it, and nothing is sent twice.
TEST(SequenceChunks, pieces_are_sent_to_the_ranks_that_attend_to_them) {
  constexpr int64_t kTile = 4;
  for (const auto& [seq_len, size] : {std::pair<int64_t, int>{16, 2}, {64, 4}, {96, 3}})
    for (const int64_t window : {0, 1, 3, 7, 20, 200})
      for (int reader = 0; reader < size; ++reader) {
        std::set<int64_t> sent, needed;
        for (int owner = 0; owner < size; ++owner)
          for (const SequencePiece& piece : SequenceChunks{seq_len, {owner, size}}.pieces_for(reader, window, kTile))
            for (int64_t i = 0; i < piece.count; ++i) {
              const SequenceChunks::Place place = SequenceChunks{seq_len, {0, size}}.place_of(piece.global + i);
              EXPECT_EQ(place.rank, owner);
              EXPECT_EQ(place.local, piece.local + i);
              EXPECT_TRUE(sent.insert(piece.global + i).second) << piece.global + i;
            }
        const SequenceChunks own{seq_len, {reader, size}};
        for (const SequencePiece& piece : own.pieces())
          for (int64_t q = piece.global; q < piece.global + piece.count; ++q)
            for (int64_t key = window == 0 ? 0 : std::max<int64_t>(0, q - window + 1) / kTile * kTile; key <= q; ++key)
              needed.insert(key);
        EXPECT_EQ(sent, needed) << "window " << window << ", rank " << reader << " of " << size;
        EXPECT_EQ(own.foreign_keys(window, kTile), std::ssize(needed) - own.local_len());
      }
}

TEST(Mesh, a_rank_or_a_size_that_is_not_there_is_refused) {
  EXPECT_THROW(make_mesh(0, {{"tp", 2}, {"dp", 2}, {"ep", 3}}), std::exception) << "ep does not divide a stage";
  EXPECT_THROW(make_mesh(8, {{"tp", 2}, {"pp", 4}}), std::exception);
  EXPECT_THROW(make_mesh(-1, {{"tp", 2}}), std::exception);
  EXPECT_THROW(make_mesh(0, {{"dp", 0}}), std::exception);
}

TEST(Mesh, that_of_a_config_has_the_sizes_of_its_fields) {
  Config config;
  config.parallel = {.tp = 2, .pp = 4, .dp = 3};
  EXPECT_EQ(mesh_of(config, 13).place(), small_mesh(Sizes{2, 3, 4}, 13).place());
  EXPECT_EQ(sizes_along(AxisSet::outside({"dp"}), config.parallel), "tp 2 x pp 4");
  EXPECT_EQ(ranks_along(AxisSet::outside({}), config.parallel), 24);
}

TEST(AxisSet, is_a_set) {
  constexpr AxisSet kBoth{"tp", "dp"};
  EXPECT_EQ(kBoth, (AxisSet{"dp"} | AxisSet{"tp"}));
  EXPECT_EQ(kBoth - AxisSet{"tp"}, AxisSet{"dp"});
  EXPECT_TRUE(AxisSet::outside(kBoth).contains("pp"));
  EXPECT_TRUE((AxisSet::outside(kBoth) - AxisSet::outside({})).empty());
  EXPECT_EQ(AxisSet::outside(kBoth) | kBoth, AxisSet::outside({}));
  EXPECT_TRUE((kBoth - kBoth).empty());
  EXPECT_TRUE(kBoth.contains("dp"));
  EXPECT_FALSE(kBoth.contains("pp"));
  EXPECT_EQ(to_string(kBoth), "{tp, dp}");
  EXPECT_EQ(small_mesh({2, 1, 4}, 0).divided({"dp", "pp"}), AxisSet{"pp"});
  EXPECT_TRUE((kSampleAxes - kTokenAxes).empty()) << "ranks with samples of their own have tokens of their own";
  EXPECT_TRUE(kSampleAxes.contains("dp"));
  EXPECT_TRUE((kTokenAxes - AxisSet::outside({"tp", "pp"})).empty());
}

// Each edge is connected by the two ranks at its ends, and no rank waits for another that is at a later edge: all edges
// can be made with blocking connections.
TEST(StageRing, ranks_that_connect_their_edges_in_order_never_wait_in_a_circle) {
  for (const RingEnd end : {RingEnd::kOpen, RingEnd::kClosed})
    for (int pp = 1; pp <= 7; ++pp)
      for (const int tp : {1, 2}) {
        const int ranks = 2 * tp * pp;
        std::vector<std::vector<StageEdge>> edges;
        for (int rank = 0; rank < ranks; ++rank) edges.push_back(own_edges(small_mesh({tp, 2, pp}, rank), end));
        std::vector<size_t> next(static_cast<size_t>(ranks));
        size_t made = 0, all = 0;
        for (const auto& own : edges) all += own.size();
        const auto at = [&](int rank) -> const StageEdge* {
          const auto r = static_cast<size_t>(rank);
          return next[r] < edges[r].size() ? &edges[r][next[r]] : nullptr;
        };
        for (bool moves = true; moves;) {
          moves = false;
          for (int rank = 0; rank < ranks; ++rank) {
            const StageEdge* const edge = at(rank);
            if (edge == nullptr) continue;
            const int other = edge->source == rank ? edge->target : edge->source;
            const StageEdge* const opposite = at(other);
            if (opposite == nullptr || opposite->from != edge->from || opposite->source != edge->source) continue;
            ++next[static_cast<size_t>(rank)];
            ++next[static_cast<size_t>(other)];
            made += 2;
            moves = true;
          }
        }
        EXPECT_EQ(made, all) << pp << " stages";
        const int expected = pp == 1 ? 0 : end == RingEnd::kClosed ? pp : pp - 1;
        EXPECT_EQ(static_cast<int>(all), 2 * expected * 2 * tp) << pp << " stages";
      }
}

TEST(StageRing, an_edge_joins_ranks_that_differ_in_their_stage_alone) {
  const Mesh mesh = small_mesh({2, 3, 4}, 9);
  for (int stage = 0; stage < 4; ++stage) {
    const StageEdge edge = stage_edge(mesh, stage);
    EXPECT_EQ(edge.to, (stage + 1) % 4);
    EXPECT_EQ(edge.source, mesh.moved("pp", edge.from).world_rank);
    EXPECT_EQ(edge.target, mesh.moved("pp", edge.to).world_rank);
    EXPECT_EQ(edge.pair(), (std::vector{std::min(edge.source, edge.target), std::max(edge.source, edge.target)}));
  }
}

// Runs of ep neighbours of a stage divide the experts; ranks at the same place of the runs hold the same ones.
TEST(Mesh, experts_are_divided_over_runs_of_a_stage) {
  const auto at = [](int rank, int ep) { return make_mesh(rank, {{"tp", 2}, {"dp", 4}, {"pp", 2}, {"ep", ep}}); };
  EXPECT_EQ(at(13, 4).group({"ep"}), (std::vector{12, 13, 14, 15}));
  EXPECT_EQ(at(13, 4).group({"edp"}), (std::vector{9, 13}));
  EXPECT_EQ(at(13, 4).group(kRowAxes), (std::vector{8, 9, 10, 11, 12, 13, 14, 15}));
  for (const int ep : {1, 2, 4, 8})
    for (int rank = 0; rank < 16; ++rank) {
      const Mesh mesh = at(rank, ep);
      EXPECT_EQ(mesh.axis("ep").size * mesh.axis("edp").size, 8);
      for (const AxisSet axes : {AxisSet{"ep"}, AxisSet{"edp"}, kRowAxes}) {
        const std::vector<int> group = mesh.group(axes);
        EXPECT_EQ(static_cast<int>(group.size()), mesh.joint_axis(axes).size);
        EXPECT_EQ(group[static_cast<size_t>(mesh.joint_axis(axes).rank)], rank);
      }
      EXPECT_EQ(mesh.holders({"ep", "pp"}).size, 8 / ep);
      EXPECT_EQ(mesh.moved("pp", 0).axis("ep").rank, mesh.axis("ep").rank);
    }
}

}  // namespace
}  // namespace tri
