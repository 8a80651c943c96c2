// The map of ranks: its contents, and that it fits.
#include "lib/observe/ranks/heat_map.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"
#include "tests/observe/synthetic_ranks.h"

namespace tri {
namespace {

struct Map {
  std::string text;
  size_t lines = 0, widest = 0;  // as displayed, without colours
};
Map map_of(const RankMesh& mesh, const RankWindow& window, const std::string& quantity, const HeatScreen& screen) {
  const Heat heat = value_or_throw(heat_of(mesh, window, quantity));
  Map map{.text = heat_map_text(mesh, window, heat, screen)};
  size_t width = 0;
  bool colour = false;
  for (const char c : map.text) {
    if (c == '\033') colour = true;
    if (c == '\n') {
      map.widest = std::max(map.widest, width);
      width = 0;
      ++map.lines;
    } else if (!colour) {
      ++width;
    } else if (c == 'm') {
      colour = false;
    }
  }
  return map;
}

RankWindow window_with(const RankMesh& mesh, int faulty, double factor) {
  Draws draws(1);
  return synthetic_window(mesh, 3, 0.005, draws, [=](int rank, int64_t) { return rank == faulty ? factor : 1.0; });
}

TEST(HeatMap, names_the_slow_rank_and_not_the_heads_stage) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  const RankWindow window = window_with(mesh, 1, 1.15);
  const Map map = map_of(mesh, window, "compute", {});
  EXPECT_NE(map.text.find("rank 1 [pp0 dp0 tp1] on node0 (GPU 0000:01:00.0): 34"), std::string::npos) << map.text;
  EXPECT_EQ(standing_out(value_or_throw(heat_of(mesh, window, "compute"))), std::vector<int>{1});
  EXPECT_EQ(standing_out(value_or_throw(heat_of(mesh, window, "rate"))), std::vector<int>{1});
  EXPECT_TRUE(standing_out(value_or_throw(heat_of(mesh, window, "bubble"))).empty()) << "waiting ranks are not slow";
  EXPECT_NE(map_of(mesh, window_with(mesh, -1, 1), "compute", {}).text.find("no rank is slower"), std::string::npos);
}

TEST(HeatMap, fits_the_screen_at_any_size_and_shows_the_slow_rank) {
  const struct {
    int pp, dp, tp;
  } meshes[] = {{1, 1, 1},   {1, 8, 1},     {2, 2, 2},  {8, 8, 8}, {8, 192, 8},
                {35, 40, 8}, {1, 16384, 1}, {64, 1, 1}, {3, 5, 6}};
  for (const auto& m : meshes)
    for (const HeatScreen screen : {HeatScreen{80, 24, false}, HeatScreen{80, 24, true}, HeatScreen{200, 60, true}}) {
      const RankMesh mesh = synthetic_mesh(m.pp, m.dp, m.tp);
      const int faulty = mesh.world_size() / 2;
      const Map map = map_of(mesh, window_with(mesh, faulty, 1.5), "compute", screen);
      EXPECT_LE(map.lines, static_cast<size_t>(screen.lines)) << map.text;
      EXPECT_LE(map.widest, static_cast<size_t>(screen.columns)) << map.text;
      if (mesh.world_size() < 3 || (m.dp * m.tp == 1 && m.pp < 5)) continue;
      EXPECT_NE(map.text.find(fmt::format("rank {} [", faulty)), std::string::npos) << map.text;
      EXPECT_EQ(map.text.find('\033') != std::string::npos, screen.colours);
      const size_t body = map.text.find('\n'), legend = map.text.find("one character");
      if (legend == std::string::npos) continue;
      EXPECT_EQ(std::count(map.text.begin() + static_cast<std::ptrdiff_t>(body),
                           map.text.begin() + static_cast<std::ptrdiff_t>(legend), '#'),
                1)
          << map.text;
    }
}

// As on the screen of --watch, where the map has twelve lines.
TEST(HeatMap, keeps_its_numbers_where_many_ranks_are_slow) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  Draws draws(1);
  const RankWindow window = synthetic_window(mesh, 3, 0.005, draws, [](int rank, int64_t) {
    return rank % 4 == 1 ? 1.3 : rank == 3 ? 1.2 : 1.0;
  });
  const Map map = map_of(mesh, window, "compute", {.columns = 80, .lines = 12});
  EXPECT_NE(map.text.find("tp1"), std::string::npos) << map.text;
  EXPECT_NE(map.text.find("and 2 more"), std::string::npos) << map.text;
  EXPECT_LE(map.lines, 12u);
}

TEST(HeatMap, every_quantity_can_be_shown_and_others_are_refused_by_name) {
  const RankMesh mesh = synthetic_mesh(2, 2, 2);
  const RankWindow window = window_with(mesh, -1, 1);
  for (const std::string& quantity : heat_quantities()) {
    const Heat heat = value_or_throw(heat_of(mesh, window, quantity));
    const auto json = nlohmann::json::parse(heat_map_json(mesh, window, heat));
    EXPECT_EQ(json["quantity"], quantity);
    EXPECT_EQ(json["values"].size(), 2u);
    EXPECT_EQ(json["values"][1][1].size(), 2u);
    EXPECT_FALSE(heat_map_text(mesh, window, heat, {}).empty());
  }
  const auto refused = heat_of(mesh, window, "warmth");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("forward"), std::string::npos);
}

TEST(HeatMap, an_absent_folder_differs_from_a_run_without_times) {
  const TemporaryFolder folder;
  const auto absent = newest_window(folder / "nosuch");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ExitCode::kUsage) << absent.error().message;
  const auto early = newest_window(folder.path());
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code, ExitCode::kFile) << early.error().message;
}

TEST(HeatMap, json_has_the_values_by_place) {
  const RankMesh mesh = synthetic_mesh(2, 3, 2);
  const RankWindow window = window_with(mesh, 9, 1.2);
  const auto json =
      nlohmann::json::parse(heat_map_json(mesh, window, value_or_throw(heat_of(mesh, window, "compute"))));
  EXPECT_NEAR(json["values"][1][1][1].get<double>(), 1e3 * window.ranks[9][RankQuantity::kCompute], 1e-3);
  ASSERT_EQ(json["standing_out"].size(), 1u);
  EXPECT_EQ(json["standing_out"][0]["rank"], 9);
  EXPECT_EQ(json["standing_out"][0]["place"]["dp"], 1);
  EXPECT_EQ(json["first_step"], 151);
}

}  // namespace
}  // namespace tri
