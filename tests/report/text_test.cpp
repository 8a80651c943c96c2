#include "lib/report/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "lib/report/terminal_chart.h"
#include "tests/io/temporary_folder.h"
#include "tests/report/synthetic/synthetic_run.h"

namespace tri {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool is_plain(const std::string& text) { return plain(text) == text; }

RunData synthetic(const TemporaryFolder& folder, const SyntheticRun& run) {
  write_synthetic_run(folder / run.name, run);
  return value_or_throw(read_run_data(folder / run.name));
}

TEST(ReportText, says_in_forty_lines_what_the_page_says) {
  TemporaryFolder folder;
  const std::string text = report_text({synthetic(folder, {.steps = 300, .restarts = 2})});
  for (const char* said :
       {"synthetic", "step 300 of 300", "8 ranks", "Validation loss", "MFU", "compute 70 %", "productive",
        "Checkpoints", "the GPU is lost (XID 79)", "lr.peak: 0.0003 -> 0.00015", "3 attempts"})
    EXPECT_NE(text.find(said), text.npos) << said << " is not in:\n" << text;
  EXPECT_LE(lines_of(text).size(), 40u);
}

TEST(ReportText, of_many_changes_the_important_come_first_and_the_others_are_counted) {
  RunData run{.dir = "/run", .name = "run"};
  for (const char* name : {"checkpoint.every", "lr.decay_steps", "lr.peak", "parallel.dp", "parallel.pp",
                           "parallel.pp_transfers", "parallel.tp", "parallel.tp_transfers", "run.dir", "run.steps"})
    run.changes.push_back({.start = 1, .name = name, .before = "1", .after = "2"});
  run.changes.push_back({.start = 2, .name = "lr.peak", .before = "2", .after = "3"});
  const std::string text = report_text({run});
  const auto newer = text.find("start 3: lr.peak: 2 -> 3"), older = text.find("start 2: lr.peak: 1 -> 2"),
             steps = text.find("run.steps"), tp = text.find("parallel.tp:");
  ASSERT_NE(newer, text.npos) << text;
  ASSERT_NE(tp, text.npos) << text;
  EXPECT_LT(newer, older);
  EXPECT_LT(older, steps);
  EXPECT_LT(steps, tp);
  EXPECT_EQ(text.find("lr.decay_steps"), text.npos) << text;
  EXPECT_NE(text.find("and 5 more"), text.npos) << text;

  run.changes.resize(2);
  EXPECT_EQ(report_text({run}).find("more"), std::string::npos);
}

TEST(ReportText, of_many_differences_between_runs_the_important_come_first) {
  RunData a{.dir = "/a", .name = "a"}, b{.dir = "/b", .name = "b"};
  for (int i = 0; i < 12; ++i) {
    a.config.push_back({fmt::format("cluster.field{}", i), "1"});
    b.config.push_back({fmt::format("cluster.field{}", i), "2"});
  }
  a.config.push_back({"lr.peak", "1e-3"});
  b.config.push_back({"lr.peak", "2e-3"});
  const std::string text = report_text({a, b});
  EXPECT_NE(text.find("Config differs  lr.peak: 1e-3 | 2e-3"), text.npos) << text;
  EXPECT_NE(text.find("and 5 more"), text.npos) << text;
}

TEST(ReportText, is_within_its_lines_and_columns_whatever_runs_say) {
  TemporaryFolder folder;
  for (const size_t count : {1u, 2u, 3u, 8u}) {
    std::vector<RunData> runs;
    for (size_t i = 0; i < count; ++i) {
      runs.push_back(synthetic(folder, {.name = "run" + std::to_string(i),
                                        .steps = 200,
                                        .restarts = 6,
                                        .peak_lr = 1e-4 * (1 + static_cast<double>(i))}));
      runs.back().name = "\x1b[31m" + std::string(300, 'n') + "\n\xff";
      runs.back().incidents.assign(50, {.time = 1, .kind = "\x1b[2J", .text = std::string(500, 'x') + "\r\n\x9b"});
      runs.back().remarks.assign(30, "\x07 bell");
    }
    for (const int columns : {40, 80, 100, 200}) {
      const auto lines = lines_of(report_text(runs, columns));
      EXPECT_LE(lines.size(), 40u);
      for (const std::string& line : lines) {
        EXPECT_LE(columns_of(line), columns) << line;
        EXPECT_TRUE(is_plain(line)) << line;
      }
    }
  }
}

// A multi-byte character takes one column.
TEST(ReportText, nothing_is_cut_of_a_fact_that_fits_on_two_lines) {
  RunData run{.dir = "/runs/none", .name = "none"};
  for (int length = 80; length < 120; ++length) {
    run.remarks = {std::string(1, 'a')};
    while (columns_of(run.remarks[0]) < length) run.remarks[0] += columns_of(run.remarks[0]) % 7 == 0 ? " " : "█";
    const std::string text = report_text({run}, 100);
    EXPECT_EQ(text.find("…"), text.npos) << text;
    for (const std::string& line : lines_of(text)) EXPECT_LE(columns_of(line), 100);
  }
}

TEST(ReportText, of_a_run_without_anything) {
  const std::string text = report_text({RunData{.dir = "/runs/none", .name = "none"}});
  EXPECT_NE(text.find("none"), text.npos);
  EXPECT_NE(text.find("/runs/none"), text.npos);
}

TEST(ReportText, several_runs_stand_side_by_side_with_what_differs) {
  TemporaryFolder folder;
  const std::string text = report_text({synthetic(folder, {.name = "first", .peak_lr = 1e-4}),
                                        synthetic(folder, {.name = "second", .steps = 200, .peak_lr = 2e-4})});
  const auto lines = lines_of(text);
  EXPECT_NE(lines[0].find("first"), std::string::npos);
  EXPECT_NE(lines[0].find("second"), std::string::npos);
  EXPECT_NE(text.find("lr.peak: 5e-05 | 0.0001"), text.npos) << text;
}

TEST(LiveScreen, fits_any_screen) {
  TemporaryFolder folder;
  const RunData run = synthetic(folder, {.steps = 200});
  RunStatus status{.run_dir = run.dir, .state = RunState::kRuns, .world_size = 8, .step = 200, .steps = 300};
  status.rate = RunRate{.step = 200, .seconds_per_step = 2.5, .tokens_per_s = 1e6, .loss = 2.0};
  LiveView view{.status = status,
                .metrics = run.metrics,
                .incidents = run.incidents,
                .name = "\x1b[2Jname\n",
                .clock = "12:34:56"};
  view.incidents.push_back({.time = 1, .kind = "failure", .text = "\x1b]0;title\x07" + std::string(1000, 'x')});
  view.heat.assign(10, "heat map");
  for (const int columns : {8, 20, 40, 80, 109, 110, 200, 500})
    for (const int lines : {1, 2, 3, 5, 8, 12, 24, 50, 100}) {
      const auto screen = live_screen(view, {.columns = columns, .lines = lines});
      EXPECT_LE(static_cast<int>(screen.size()), lines);
      for (const std::string& line : screen) {
        EXPECT_LE(columns_of(line), columns) << columns << " x " << lines << ": " << line;
        EXPECT_TRUE(is_plain(line)) << line;
      }
    }
}

TEST(LiveScreen, shows_state_curve_bar_heat_map_and_events_where_there_is_room) {
  TemporaryFolder folder;
  const RunData run = synthetic(folder, {.steps = 200, .restarts = 1});
  RunStatus status{.run_dir = run.dir, .state = RunState::kRuns, .world_size = 8, .step = 200, .steps = 300};
  status.rate = RunRate{.step = 200, .seconds_per_step = 2.5, .tokens_per_s = 1e6, .loss = 2.0};
  LiveView view{.status = status,
                .metrics = run.metrics,
                .heat = {"pp0 map"},
                .incidents = run.incidents,
                .name = "mine",
                .clock = "12:34:56"};
  std::string all;
  for (const std::string& line : live_screen(view, {.columns = 100, .lines = 40})) all += line + "\n";
  for (const char* said :
       {"mine  runs  step 200 of 300 (67 %)  ETA 4m10s  8 ranks", "loss (logarithmic), steps 1 to 200", "┤",
        "█ compute 70 %", "pp0 map", "the GPU is lost", "12:34:56"})
    EXPECT_NE(all.find(said), all.npos) << said << " is not in:\n" << all;
  const auto small = live_screen(view, {.columns = 40, .lines = 6});
  EXPECT_EQ(small.back().substr(0, 8), "12:34:56");
}

TEST(LiveScreen, keys_choose_what_is_shown) {
  TemporaryFolder folder;
  const RunData run = synthetic(folder, {.steps = 200, .restarts = 1});
  RunStatus status{.run_dir = run.dir, .state = RunState::kRuns, .world_size = 8, .step = 200, .steps = 300};
  status.slowest = SlowRank{.world_rank = 5, .seconds = 3, .of_median = 1.2};
  const double saved = run.metrics.checkpoints.back().time;
  LiveView view{.status = status,
                .metrics = run.metrics,
                .heat = {"pp0 map"},
                .log = {"a line of the log"},
                .name = "mine",
                .clock = "12:34:56",
                .now = saved + 65,
                .attempts = 2};
  const auto shown = [&](ScreenSize size = {.columns = 100, .lines = 40}) {
    std::string all;
    for (const std::string& line : live_screen(view, size)) all += line + "\n";
    return all;
  };
  const auto has = [&](const std::string& text) { return shown().find(text) != std::string::npos; };
  EXPECT_TRUE(has("attempt 2") && has("1m05s ago") && has("  lr ") && has("  norm ") && has("a line of the log"))
      << shown();
  EXPECT_TRUE(has("GPU of rank 0: 1") && has(" MHz  6") && has(" W  61 °C  71.0 GiB in use")) << shown();
  EXPECT_TRUE(view.choice.press('l', 3));
  EXPECT_TRUE(has("loss (linear)")) << shown();
  EXPECT_TRUE(view.choice.press('s', 3));
  EXPECT_TRUE(has("slowest rank 5: 3.0 s for its last step, 1.20 x the median") && !has("pp0 map")) << shown();
  EXPECT_TRUE(view.choice.press('p', 3));
  EXPECT_TRUE(has("PAUSED"));
  EXPECT_TRUE(view.choice.press('?', 3));
  EXPECT_TRUE(has("m  show the next quantity in the heat map") && !has("┤")) << shown();
  for (const size_t quantity : {1u, 2u, 0u}) {
    EXPECT_TRUE(view.choice.press('m', 3));
    EXPECT_EQ(view.choice.quantity, quantity);
  }
  EXPECT_FALSE(view.choice.press('x', 3));
  view.choice = {};
  for (const std::string& line : live_screen(view, {.columns = 50, .lines = 20}))
    EXPECT_EQ(line.find("…"), std::string::npos) << "cut within a word: " << line;
}

TEST(LiveScreen, says_what_is_done_between_two_attempts) {
  RunStatus status{.run_dir = "/run", .state = RunState::kRestarts, .world_size = 8, .step = 20, .steps = 300};
  status.restart = "attempt 1 ended: death by signal: rank 5; attempt 2 was launched 3.0 s ago";
  std::string all;
  for (const std::string& line : live_screen({.status = status, .metrics = {}, .name = "mine", .clock = ""}, {}))
    all += line + "\n";
  EXPECT_NE(all.find("restarting"), all.npos) << all;
  EXPECT_NE(all.find("attempt 1 ended: death by signal"), all.npos) << all;
}

TEST(TerminalChart, text_breaks_between_its_parts) {
  EXPECT_EQ(wrapped("loss 1  norm 2  lr 3", 15), (std::vector<std::string>{"loss 1  norm 2", "lr 3"}));
  EXPECT_EQ(wrapped("", 15), std::vector<std::string>{""});
  EXPECT_EQ(wrapped("one long part", 5), std::vector<std::string>{"one …"});
}

TEST(TerminalChart, plain_leaves_text_and_no_commands) {
  EXPECT_EQ(plain("höher, 高い, │"), "höher, 高い, │");
  EXPECT_EQ(plain("a\x1b[2Jb\nc\td\x7f"), "a?[2Jb?c?d?");
  EXPECT_EQ(plain("\xc2\x9b"
                  "31m"),
            "??31m")
      << "a control character of its own in ISO 8859-1";
  EXPECT_EQ(plain("\xff\xc3"), "??");
  EXPECT_EQ(plain(""), "");
}

TEST(TerminalChart, cut_and_padded_count_characters) {
  EXPECT_EQ(cut("äöü", 3), "äöü");
  EXPECT_EQ(cut("äöüß", 3), "äö…");
  EXPECT_EQ(cut("abc", 0), "");
  EXPECT_EQ(columns_of(padded("äö", 5)), 5);
}

TEST(TerminalChart, a_rising_line_rises) {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(i);
  const auto lines = curve_chart(values, 29, 3);  // 20 characters of it, 40 x 12 dots
  ASSERT_EQ(lines.size(), 3u);
  for (const std::string& line : lines) EXPECT_EQ(columns_of(line), 29);
  const auto first_dot = [](const std::string& line) {
    const std::string empty = "\xe2\xa0\x80";
    const size_t axis = std::min(line.find("┤"), line.find("│"));
    size_t at = axis + 3, column = 0;
    while (line.compare(at, 3, empty) == 0) at += 3, ++column;
    return column;
  };
  EXPECT_GT(first_dot(lines[0]), first_dot(lines[1]));
  EXPECT_GT(first_dot(lines[1]), first_dot(lines[2]));
  EXPECT_NE(lines[0].find("98"), std::string::npos);
}

TEST(TerminalChart, halving_is_straight_on_a_logarithmic_scale) {
  std::vector<double> values, logarithms;
  for (int i = 0; i < 80; ++i) values.push_back(std::pow(0.5, i)), logarithms.push_back(-i);
  // Only the dots: 40 characters of three bytes each after the axis.
  const auto dots = [](const std::vector<std::string>& lines) {
    std::vector<std::string> ends;
    for (const std::string& line : lines) ends.push_back(line.substr(line.size() - 120));
    return ends;
  };
  const auto straight = dots(curve_chart(logarithms, 49, 5));
  EXPECT_EQ(dots(curve_chart(values, 49, 5, ChartScale::kLogarithmic)), straight);
  EXPECT_NE(dots(curve_chart(values, 49, 5)), straight);
}

TEST(TerminalChart, numbers_on_the_axis_lose_digits_but_are_never_cut) {
  for (const double value : {1.0, -1.0, 1e-7, -1.2345e-7, 123456.0, -123456.0, 1e100, -1e-300}) {
    const auto lines = curve_chart(std::vector<double>{value, value}, 30, 1);
    EXPECT_EQ(lines[0].find("…"), std::string::npos) << lines[0];
    EXPECT_EQ(columns_of(lines[0]), 30) << lines[0];
  }
}

TEST(TerminalChart, values_that_are_not_finite_leave_gaps) {
  for (const std::vector<double>& values : {std::vector<double>{}, {kUnknown}, {kUnknown, 1, kUnknown}, {5, 5, 5}})
    for (const std::string& line : curve_chart(values, 40, 4, ChartScale::kLogarithmic))
      EXPECT_LE(columns_of(line), 40);
}

TEST(TerminalChart, a_bar_shares_out_its_width) {
  const std::vector<NamedShare> shares = {{"a", 0.5}, {"b", 0.25}, {"c", 0.25}};
  EXPECT_EQ(share_bar(shares, 8), "████▓▓▒▒");
  EXPECT_EQ(share_legend(shares), "█ a 50 %  ▓ b 25 %  ▒ c 25 %");
  EXPECT_EQ(columns_of(share_bar(shares, 7)), 7);
}

}  // namespace
}  // namespace tri
