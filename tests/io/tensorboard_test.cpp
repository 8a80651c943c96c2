#include "io/tensorboard/event_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/io/forked.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::minutes kLong{10};  // longer means a hang

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Returns the events of a file; empty if a checksum differs or a record is truncated.
std::vector<std::string> records_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto masked = [](std::string_view part) {
    const uint32_t crc = crc32c(part);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    if (at + 12 > bytes.size()) return {};
    const auto length = number_at<uint64_t>(bytes, at);
    if (number_at<uint32_t>(bytes, at + 8) != masked(std::string_view(bytes).substr(at, 8))) return {};
    if (at + 16 + length > bytes.size()) return {};
    records.push_back(bytes.substr(at + 12, length));
    if (number_at<uint32_t>(bytes, at + 12 + length) != masked(records.back())) return {};
    at += 16 + length;
  }
  return records;
}

TEST(Crc32c, of_known_texts) {
  // From RFC 3720, B.4, and the usual check value.
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(TensorBoard, each_start_has_a_file_that_hides_what_is_done_again) {
  const TemporaryFolder folder;
  const std::string dir = folder / "run/tensorboard";
  {
    TensorBoardFiles files(dir, 1);
    files.scalars(1, {{"train/loss", 2.5}, {"train/learning_rate", 0.1}});
    ASSERT_TRUE(files.flush(kLong));
  }
  TensorBoardFiles files(dir, 300);
  ASSERT_TRUE(files.flush(kLong));
  const auto paths = files_of(dir);
  ASSERT_EQ(paths.size(), 2u);
  // The records are version, session, scalars.
  bool hides = false, has_scalars = false;
  for (const std::string& path : paths) {
    const auto records = records_of(path);
    ASSERT_GE(records.size(), 2u) << path;
    EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
    // step 300, session_log {status: START}
    hides = hides || records[1].find(std::string("\x10\xac\x02\x3a\x02\x08\x01", 7)) != std::string::npos;
    if (records.size() < 3) continue;
    // Summary.value {tag, simple_value}: 2.5f
    const std::string loss("\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x20\x40", 19);
    has_scalars = records[2].find(loss) != std::string::npos;
  }
  EXPECT_TRUE(hides);
  EXPECT_TRUE(has_scalars);
}

TEST(TensorBoard, a_folder_that_cannot_be_made_is_tried_again) {
  const TemporaryFolder folder;
  const std::string dir = folder / "taken";
  std::ofstream(dir) << "a file where the folder should be";
  TensorBoardFiles files(dir, 1);
  files.scalars(1, {{"train/loss", 1}});
  ASSERT_TRUE(files.flush(kLong));
  fs::remove(dir);
  files.scalars(2, {{"train/loss", 1}});
  ASSERT_TRUE(files.flush(kLong));
  const auto paths = files_of(dir);
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_EQ(records_of(paths[0]).size(), 3u);
}

// A file with a size limit accepts the first part of a record, like a full disk.
TEST(TensorBoard, a_full_disk_leaves_one_file_of_whole_records) {
  const TemporaryFolder folder;
  const std::string dir = folder / "tensorboard";
  in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit limits {};
    ::getrlimit(RLIMIT_FSIZE, &limits);
    limits.rlim_cur = 150;  // the header, a record, and a part of the next
    ::setrlimit(RLIMIT_FSIZE, &limits);
    TensorBoardFiles files(dir, 1);
    for (int step = 1; step <= 20; ++step) files.scalars(step, {{"train/loss", step}});
    files.flush(kLong);
    limits.rlim_cur = RLIM_INFINITY;
    ::setrlimit(RLIMIT_FSIZE, &limits);
    files.scalars(21, {{"train/loss", 21}});
    files.flush(kLong);
    return std::string();
  });
  const auto paths = files_of(dir);
  ASSERT_EQ(paths.size(), 1u);
  const auto records = records_of(paths[0]);
  ASSERT_EQ(records.size(), 4u);                                              // version, session, steps 1 and 21
  EXPECT_NE(records[3].find(std::string("\x10\x15", 2)), std::string::npos);  // step 21
}

TEST(TensorBoard, a_file_that_takes_nothing_at_first_is_no_second_file) {
  const TemporaryFolder folder;
  const std::string dir = folder / "tensorboard";
  in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit limits {};
    ::getrlimit(RLIMIT_FSIZE, &limits);
    limits.rlim_cur = 0;
    ::setrlimit(RLIMIT_FSIZE, &limits);
    TensorBoardFiles files(dir, 1);
    for (int step = 1; step <= 20; ++step) files.scalars(step, {{"train/loss", step}});
    files.flush(kLong);
    return std::string();
  });
  EXPECT_EQ(files_of(dir).size(), 1u);
}

}  // namespace
}  // namespace tri
