// Stored autotuning results are read back unchanged, also as earlier versions stored them; anything else is refused.
#include "lib/tune/tuning_file.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

const LinearPlace kRowOfMlp{Branch::kMlp, LinearSplit::kRow};

Tuning sample() {
  Tuning tuning;
  tuning.gemms = {{"GPU A, cuBLASLt 1", {{"1x2x3", "plain", "00ff", 12.25, 13.5}, {"4x5x6", "fused", "aa", 1, 2}}},
                  {"GPU B, cuBLASLt 1", {{"1x2x3", "epilogue", "bb", 3, 4}}}};
  tuning.splits["tp2:a"].of(kRowOfMlp, Pass::kBackward) = {.num_splits = 2, .direct = true};
  tuning.splits["tp2:ab"] = {};
  return tuning;
}

std::string folder_of(const TemporaryFolder& folder) { return folder.path().string(); }

TEST(TuningFile, comes_back_as_it_was) {
  const TemporaryFolder folder;
  EXPECT_EQ(value_or_throw(read_tuning(folder_of(folder))), Tuning());
  write_tuning(folder_of(folder), sample());
  EXPECT_EQ(value_or_throw(read_tuning(folder_of(folder))), sample());
  write_tuning(folder / "absent", sample());
  EXPECT_FALSE(std::filesystem::exists(folder / "absent"));
}

TEST(TuningFile, unknown_and_missing_values_are_errors_that_name_them) {
  const std::string whole = to_json(sample());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const auto& [text, named] : {std::pair{with("\"form\"", "\"shape\""), std::string("'shape' is unknown")},
                                    {with("\"direct\": true", "\"direct\": 1"), "boolean"},
                                    {with("\"splits\": 2", "\"splits\": -2"), "-2 splits"},
                                    {with("\"version\": 1", "\"version\": 2"), "the version is 2"},
                                    {with("\"overlap_splits\"", "\"splits\""), "'splits' is unknown"},
                                    {with("12.25", "\"x\""), "number"},
                                    {whole.substr(0, whole.size() / 2), "parse"},
                                    {std::string("[]"), "version"}}) {
    const auto wrong = tuning_from(text, "run/tuning.json");
    ASSERT_FALSE(wrong) << text;
    EXPECT_EQ(wrong.error().code, ExitCode::kFile);
    EXPECT_TRUE(wrong.error().message.starts_with("run/tuning.json: ")) << wrong.error().message;
    EXPECT_NE(wrong.error().message.find(named), std::string::npos) << wrong.error().message;
  }
}

TEST(TuningFile, of_earlier_versions_is_taken_over_without_what_a_kill_cut_short) {
  const TemporaryFolder folder;
  write_all(folder / "gemm_algorithms.txt",
            "# GPU A, cuBLASLt 1\n1x2x3 plain 00ff 12.25 13.50\n4x5x6 fused aa 1.00 2.00\n7x8x9 plain");
  write_all(folder / "overlap_splits.txt", "tp16:a 0 1 2 4 1 2 1 16d\ntp16:b 0 1 2 4 1 2 1 1");
  Tuning expected;
  expected.gemms = {sample().gemms.front()};
  OverlapSplits& splits = expected.splits["tp16:a"];
  splits.forward = {{{OverlapSplit{0}, OverlapSplit{1}}, {OverlapSplit{2}, OverlapSplit{4}}}};
  splits.backward = {{{OverlapSplit{1}, OverlapSplit{2}}, {OverlapSplit{1}, OverlapSplit{16, true}}}};
  EXPECT_EQ(value_or_throw(read_tuning(folder_of(folder))), expected);
  write_tuning(folder_of(folder), sample());
  EXPECT_EQ(value_or_throw(read_tuning(folder_of(folder))), sample()) << "the new file counts";
}

TEST(TuningFile, only_a_file_that_is_not_there_holds_none) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "tuning.json");
  EXPECT_FALSE(read_tuning(folder_of(folder))) << "it can't be read, so its contents are unknown";
}

TEST(GemmChoices, of_a_shape_the_first_counts) {
  std::vector<GemmChoices> all;
  add_choices({"B", {{"2", "plain", "x", 1, 1}}}, all);
  add_choices({"A", {{"1", "plain", "a", 1, 1}}}, all);
  add_choices({"B", {{"2", "fused", "y", 2, 2}, {"1", "plain", "z", 3, 3}}}, all);
  EXPECT_EQ(all, (std::vector<GemmChoices>{{"A", {{"1", "plain", "a", 1, 1}}},
                                           {"B", {{"1", "plain", "z", 3, 3}, {"2", "plain", "x", 1, 1}}}}));
}

}  // namespace
}  // namespace tri
