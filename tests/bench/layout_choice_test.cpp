// Which layouts a sweep tries, and in which order. Uses no clock.
#include "lib/bench/layout_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lib/bench/sweep.h"
#include "lib/comm/host/messages.h"
#include "lib/engine/rank_tensors.h"

namespace tri {
namespace {

constexpr int64_t kAmple = int64_t{1} << 50;

Config small_config() {
  Config c;
  c.model = {.layers = 8, .hidden = 64, .heads = 8, .vocab = 257, .seq_len = 64};
  c.data.global_batch = 32;
  return c;
}

LayoutChoice choose(const Config& config, int world, int64_t most_bytes = kAmple, int limit = 1000) {
  return value_or_throw(choose_layouts(config, world, most_bytes, limit));
}

std::set<std::tuple<int, int, int>> meshes_of(const LayoutChoice& choice) {
  std::set<std::tuple<int, int, int>> meshes;
  for (const ParallelLayout& l : choice.layouts) meshes.emplace(l.tp, l.pp, l.dp);
  return meshes;
}

TEST(Layouts, every_one_obeys_the_rules_fits_and_comes_once) {
  Config config = small_config();
  config.data.global_batch = 48;
  for (const int world : {1, 2, 3, 4, 6, 8, 16}) {
    const int64_t most = predicted_bytes(value_or_throw(resolve_config(config, 1))) / 2;
    const LayoutChoice choice = choose(config, world, most);
    for (size_t i = 0; i < choice.layouts.size(); ++i) {
      const ParallelLayout& layout = choice.layouts[i];
      SCOPED_TRACE(to_string(layout));
      const auto resolved = resolve_config(with_layout(config, layout), world);
      ASSERT_TRUE(resolved.ok()) << resolved.error().message;
      EXPECT_EQ(layout_of(resolved.value()), layout);
      EXPECT_EQ(resolved.value().data.global_batch, config.data.global_batch);
      EXPECT_LE(predicted_bytes(resolved.value()), most);
      EXPECT_EQ(std::count(choice.layouts.begin(), choice.layouts.end(), layout), 1);
    }
  }
}

// No two numbers are equal, and none is a default.
TEST(Layouts, every_field_reaches_the_other_ranks) {
  const ParallelLayout layout{.tp = 2,
                              .cp = 4,
                              .pp = 6,
                              .dp = 3,
                              .chunks = 5,
                              .schedule = Schedule::kInterleaved,
                              .zero = 0,
                              .micro_batch = 7,
                              .recompute = Recompute::kFull,
                              .layers_per_chunk = "29x1 3"};
  EXPECT_EQ(from_bytes<ParallelLayout>(to_bytes(layout)), layout);
}

TEST(Layouts, the_bytes_are_those_of_the_fullest_stage_of_unequal_ones) {
  const auto bytes = [](const std::string& layers) {
    Config config = small_config();
    config.parallel = {.pp = 4, .layers_per_chunk = layers};
    return predicted_bytes(value_or_throw(resolve_config(config, 4)));
  };
  EXPECT_GT(bytes("1,1,5,1"), bytes("1,1,3,3"));
  EXPECT_GT(bytes("1,1,5,1"), bytes("even"));
}

TEST(Layouts, all_meshes_are_there_when_all_fit) {
  EXPECT_EQ(meshes_of(choose(small_config(), 4)),
            (std::set<std::tuple<int, int, int>>{{1, 1, 4}, {1, 2, 2}, {1, 4, 1}, {2, 1, 2}, {2, 2, 1}, {4, 1, 1}}));
  Config narrow = small_config();
  narrow.cluster.ranks_per_node = 2;
  const LayoutChoice choice = choose(narrow, 4);
  for (const ParallelLayout& layout : choice.layouts) EXPECT_LE(layout.tp, 2);
  EXPECT_EQ(choice.refused, 0);
  Config fp8 = small_config();  // 64 columns over tp 8 are too few for FP8 GEMMs
  fp8.precision.compute = Dtype::kBF16;
  fp8.precision.gemm = GemmFormat::kFp8;
  const LayoutChoice refusing = choose(fp8, 8);
  for (const ParallelLayout& layout : refusing.layouts) EXPECT_LE(layout.tp, 4);
  EXPECT_GT(refusing.refused, 0);
}

TEST(Layouts, the_own_one_comes_first_and_once_even_if_no_rule_would_pick_it) {
  Config config = small_config();
  config.parallel = {.pp = 2, .schedule = Schedule::kGpipe, .zero = 0};
  const LayoutChoice gpipe = choose(config, 4);
  EXPECT_TRUE(gpipe.own_first);
  EXPECT_EQ(gpipe.layouts.front(), layout_of(value_or_throw(resolve_config(config, 4))));
  for (size_t i = 1; i < gpipe.layouts.size(); ++i) {
    EXPECT_NE(gpipe.layouts[i].schedule, Schedule::kGpipe);
    EXPECT_NE(gpipe.layouts[i].zero, 0);
  }
  const LayoutChoice plain = choose(small_config(), 4);
  EXPECT_TRUE(plain.own_first);
  EXPECT_EQ(std::count(plain.layouts.begin(), plain.layouts.end(), plain.layouts.front()), 1);
}

TEST(Layouts, a_config_that_does_not_suit_the_ranks_is_swept_all_the_same) {
  Config config = small_config();
  config.parallel.tp = 8;
  const LayoutChoice choice = choose(config, 4);
  EXPECT_FALSE(choice.own_first);
  EXPECT_NE(choice.own_problem.find("4 ranks"), std::string::npos) << choice.own_problem;
  EXPECT_EQ(meshes_of(choice).size(), 6u);
}

TEST(Layouts, what_no_layout_puts_right_is_the_configs_own_error) {
  Config config = small_config();
  config.model.hidden = 65;
  const auto choice = choose_layouts(config, 4, kAmple, 10);
  ASSERT_FALSE(choice.ok());
  EXPECT_NE(choice.error().message.find("model.heads"), std::string::npos) << choice.error().message;
}

TEST(Layouts, memory_is_saved_only_where_it_must_be) {
  const Config config = small_config();
  for (const ParallelLayout& layout : choose(config, 4).layouts) {
    EXPECT_EQ(layout.zero, 1);
    EXPECT_EQ(layout.recompute, Recompute::kNone);
  }
  // Bytes saved: 0 without saving, 20 by zero 2, 10 by norms, 30 by selective, 60 by full recomputation.
  const auto bytes = [](const Config& c) -> int64_t {
    const std::map<Recompute, int> saved = {
        {Recompute::kNone, 0}, {Recompute::kNorms, 10}, {Recompute::kSelective, 30}, {Recompute::kFull, 60}};
    return 100 - (c.parallel.zero == 2 ? 20 : 0) - saved.at(c.parallel.recompute);
  };
  const auto savings = [&](int64_t most) {
    std::set<std::pair<int, Recompute>> pairs;
    for (const ParallelLayout& l : value_or_throw(choose_layouts(config, 2, most, 1000, bytes)).layouts)
      if (l.dp == 2) pairs.emplace(l.zero, l.recompute);
    return pairs;
  };
  using Pairs = std::set<std::pair<int, Recompute>>;
  EXPECT_EQ(savings(100), (Pairs{{1, Recompute::kNone}}));
  EXPECT_EQ(savings(90), (Pairs{{2, Recompute::kNone}, {1, Recompute::kNorms}}));
  EXPECT_EQ(savings(80), (Pairs{{2, Recompute::kNone}, {1, Recompute::kSelective}}));
  EXPECT_EQ(savings(70), (Pairs{{2, Recompute::kNorms}, {1, Recompute::kSelective}}));
  EXPECT_EQ(savings(50), (Pairs{{2, Recompute::kSelective}, {1, Recompute::kFull}}));
  EXPECT_EQ(savings(20), (Pairs{{2, Recompute::kFull}}));
  EXPECT_EQ(savings(19), Pairs{});
  const LayoutChoice none = value_or_throw(choose_layouts(config, 2, 19, 1000, bytes));
  EXPECT_TRUE(none.layouts.empty());
  EXPECT_GT(none.too_large, 0);
  EXPECT_NE(none.own_problem, "");
}

TEST(Layouts, the_limit_takes_one_of_each_mesh_before_a_second) {
  const LayoutChoice all = choose(small_config(), 8), few = choose(small_config(), 8, kAmple, 11);
  ASSERT_EQ(few.layouts.size(), 11u);
  EXPECT_TRUE(std::equal(few.layouts.begin(), few.layouts.end(), all.layouts.begin()));
  EXPECT_EQ(few.beyond_limit, static_cast<int>(all.layouts.size()) - 11);
  EXPECT_EQ(all.beyond_limit, 0);
  EXPECT_EQ(meshes_of(few).size(), 10u) << "own layout, then one of each mesh";
}

TEST(Layouts, the_guess_prefers_less_bubble_less_work_and_more_rows) {
  Config config = small_config();
  config.parallel.pp = 4;
  config.parallel.dp = 1;
  const auto guess = [&](auto change) {
    Config changed = config;
    change(changed);
    return guessed_slowness(value_or_throw(resolve_config(changed, changed.parallel.tp * changed.parallel.pp)));
  };
  const double plain = guess([](Config&) {});
  EXPECT_LT(guess([](Config& c) { c.parallel.pp = 1; }), plain);
  EXPECT_GT(guess([](Config& c) { c.parallel.recompute = Recompute::kSelective; }), plain);
  EXPECT_GT(guess([](Config& c) { c.parallel.recompute = Recompute::kFull; }),
            guess([](Config& c) { c.parallel.recompute = Recompute::kSelective; }));
  EXPECT_LT(guess([](Config& c) {
              c.parallel.schedule = Schedule::kInterleaved;
              c.parallel.chunks = 2;
            }),
            plain);
  EXPECT_LT(guess([](Config& c) { c.model.seq_len *= 2; }), plain);
  EXPECT_GT(guess([](Config& c) { c.parallel.tp = 2; }), plain);
}

TEST(Sweep, best_first_and_failures_last) {
  std::vector<SweepRow> rows(5);
  const double ms[] = {30, 0, 10, 20, 0};
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].ms = ms[i];
    rows[i].layout.micro_batch = static_cast<int>(i);
    if (ms[i] == 0) rows[i].problem = "no memory";
  }
  sort_best_first(rows);
  std::vector<int> order;
  for (const SweepRow& row : rows) order.push_back(row.layout.micro_batch);
  EXPECT_EQ(order, (std::vector<int>{2, 3, 0, 1, 4}));
}

TEST(Sweep, leaves_memory_besides_the_arena) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(room_for_arena(DeviceKind::kCpu, 64 * kGiB, 8), 4 * kGiB);
  EXPECT_EQ(room_for_arena(DeviceKind::kCuda, 40 * kGiB, 8), 38 * kGiB);
  EXPECT_EQ(room_for_arena(DeviceKind::kCuda, 100 * kGiB, 8), 96 * kGiB);
  EXPECT_EQ(room_for_arena(DeviceKind::kCuda, kGiB, 8), 0);
}

}  // namespace
}  // namespace tri
