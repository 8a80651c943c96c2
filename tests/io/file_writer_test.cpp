// Writes that hang, simulated by tasks that wait for the test.
#include "io/base/file_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <vector>

#include "io/base/within.h"

namespace tri {
namespace {

using namespace std::chrono_literals;

Result<void> full() { return file_error("f: No space left on device"); }

TEST(FileWriter, tasks_run_in_order_and_their_poster_does_not_wait) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::vector<int> ran;
  const auto writer = value_or_throw(FileWriter::start({.path = "f"}));
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(writer->post(1, [&, i, gone]() -> Result<void> {
      gone.wait();
      ran.push_back(i);
      return {};
    }));
  EXPECT_FALSE(writer->flush(1ms));
  go.set_value();
  EXPECT_TRUE(writer->flush());
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(FileWriter, a_full_queue_drops_and_reports_it_once) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::mutex mutex;
  std::vector<std::string> reports;
  std::atomic<int> ran{0};
  const auto writer = value_or_throw(FileWriter::start({.path = "f", .max_bytes = 10, .report = [&](const auto& text) {
                                                          const std::lock_guard lock(mutex);
                                                          reports.push_back(text);
                                                        }}));
  int taken = 0;
  for (int i = 0; i < 25; ++i)
    taken += writer->post(1, [&, gone]() -> Result<void> {
      gone.wait();
      ++ran;
      return {};
    });
  EXPECT_EQ(taken, 10);
  go.set_value();
  EXPECT_TRUE(writer->flush());
  EXPECT_EQ(ran, 10);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0],
            "f: storage has not accepted the 10 bytes that are queued for this file; the run continues, but writes to "
            "this file are lost until they succeed again");
  EXPECT_EQ(reports[1], "f: writes succeed again; 15 writes were lost");
}

TEST(FileWriter, a_file_that_fails_now_and_then_is_reported_once_a_minute_at_most) {
  std::vector<std::string> reports;
  const auto writer = value_or_throw(
      FileWriter::start({.path = "f", .report = [&](const std::string& text) { reports.push_back(text); }}));
  for (int i = 0; i < 100; ++i) writer->post(1, [i] { return i % 2 == 0 ? full() : Result<void>(); });
  EXPECT_TRUE(writer->flush());
  EXPECT_EQ(reports.size(), 2u);
}

TEST(FileWriter, a_task_that_throws_is_a_failure) {
  std::vector<std::string> reports;
  const auto writer = value_or_throw(
      FileWriter::start({.path = "f", .report = [&](const std::string& text) { reports.push_back(text); }}));
  writer->post(1, []() -> Result<void> { throw std::runtime_error("thrown"); });
  EXPECT_TRUE(writer->flush());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports[0].starts_with("f: thrown")) << reports[0];
}

TEST(FileWriter, one_that_hangs_is_left_behind_and_reports_nothing_more) {
  const auto go = std::make_shared<std::promise<void>>();
  const auto done = std::make_shared<std::promise<void>>();
  const auto reports = std::make_shared<std::atomic<int>>(0);
  {
    const auto writer =
        value_or_throw(FileWriter::start({.path = "f", .report = [reports](const std::string&) { ++*reports; }}));
    writer->post(1, [gone = go->get_future().share()] { return gone.wait(), full(); });
    writer->post(1, [done]() -> Result<void> { return done->set_value(), Result<void>(); });
  }
  go->set_value();
  done->get_future().wait();
  EXPECT_EQ(*reports, 0);
}

// A supervisor's query every few seconds must not leave a thread behind each time.
TEST(Within, storage_that_hangs_is_queried_once_per_path) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto ask = [&](const std::string& path) {
    return within(
        path, 1ms,
        [calls, gone] {
          ++*calls;
          gone.wait();
          return 1;
        },
        -1);
  };
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ask("a"), -1);
  EXPECT_EQ(within(
                "b", 10min, [] { return 2; }, -1),
            2);
  EXPECT_LE(*calls, 1);
  go.set_value();
  // Once a query has completed, the next one may start.
  while (within(
             "a", 10min, [] { return 3; }, -1) != 3)
    std::this_thread::yield();
  EXPECT_EQ(*calls, 1);
}

TEST(Within, what_fails_has_the_other_value) {
  EXPECT_EQ(within(
                "c", 10min, []() -> int { throw std::runtime_error("no"); }, -1),
            -1);
  EXPECT_EQ(within(
                "c", 10min, [] { return 5; }, -1),
            5);
}

}  // namespace
}  // namespace tri
