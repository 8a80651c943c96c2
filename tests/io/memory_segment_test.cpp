// Segments of shared memory: only whole ones are found, and orphans are removed.
#include "io/checkpoint/memory_segment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "io/base/file.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr const char* kRun = "/runs/one";

SegmentName name_of(int rank, int slot = 0, const std::string& run_dir = kRun, const std::string& host = "node.7") {
  return {.run = run_key(run_dir), .host = host, .world_rank = rank, .copy = false, .slot = slot};
}

std::unique_ptr<MemorySegment> written(const std::string& folder, const SegmentName& name,
                                       const std::string& run_dir = kRun) {
  auto made = MemorySegment::create(folder, name, 4096, 1000);
  EXPECT_TRUE(made) << made.error().message;
  auto segment = std::move(made).value();
  segment->begin();
  std::memset(segment->payload(), 7, 1000);
  const auto done = segment->finish({.world_rank = name.world_rank,
                                     .world_size = 4,
                                     .slot = name.slot,
                                     .step = 12,
                                     .layout = 5,
                                     .attempt = "attempt",
                                     .run_dir = run_dir},
                                    "table");
  EXPECT_TRUE(done) << done.error().message;
  return segment;
}

void flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 4));
}

TEST(MemorySegment, is_read_as_it_was_written) {
  const TemporaryFolder folder;
  const auto segment = written(folder.path(), name_of(3, 1));
  const auto found = read_segment(folder.path(), name_of(3, 1).text());
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found.value().identity.step, 12);
  EXPECT_EQ(found.value().identity.world_size, 4);
  EXPECT_EQ(found.value().identity.attempt, "attempt");
  EXPECT_EQ(found.value().identity.run_dir, kRun);
  EXPECT_EQ(found.value().table, "table");
  EXPECT_EQ(found.value().bytes, segment_bytes(4096, 1000));
  EXPECT_EQ(found.value().payload_offset, segment->payload_offset());
  EXPECT_EQ(found.value().name.host, "node.7");
}

TEST(MemorySegment, that_is_being_rewritten_is_not_found_until_it_is_complete_again) {
  const TemporaryFolder folder;
  const auto segment = written(folder.path(), name_of(0));
  segment->begin();
  EXPECT_FALSE(read_segment(folder.path(), name_of(0).text()));
  segment->payload()[0] = 1;
  EXPECT_FALSE(read_segment(folder.path(), name_of(0).text()));
  EXPECT_TRUE(segment->finish_copy([](std::string_view table) -> Result<void> {
    EXPECT_EQ(table, "table");
    return {};
  }));
  EXPECT_TRUE(read_segment(folder.path(), name_of(0).text()));
}

TEST(MemorySegment, with_a_flipped_bit_in_header_or_table_is_refused) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string() + "/" + name_of(0).text();
  for (const int64_t at : {9, 16, 20, 40, 90, 4096, 4100}) {
    { const auto segment = written(folder.path(), name_of(0)); }
    ASSERT_TRUE(read_segment(folder.path(), name_of(0).text()));
    flip(path, at);
    EXPECT_FALSE(read_segment(folder.path(), name_of(0).text())) << "byte " << at;
  }
}

TEST(MemorySegment, that_was_truncated_or_renamed_is_refused) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string() + "/" + name_of(0).text();
  { const auto segment = written(folder.path(), name_of(0)); }
  std::filesystem::rename(path, folder.path().string() + "/" + name_of(1).text());
  EXPECT_FALSE(read_segment(folder.path(), name_of(1).text()));
  std::filesystem::rename(folder.path().string() + "/" + name_of(1).text(), path);
  for (const int64_t bytes : {4097, 4096, 100, 0}) {
    std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
    EXPECT_FALSE(read_segment(folder.path(), name_of(0).text())) << bytes;
  }
}

TEST(MemorySegment, keeps_its_contents_if_it_is_mapped_again) {
  const TemporaryFolder folder;
  { const auto segment = written(folder.path(), name_of(0)); }
  const auto again = MemorySegment::create(folder.path(), name_of(0), 4096, 1000);
  ASSERT_TRUE(again);
  EXPECT_EQ(again.value()->payload()[999], 7);
  EXPECT_TRUE(read_segment(folder.path(), name_of(0).text()));
  const auto larger = MemorySegment::create(folder.path(), name_of(0), 4096, 100000);
  ASSERT_TRUE(larger);
  EXPECT_FALSE(read_segment(folder.path(), name_of(0).text()));
}

// A store to a page that is not reserved would end the process if memory is full.
TEST(MemorySegment, has_all_of_its_pages_reserved_also_if_its_file_had_holes) {
  const TemporaryFolder folder(parent_in_memory());
  const std::string path = folder.path().string() + "/" + name_of(0).text();
  const int64_t bytes = segment_bytes(4096, 100000);
  const auto reserved = [&] {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return int64_t{info.st_blocks} * 512;
  };
  for (const int64_t written : {int64_t{0}, int64_t{4096}, bytes - 4096, bytes}) {
    std::ofstream(path, std::ios::trunc | std::ios::binary) << std::string(static_cast<size_t>(written), 'x');
    std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
    const auto segment = MemorySegment::create(folder.path(), name_of(0), 4096, 100000);
    ASSERT_TRUE(segment) << segment.error().message;
    EXPECT_GE(reserved(), bytes) << written;
    EXPECT_EQ(segment.value()->memory()[std::max<int64_t>(written - 1, 0)], written > 0 ? 'x' : '\0');
  }
}

TEST(MemorySegment, names_are_parsed_only_if_they_are_whole) {
  const SegmentName name = name_of(17, 1);
  const auto parsed = segment_name_from(name.text());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->text(), name.text());
  EXPECT_EQ(parsed->world_rank, 17);
  for (const char* text : {"", "trireme.memory.", "trireme.memory.a.b.c", "trireme.recorder.x.1",
                           "trireme.memory.0.node.00001.own.2", "trireme.memory.0.node.1.own.0"})
    EXPECT_FALSE(segment_name_from(text)) << text;
}

TEST(MemorySegments, of_ended_runs_are_removed_and_others_stay) {
  const TemporaryFolder folder;
  { const auto own = written(folder.path(), name_of(0)); }
  { const auto other = written(folder.path(), name_of(0, 0, "/runs/two"), "/runs/two"); }
  // This process lives.
  EXPECT_EQ(remove_orphaned_segments(folder.path(), kRun, 0), 0);
  // The writer of a damaged header is unknown, so only its age counts.
  const std::string path = folder.path().string() + "/" + name_of(0, 0, "/runs/two").text();
  flip(path, 20);
  EXPECT_EQ(remove_orphaned_segments(folder.path(), kRun, 3600), 0);
  EXPECT_EQ(remove_orphaned_segments(folder.path(), kRun, -1), 1);
  EXPECT_EQ(list_segments(folder.path()).size(), 1u);
}

TEST(MemorySegments, of_a_run_are_removed_on_one_host_except_for_those_to_keep) {
  const TemporaryFolder folder;
  for (const int rank : {0, 1}) written(folder.path(), name_of(rank));
  written(folder.path(), name_of(2, 0, kRun, "node8"));
  EXPECT_EQ(remove_segments(folder.path(), kRun, "node.7", {name_of(1).text()}), 1);
  EXPECT_EQ(list_segments(folder.path()).size(), 2u);
  EXPECT_EQ(remove_segments(folder.path(), kRun, ""), 2);
}

}  // namespace
}  // namespace tri
