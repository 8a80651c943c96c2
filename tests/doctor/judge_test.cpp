// Findings from recorded measurements: faulty machines are named, healthy ones are not.
#include "lib/doctor/judge.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "lib/doctor/checks.h"

namespace tri {
namespace {

const std::vector<Rule> kRules = {
    {.name = "copies", .unit = "GB/s", .cpu = {}, .cuda = {.bad_at = 10, .suspect_times = 1.3, .bad_times = 2}},
    {.name = "fsync", .unit = "ms", .better = Better::kLower, .cuda = {.suspect_at = 1000, .suspect_times = 20}},
    {.name = "bits", .better = Better::kEqual, .unequal = Verdict::kBad},
    {.name = "lanes", .cuda = {.suspect_times = 1.01}},
};
enum { kCopies, kFsync, kBits, kLanes };

std::vector<Finding> judged(const std::vector<Measurement>& list) { return judge(kRules, DeviceKind::kCuda, list); }

Measurement number(int rule, const std::string& host, double value, const std::string& part = "") {
  return {.rule = rule, .host = host, .part = part, .value = value};
}
Measurement bits(const std::string& host, const std::string& text, const std::string& group = "") {
  return {.rule = kBits, .host = host, .group = group, .text = text};
}

// Adds a node's copies between all pairs of `gpus`; `rate` returns the speed of each.
template <class Rate>
void add_node(const std::string& host, int gpus, const Rate& rate, std::vector<Measurement>& list) {
  for (int from = 0; from < gpus; ++from)
    for (int to = 0; to < gpus; ++to) {
      if (from == to) continue;
      const auto name = [&](int gpu) { return fmt::format("GPU {}", gpu); };
      list.push_back({.rule = kCopies,
                      .world_rank = from,
                      .host = host,
                      .part = name(from) + " → " + name(to),
                      .end_a = host + ": " + name(from),
                      .end_b = host + ": " + name(to),
                      .value = rate(from, to)});
    }
}

TEST(Judge, a_slow_pair_is_named_with_its_median) {
  std::vector<Measurement> list;
  add_node(
      "node06", 8, [](int from, int to) { return 378.0 + (from + to) % 5; }, list);
  add_node(
      "node07", 8, [](int from, int to) { return from == 3 && to == 5 ? 112.0 : 380.0; }, list);
  const auto found = judged(list);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "node07: GPU 3 → GPU 5: 112 GB/s, but the median is 382 (copies)");
  EXPECT_EQ(found[0].verdict, Verdict::kBad);
  EXPECT_EQ(found[0].host, "node07");
  EXPECT_EQ(found[0].part, "GPU 3 → GPU 5");
}

TEST(Judge, a_part_most_of_whose_copies_are_slow_is_named_in_their_place) {
  for (const int gpus : {3, 4, 8}) {
    std::vector<Measurement> list;
    add_node(
        "node07", gpus, [](int from, int to) { return from == 1 || to == 1 ? 250.0 : 380.0; }, list);
    const auto found = judged(list);
    ASSERT_EQ(found.size(), 1u) << gpus << " GPUs";
    EXPECT_EQ(found[0].host, "node07");
    EXPECT_EQ(found[0].part, "GPU 1");
    EXPECT_EQ(found[0].verdict, Verdict::kSuspect);
    const std::string begin = fmt::format("node07: GPU 1: {} of its {} transfers are slow", 2 * gpus - 2, 2 * gpus - 2);
    EXPECT_EQ(found[0].text.substr(0, begin.size()), begin);
  }
}

TEST(Judge, two_slow_parts_are_both_named) {
  std::vector<Measurement> list;
  add_node(
      "a", 8, [](int from, int to) { return from == 1 || to == 1 || from == 6 || to == 6 ? 100.0 : 380.0; }, list);
  const auto found = judged(list);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(std::set<std::string>({found[0].part, found[1].part}), std::set<std::string>({"GPU 1", "GPU 6"}));
}

TEST(Judge, of_two_the_worse_is_found_whichever_way_is_better) {
  auto found = judged({number(kCopies, "a", 380), number(kCopies, "b", 200)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].host, "b");
  EXPECT_EQ(found[0].verdict, Verdict::kSuspect);
  found = judged({number(kFsync, "a", 100), number(kFsync, "b", 2)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "a: 100 ms, but the median is 2 (fsync)");
}

TEST(Judge, floors_need_no_others) {
  auto found = judged({number(kCopies, "a", 9)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "a: 9 GB/s is below the limit of 10 (copies)");
  EXPECT_EQ(found[0].verdict, Verdict::kBad);
  found = judged({number(kFsync, "a", 1001, "/scratch")});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "a: /scratch: 1001 ms is above the limit of 1000 (fsync)");
  EXPECT_TRUE(judged({number(kCopies, "a", 10), number(kFsync, "a", 1000)}).empty()) << "the limits themselves will do";
}

TEST(Judge, limits_are_those_of_the_jobs_device) {
  EXPECT_TRUE(judge(kRules, DeviceKind::kCpu, std::vector{number(kCopies, "a", 1), number(kCopies, "b", 380)}).empty());
}

TEST(Judge, what_the_hardware_could_do_counts_without_others) {
  Measurement lanes = number(kLanes, "a", 8, "GPU 2");
  lanes.wanted = 16;
  const auto found = judged({lanes});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "a: GPU 2: 8, but the hardware supports 16 (lanes)");
  EXPECT_EQ(found[0].verdict, Verdict::kSuspect);
}

TEST(Judge, a_link_that_is_down_is_found_by_those_that_are_up) {
  const auto found = judged({number(kLanes, "a", 400), number(kLanes, "b", 0), number(kLanes, "c", 400)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].host, "b");
  EXPECT_TRUE(judged({number(kLanes, "a", 0), number(kLanes, "b", 0)}).empty()) << "unused on all nodes";
}

TEST(Judge, groups_are_judged_apart) {
  Measurement near = number(kCopies, "a", 50), far = number(kCopies, "a", 20);
  near.group = "near";
  far.group = "far";
  EXPECT_TRUE(judged({near, far}).empty());
}

TEST(Judge, the_minority_of_texts_is_found) {
  auto found = judged({bits("a", "1"), bits("b", "1"), bits("c", "2")});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "c: 2, but 2 of 3 have 1 (bits)");
  EXPECT_EQ(found[0].verdict, Verdict::kBad);
  EXPECT_EQ(judged({bits("a", "1"), bits("b", "2")}).size(), 2u) << "without a majority all are suspects";
  EXPECT_TRUE(judged({bits("a", "1", "x"), bits("b", "2", "y")}).empty()) << "groups may differ";
}

TEST(Judge, a_problem_is_bad_and_reported) {
  const auto found = judged({{.rule = kFsync, .host = "a", .part = "/scratch", .problem = "No space left on device"},
                             number(kFsync, "b", 2)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "a: /scratch: No space left on device (fsync)");
  EXPECT_EQ(found[0].verdict, Verdict::kBad);
  EXPECT_EQ(worst(found), Verdict::kBad);
  EXPECT_EQ(worst({}), Verdict::kHealthy);
}

TEST(Judge, the_worst_comes_first) {
  const auto found = judged({number(kCopies, "a", 380), number(kCopies, "b", 200), number(kCopies, "c", 381),
                             bits("a", "1"), bits("b", "1"), bits("c", "2")});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].verdict, Verdict::kBad);
  EXPECT_EQ(found[1].verdict, Verdict::kSuspect);
}

TEST(Judge, the_better_of_two_measurements_stays) {
  std::vector<Measurement> first = {number(kCopies, "a", 100), number(kCopies, "b", 380), number(kFsync, "a", 5)};
  for (size_t i = 0; i < first.size(); ++i) first[i].world_rank = first[i].host == "a" ? 0 : 1;
  std::vector<Measurement> again = first;
  again[0].value = 300;
  again[1].value = 200;
  again[2].value = 7;
  keep_better(kRules, first, again);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].value, 300);
  EXPECT_EQ(first[1].value, 380);
  EXPECT_EQ(first[2].value, 5);
}

TEST(Judge, a_problem_that_has_passed_is_none_and_a_new_one_does_not_count) {
  std::vector<Measurement> first = {{.rule = kFsync, .host = "a", .problem = "EIO"}, number(kCopies, "a", 380)};
  keep_better(kRules, first, {number(kFsync, "a", 2, "/scratch"), {.rule = kCopies, .host = "a", .problem = "busy"}});
  ASSERT_EQ(first.size(), 2u);
  EXPECT_TRUE(judged(first).empty());
  first = {{.rule = kFsync, .host = "a", .problem = "EIO"}};
  keep_better(kRules, first, {{.rule = kFsync, .host = "a", .problem = "EIO"}});
  EXPECT_EQ(judged(first).size(), 1u) << "one that lasts does";
}

TEST(Judge, numbers_have_three_digits) {
  EXPECT_EQ(number_text(112.4), "112");
  EXPECT_EQ(number_text(3.046), "3.05");
  EXPECT_EQ(number_text(0.00424), "0.00424");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(123456.7), "123457");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "unlimited");
}

TEST(Checks, every_row_can_find_something_and_has_a_name_of_its_own) {
  std::set<std::string> names;
  for (const Check& check : all_checks()) {
    const Rule& rule = check.rule;
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_NE(check.run, nullptr) << rule.name;
    const auto judges = [](const Limits& l) {
      return l.suspect_at || l.bad_at || l.suspect_times > 0 || l.bad_times > 0;
    };
    EXPECT_TRUE(rule.better == Better::kEqual || judges(rule.cuda)) << rule.name;
    for (const Limits& l : {rule.cpu, rule.cuda}) {
      const bool lower = rule.better == Better::kLower;
      if (l.suspect_at && l.bad_at) {
        EXPECT_TRUE(lower ? *l.suspect_at < *l.bad_at : *l.suspect_at > *l.bad_at);
      }
      if (l.bad_times > 0) {
        EXPECT_GT(l.bad_times, l.suspect_times) << rule.name;
      }
    }
  }
}

TEST(Checks, what_is_found_on_a_gpu_can_be_repeated_but_wrong_bits_never_are) {
  for (const Check& check : all_checks()) {
    const std::string name = check.rule.name;
    const bool training = name == "repeatable_step" || name == "equal_steps";
    EXPECT_EQ(check.rule.repeat == Repeat::kNo, training) << name;
  }
}

}  // namespace
}  // namespace tri
