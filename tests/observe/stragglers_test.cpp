// Slow ranks are named, and no others.
#include "lib/observe/ranks/stragglers.h"

#include <gtest/gtest.h>

#include "lib/observe/ranks/what_if.h"
#include "tests/observe/synthetic_ranks.h"

namespace tri {
namespace {

using Kind = StragglerNews::Kind;

// The reports of a watch over `windows` windows; stops after the first one about a rank, if requested.
struct Watched {
  std::vector<std::pair<int64_t, StragglerNews>> news;  // with the window of each
  std::vector<RankStraggler> stragglers;                // at the end
};
Watched watch(const RankMesh& mesh, int64_t windows, double noise, uint64_t seed,
              const Disturbance& disturbance = nullptr) {
  StragglerWatch watch(mesh);
  Draws draws(seed);
  Watched watched;
  for (int64_t w = 0; w < windows; ++w)
    for (const StragglerNews& news : watch.add(synthetic_window(mesh, w, noise, draws, disturbance)))
      watched.news.emplace_back(w, news);
  watched.stragglers = watch.stragglers();
  return watched;
}

TEST(Stragglers, a_rank_slower_by_10_percent_is_named_within_3_windows) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  for (int faulty = 0; faulty < 8; ++faulty)
    for (const double noise : {0.0, 0.01, 0.03}) {
      const Watched watched =
          watch(mesh, 3, noise, 7 + faulty, [&](int rank, int64_t) { return rank == faulty ? 1.1 : 1; });
      ASSERT_EQ(watched.stragglers.size(), 1u) << faulty << " noise " << noise;
      EXPECT_EQ(watched.stragglers[0].world_rank, faulty);
      EXPECT_NEAR(watched.stragglers[0].slowdown, 0.1, 0.02);
      EXPECT_FALSE(watched.stragglers[0].doctor);
    }
}

TEST(Stragglers, ten_windows_of_10_percent_ask_for_the_doctor_and_a_mended_rank_is_cleared) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  const Watched watched =
      watch(mesh, 60, 0.01, 3, [](int rank, int64_t w) { return rank == 5 && w >= 10 && w < 30 ? 1.12 : 1; });
  ASSERT_EQ(watched.news.size(), 3u);
  const auto& [named, slow] = watched.news[0];
  const auto& [called, doctor] = watched.news[1];
  const auto& [cleared, over] = watched.news[2];
  EXPECT_TRUE(slow.kind == Kind::kSlow && doctor.kind == Kind::kSlow && over.kind == Kind::kOver);
  EXPECT_LE(named, 12);
  EXPECT_EQ(slow.straggler.first_step, 501);
  EXPECT_EQ(called, 19);
  EXPECT_TRUE(doctor.straggler.doctor);
  EXPECT_GE(cleared, 30);
  EXPECT_LE(cleared, 40);
  EXPECT_TRUE(watched.stragglers.empty());
}

TEST(Stragglers, 5_percent_are_named_after_5_windows_and_4_never) {
  const RankMesh mesh = synthetic_mesh(1, 8, 1);
  const auto slow_by = [](double factor) { return [=](int rank, int64_t) { return rank == 2 ? factor : 1.0; }; };
  const Watched five = watch(mesh, 10, 0.0, 1, slow_by(1.0501));
  ASSERT_FALSE(five.news.empty());
  EXPECT_EQ(five.news[0].first, 4);
  EXPECT_TRUE(watch(mesh, 200, 0.0, 1, slow_by(1.04)).news.empty());
}

// 10,000 windows are half a million steps.
TEST(Stragglers, no_rank_is_blamed_in_10000_clean_windows) {
  const struct {
    int pp, dp, tp, windows;
    double noise;
  } cases[] = {{2, 2, 2, 4000, 0.03}, {1, 8, 1, 2000, 0.05}, {2, 2, 1, 2000, 0.03}, {4, 1, 1, 2000, 0.03}};
  for (const auto& c : cases) {
    const Watched watched = watch(synthetic_mesh(c.pp, c.dp, c.tp), c.windows, c.noise, 11);
    for (const auto& [window, news] : watched.news)
      EXPECT_NE(news.kind, Kind::kSlow) << to_string(synthetic_mesh(c.pp, c.dp, c.tp), news.straggler) << " window "
                                        << window;
  }
}

TEST(Stragglers, of_a_slow_stage_no_rank_is_blamed) {
  const RankMesh mesh = synthetic_mesh(8, 2, 2);
  // The second stage always has uneven work; the fourth becomes slow as a whole; the head's stage is slow by nature.
  const Watched watched = watch(mesh, 100, 0.02, 5, [&](int rank, int64_t w) {
    if (mesh.stage_of(rank) == 1) return 1.3;
    return mesh.stage_of(rank) == 3 && w > 20 ? 1.2 : 1.0;
  });
  bool stage_named = false;
  for (const auto& [window, news] : watched.news) {
    EXPECT_EQ(news.kind, Kind::kStages);
    stage_named = stage_named || news.stage == 1;
  }
  EXPECT_TRUE(stage_named);
}

TEST(Stragglers, where_a_stage_is_one_rank_it_is_compared_with_stages_of_equal_work) {
  const RankMesh mesh = synthetic_mesh(6, 1, 1);
  EXPECT_EQ(roles_of(mesh), (std::vector<std::vector<int>>{{0}, {5}, {1, 2, 3, 4}}));
  const Watched watched = watch(mesh, 5, 0.01, 5, [](int rank, int64_t) { return rank == 3 ? 1.1 : 1; });
  ASSERT_FALSE(watched.stragglers.empty());
  EXPECT_EQ(watched.stragglers[0].world_rank, 3);
}

// Ranks with the same place in their tp groups share a role if there are enough of them: unequal parts of the
// vocabulary are not a fault.
TEST(Stragglers, tp_ranks_may_have_unequal_work) {
  const RankMesh mesh = synthetic_mesh(2, 4, 2);
  EXPECT_EQ(roles_of(mesh)[1], (std::vector<int>{1, 3, 5, 7}));
  const auto uneven = [&](int rank, int64_t) { return mesh.grid.rank_on("tp", rank) == 0 ? 1.2 : 1.0; };
  EXPECT_TRUE(watch(mesh, 50, 0.01, 5, uneven).news.empty());
  const Watched watched =
      watch(mesh, 3, 0.01, 5, [&](int rank, int64_t w) { return rank == 9 ? 1.1 : uneven(rank, w); });
  ASSERT_EQ(watched.stragglers.size(), 1u);
  EXPECT_EQ(watched.stragglers[0].world_rank, 9);
}

TEST(Stragglers, slow_sends_name_the_sender) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  StragglerWatch watch(mesh);
  Draws draws(1);
  for (int64_t w = 0; w < 3; ++w) {
    RankWindow window = synthetic_window(mesh, w, 0.02, draws);
    // 16 sends per step: together a tenth of it.
    window.ranks[3][RankQuantity::kSend] += 0.1f * window.ranks[3][RankQuantity::kStep] / 16;
    watch.add(window);
  }
  ASSERT_EQ(watch.stragglers().size(), 1u);
  EXPECT_EQ(watch.stragglers()[0].world_rank, 3);
  EXPECT_EQ(watch.stragglers()[0].what, RankQuantity::kSend);
  EXPECT_NE(to_string(mesh, watch.stragglers()[0]).find("rank 3 [pp0 dp1 tp1] on node0 (GPU 0000:03:00.0): its sends"),
            std::string::npos);
}

TEST(Stragglers, waiting_for_data_is_reported_once_and_blames_no_rank) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  StragglerWatch watch(mesh);
  Draws draws(1);
  int reported = 0;
  for (int64_t w = 0; w < 20; ++w) {
    RankWindow window = synthetic_window(mesh, w, 0.02, draws);
    for (RankTimes& rank : window.ranks) rank[RankQuantity::kData] = 0.08f * rank[RankQuantity::kStep];
    for (const StragglerNews& news : watch.add(window)) {
      EXPECT_EQ(news.kind, Kind::kData);
      EXPECT_NEAR(news.share, 0.08, 0.001);
      ++reported;
    }
  }
  EXPECT_EQ(reported, 1);
}

// A slow rank in the slowest stage costs every microbatch its delay; in a stage that waits for others anyway, less.
TEST(WhatIf, says_so_where_nothing_is_lost) {
  EXPECT_EQ(what_if_text(0.1, 0.09), "without it a step would take 90 ms instead of 100 ms");
  EXPECT_EQ(what_if_text(0.06377, 0.06377), "a step would not be shorter without it");
}

TEST(WhatIf, a_step_without_the_slow_rank_is_the_simulators) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  Draws draws(1);
  for (const int faulty : {1, 6}) {
    const auto slow = [&](int rank, int64_t) { return rank == faulty ? 1.5 : 1; };
    RankWindow clean = synthetic_window(mesh, 0, 0, draws), slowed = synthetic_window(mesh, 0, 0, draws, slow);
    // Means without the random hiccups.
    for (RankWindow* window : {&clean, &slowed})
      for (size_t rank = 0; rank < window->ranks.size(); ++rank) {
        RankTimes& times = window->ranks[rank];
        times[RankQuantity::kForward] = times[RankQuantity::kCompute] / 3;
        times[RankQuantity::kBackward] = times[RankQuantity::kCompute] * 2 / 3;
        times[RankQuantity::kStep] = 1;
      }
    const auto without = step_without(mesh, slowed, faulty);
    ASSERT_TRUE(without.has_value());
    // 8 microbatches: rank 1 delays its stage by half of 0.3 s, which makes it, with 0.45 s, the slower of the two
    // (0.39 s); rank 6, in the slower stage, delays it by 0.195 s. The pipeline takes 7 microbatches of its slowest
    // stage, and one through both.
    const double expected =
        faulty == 1 ? (7 * 0.45 + 0.45 + 0.39) / 8 - (7 * 0.39 + 0.3 + 0.39) / 8 : (7 + 1) * 0.195 / 8;
    EXPECT_NEAR(1 - *without, expected, 0.01) << faulty;
    EXPECT_DOUBLE_EQ(*step_without(mesh, clean, faulty), 1);
    EXPECT_NEAR(*step_without(mesh, slowed, 0), 1, 1e-6) << "a healthy rank costs nothing";
  }
  RankMesh unknown = mesh;
  unknown.schedule = "of another version";
  EXPECT_FALSE(step_without(unknown, synthetic_window(mesh, 0, 0, draws), 0).has_value());
}

}  // namespace
}  // namespace tri
