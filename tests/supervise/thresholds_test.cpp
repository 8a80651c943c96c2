// run.dir/supervise.conf: its effects, and the messages about wrong lines.
#include "lib/supervise/thresholds.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lib/supervise/driver.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::string error_of(const std::string& text) {
  const auto parsed = thresholds_from(text, "supervise.conf");
  if (parsed) return "";
  const std::string& message = parsed.error().message;
  return message.ends_with("\n1 error") ? message.substr(0, message.rfind('\n')) : message;
}

TEST(Thresholds, lines_change_what_they_name_and_nothing_else) {
  const Thresholds defaults;
  const Thresholds t = value_or_throw(
      thresholds_from("# slower storage\n\nsilent_seconds :  30.5  # of an agent\r\nattempts: 5\nstopped_seconds: 0",
                      "supervise.conf"));
  EXPECT_EQ(t.silent_seconds, 30.5);
  EXPECT_EQ(t.attempts, 5);
  EXPECT_EQ(t.stopped_seconds, 0);
  EXPECT_EQ(t.end_seconds, defaults.end_seconds);
  EXPECT_EQ(value_or_throw(thresholds_from("", "")).silent_seconds, defaults.silent_seconds);
}

TEST(Thresholds, each_wrong_line_is_named_with_its_number_and_a_remedy) {
  EXPECT_EQ(error_of("\nsilent_second: 4"),
            "supervise.conf:2: silent_second: unknown threshold; did you mean silent_seconds?");
  EXPECT_EQ(error_of("# one\nxyzzy: 4"), "supervise.conf:2: xyzzy: unknown threshold");
  for (const char* text : {"flap_seconds", "flap_seconds 4", "- 4"})
    EXPECT_EQ(error_of(text), "supervise.conf:1: expected lines such as \"silent_seconds: 30\"") << text;
  for (const char* value : {"x", "4 s", "-1", ".nan", ".inf", "1e999", "0x", "[4]", "{}", ""})
    EXPECT_NE(error_of(fmt::format("flap_seconds: {}", value)).find("supervise.conf:1: flap_seconds: "),
              std::string::npos)
        << value;
  for (const char* text : {"attempts: 0", "exclusion_hours: 0", "silent_seconds: 1"})
    EXPECT_NE(error_of(text).find("number >= "), std::string::npos) << error_of(text);
  EXPECT_NE(error_of("attempts: 4\nattempts: 5").find("supervise.conf:2: "), std::string::npos);
  EXPECT_NE(error_of("attempts: 0\nsilent_seconds: 1").find("2 errors"), std::string::npos) << "all of them at once";
}

TEST(Thresholds, the_file_is_reread_and_an_invalid_one_changes_nothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "supervise.conf";
  RunFolderLog event_log(folder / "", folder / "checkpoints", "job");
  EXPECT_EQ(event_log.thresholds().attempts, Thresholds{}.attempts);
  std::ofstream(path) << "attempts: 7\n";
  EXPECT_EQ(event_log.thresholds().attempts, 7);
  std::ofstream(path) << "attempts: 9\nsilent_seconds: soon\n";
  EXPECT_EQ(event_log.thresholds().attempts, 7) << "no half of a file counts";
  std::ofstream(path) << "attempts: 8\n";
  EXPECT_EQ(event_log.thresholds().attempts, 8);
  std::filesystem::remove(path);
  EXPECT_EQ(event_log.thresholds().attempts, Thresholds{}.attempts);
}

}  // namespace
}  // namespace tri
