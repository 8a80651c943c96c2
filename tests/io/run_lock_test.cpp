#include "io/checkpoint/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "tests/io/forked.h"
#include "tests/io/temporary_folder.h"
#include "tests/storage/points.h"

namespace tri {
namespace {

std::string host() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string text_of(const std::string& host, int pid) {
  return fmt::format("host {}\npid {}\nattempt old-1\nstarted 2026-01-01T00:00:00Z\n", host, pid);
}

int dead_pid() {
  const pid_t child = fork_alone();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

// Returns the message of a refusal, or the log of taking the lock.
std::string taking(const std::string& dir, RunLock::How how = RunLock::How::kFlock) {
  testing::internal::CaptureStderr();
  const auto lock = RunLock::take({.run = dir}, "new-1", {}, how);
  const std::string log = testing::internal::GetCapturedStderr();
  return lock ? "taken " + log : lock.error().message;
}

TEST(RunLock, a_second_holder_is_refused_with_the_name_of_the_first) {
  const TemporaryFolder dir;
  for (const RunLock::How how : {RunLock::How::kFlock, RunLock::How::kTextAlone}) {
    {
      const auto first = RunLock::take({.run = dir.path()}, "old-1", {}, how);
      ASSERT_TRUE(first) << first.error().message;
      EXPECT_TRUE(first.value().check());
      const std::string refused = taking(dir.path(), how);
      EXPECT_NE(refused.find(dir / "run.lock"), std::string::npos) << refused;
      EXPECT_NE(refused.find(fmt::format("in use by process {} on {} (attempt old-1, since 2", ::getpid(), host())),
                std::string::npos)
          << refused;
      EXPECT_TRUE(first.value().check()) << "the refused one changed it";
      EXPECT_EQ(in_child([&] { return taking(dir.path(), how).substr(0, 5); }), refused.substr(0, 5));
    }
    EXPECT_EQ(taking(dir.path(), how), "taken ") << "given up, so there is nothing to say";
  }
}

TEST(RunLock, what_a_killed_holder_left_is_taken_over_with_a_word) {
  const TemporaryFolder dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = fork_alone();
  if (child == 0) {
    const auto lock = RunLock::take({.run = dir.path()}, "old-1");
    if (!lock || ::write(ends[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  ::close(ends[1]);
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  ::close(ends[0]);
  const std::string refused = taking(dir.path());
  EXPECT_NE(refused.find(fmt::format("process {} on", child)), std::string::npos) << refused;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const std::string taken = taking(dir.path());
  EXPECT_EQ(taken.rfind("taken ", 0), 0u) << taken;
  EXPECT_NE(taken.find(fmt::format("taken over from process {} on {} (attempt old-1", child, host())),
            std::string::npos)
      << taken;
}

// Each call on a lock file may encounter storage that is temporarily unavailable, which does not mean another holder.
TEST(RunLock, transient_errors_are_reported_and_keep_the_lock) {
  const TemporaryFolder dir;
  for (const char* phase : {"stat", "read"})
    for (const auto& [name, number] : {std::pair{"EIO", EIO}, {"ESTALE", ESTALE}}) {
      const std::string said = in_child([&, name = name, number = number]() -> std::string {
        const auto lock = value_or_throw(RunLock::take({.run = dir.path()}, "new-1"));
        watch_storage(dir.path(), fmt::format("0/{}/1/fail={}", phase, name));
        const auto first = lock.check();
        if (first) return "not noticed";
        if (first.error().os_error != number) return first.error().message;
        return lock.check() ? "held" : lock.check().error().message;
      });
      EXPECT_EQ(said, "held") << phase << " " << name;
    }
}

TEST(RunLock, another_machine_sees_whose_it_is) {
  const TemporaryFolder dir;
  const std::string folder = dir / "checkpoints";
  const auto error = [&] { return see_lock(folder, "new-1").error(); };
  EXPECT_EQ(error().os_error, ENOENT) << "no mount";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(error().os_error, ENOENT) << "a folder of its own";
  {
    const auto other = value_or_throw(RunLock::take({.run = dir.path(), .checkpoints = folder}, "old-1"));
    EXPECT_EQ(error().os_error, ENOENT);
    EXPECT_NE(error().message.find("attempt old-1"), std::string::npos) << error().message;
  }
  EXPECT_EQ(error().os_error, ENOENT) << "given up";
  const auto held = value_or_throw(RunLock::take({.run = dir.path(), .checkpoints = folder}, "new-1"));
  EXPECT_TRUE(see_lock(folder, "new-1"));
}

TEST(RunLock, without_flock_only_the_dead_of_this_host_are_replaced) {
  const TemporaryFolder dir;
  const auto with = [&](const std::string& text) {
    write_all(dir / "run.lock", text);
    return taking(dir.path(), RunLock::How::kTextAlone);
  };
  EXPECT_EQ(with("").substr(0, 6), "taken ");
  EXPECT_EQ(with(text_of(host(), dead_pid())).substr(0, 6), "taken ");
  EXPECT_NE(with(text_of(host(), ::getpid())).find("remove the file"), std::string::npos);
  EXPECT_NE(with(text_of("elsewhere", dead_pid())).find("on elsewhere (attempt old-1"), std::string::npos);
  EXPECT_EQ(read_all(dir / "run.lock").substr(0, 14), "host elsewhere") << "a refusal leaves the text alone";
  // With flock, the kernel reports that the file is free, wherever the last holder was.
  EXPECT_NE(taking(dir.path()).find("taken over from process"), std::string::npos);
}

TEST(RunLock, a_job_started_again_is_the_heir_of_its_earlier_starts) {
  const TemporaryFolder dir;
  for (const RunLock::How how : {RunLock::How::kFlock, RunLock::How::kTextAlone}) {
    const auto take = [&](const std::string& attempt, const BatchStart& start) {
      return RunLock::take({.run = dir.path()}, attempt, start, how);
    };
    const auto first = take("old-1", {"4711", 1});
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_FALSE(take("new-1", {"4711", 1})) << "the same start: a second run of the job";
    EXPECT_FALSE(take("new-1", {"4711", 0})) << "a start that is over";
    EXPECT_FALSE(take("new-1", {"4712", 2})) << "another job";
    EXPECT_FALSE(take("new-1", {})) << "no job";
    EXPECT_TRUE(first.value().check());
    const auto heir = take("new-1", {"4711", 2});
    ASSERT_TRUE(heir) << heir.error().message;
    EXPECT_TRUE(heir.value().check());
    EXPECT_FALSE(first.value().check()) << "it may not publish any more";
    EXPECT_FALSE(take("other-1", {"4711", 2}));
  }
}

TEST(RunLock, a_holder_notices_that_it_lost_it) {
  const TemporaryFolder dir;
  const auto lock = RunLock::take({.run = dir.path()}, "old-1");
  ASSERT_TRUE(lock);
  ASSERT_TRUE(lock.value().check());
  write_all(dir / "run.lock", text_of("elsewhere", 5));
  auto lost = lock.value().check();
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("the lock was taken by process 5 on elsewhere"), std::string::npos);
  std::filesystem::remove(dir / "run.lock");
  lost = lock.value().check();
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("removed or replaced"), std::string::npos) << lost.error().message;
  EXPECT_EQ(taking(dir.path()), "taken ") << "the new file is free";
  EXPECT_FALSE(RunLock::take({.run = dir / "nowhere"}, "new-1"));
}

TEST(RunLock, two_runs_do_not_share_a_checkpoint_folder) {
  const TemporaryFolder dir;
  for (const char* run : {"first run", "second"}) std::filesystem::create_directory(dir / run);
  const std::string checkpoints = dir / "elsewhere/checkpoints";
  for (const RunLock::How how : {RunLock::How::kFlock, RunLock::How::kTextAlone}) {
    const auto take = [&](const std::string& run) {
      return RunLock::take({.run = dir / run, .checkpoints = checkpoints}, "some-1", {}, how);
    };
    {
      const auto first = take("first run");
      ASSERT_TRUE(first) << first.error().message;
      const auto second = take("second");
      ASSERT_FALSE(second);
      const std::string& text = second.error().message;
      EXPECT_EQ(
          text.rfind(checkpoints + "/checkpoint.lock: checkpoint.dir is in use by run " + dir / "first run" + ", ", 0),
          0u)
          << text;
      EXPECT_NE(text.find(fmt::format("process {} on {}", ::getpid(), host())), std::string::npos) << text;
      EXPECT_NE(text.find("so run " + dir / "second" + " cannot use it"), std::string::npos) << text;
      EXPECT_TRUE(first.value().check()) << "the refused one changed it";
      // The refused one has released what it had taken.
      EXPECT_TRUE(RunLock::take({.run = dir / "second"}, "some-2", {}, how));
      EXPECT_EQ(in_child([&] { return take("second") ? "taken" : "refused"; }), "refused");
    }
    EXPECT_TRUE(take("second")) << "given up";
  }
}

// A process that removes checkpoints locks only their folder and has no run: it is refused while a run holds the lock,
// and a starting run waits for it.
TEST(RunLock, checkpoints_are_not_pruned_while_their_run_writes) {
  const TemporaryFolder dir;
  const std::string checkpoints = dir / "checkpoints";
  for (const RunLock::How how : {RunLock::How::kFlock, RunLock::How::kTextAlone}) {
    const auto prune = [&] { return RunLock::take({.checkpoints = checkpoints}, "prune-1", {}, how); };
    const auto train = [&] { return RunLock::take({.run = dir.path(), .checkpoints = checkpoints}, "run-1", {}, how); };
    const std::string process = fmt::format("process {} on {} (attempt ", ::getpid(), host());
    {
      const auto run = train();
      ASSERT_TRUE(run) << run.error().message;
      const auto refused = prune();
      ASSERT_FALSE(refused);
      const std::string& text = refused.error().message;
      EXPECT_EQ(text.rfind(checkpoints + "/checkpoint.lock: checkpoint.dir is in use by run ", 0), 0u) << text;
      EXPECT_NE(text.find(process + "run-1"), std::string::npos) << text;
      EXPECT_EQ(text.find("so run"), std::string::npos) << text;
      EXPECT_TRUE(run.value().check()) << "the refused one changed it";
    }
    auto pruning = std::make_unique<Result<RunLock>>(prune());
    ASSERT_TRUE(*pruning) << pruning->error().message;
    EXPECT_FALSE(prune()) << "two at a time";
    auto run = std::async(std::launch::async, train);
    EXPECT_EQ(run.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout) << "it does not wait";
    pruning.reset();
    const auto began = run.get();
    EXPECT_TRUE(began) << began.error().message;
  }
  EXPECT_EQ(read_all(checkpoints + "/checkpoint.lock"), "") << "given up";
}

TEST(RunLock, a_long_path_is_held_like_a_short_one) {
  const TemporaryFolder dir;
  std::string deep = dir.path();
  while (deep.size() < 3000) deep += "/" + std::string(200, 'd');
  std::filesystem::create_directories(deep);
  const auto lock = RunLock::take({.run = deep, .checkpoints = dir / "checkpoints"}, "old-1");
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_TRUE(lock.value().check());
}

TEST(RunLock, a_holder_notices_that_it_lost_the_checkpoint_folder) {
  const TemporaryFolder dir;
  const auto lock = RunLock::take({.run = dir.path(), .checkpoints = dir / "checkpoints"}, "old-1");
  ASSERT_TRUE(lock) << lock.error().message;
  ASSERT_TRUE(lock.value().check());
  std::filesystem::remove(dir / "checkpoints/checkpoint.lock");
  const auto lost = lock.value().check();
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("checkpoint.lock: the lock file was removed or replaced"), std::string::npos);
}

TEST(DriverLock, refuses_a_second_driver_and_is_freed_by_the_death_of_its_holder) {
  const TemporaryFolder dir;
  const std::string path = dir / "supervise.lock";
  EXPECT_FALSE(value_or_throw(holder_of_lock(path)));
  for (const RunLock::How how : {RunLock::How::kFlock, RunLock::How::kTextAlone}) {
    {
      const auto first = value_or_throw(RunLock::take_for_driver(dir.path(), "driver-1", {}, how));
      const auto second = RunLock::take_for_driver(dir.path(), "driver-2", {}, how);
      ASSERT_FALSE(second);
      EXPECT_EQ(second.error().message.rfind(
                    fmt::format("{}: the run is already supervised by process {} on {} (attempt driver-1, since 2",
                                path, ::getpid(), host()),
                    0),
                0u)
          << second.error().message;
      EXPECT_EQ(second.error().os_error, 0) << "no reason to try again";
      EXPECT_EQ(
          in_child([&] { return RunLock::take_for_driver(dir.path(), "driver-3", {}, how) ? "taken" : "refused"; }),
          "refused");
      EXPECT_TRUE(first.check());
      EXPECT_TRUE(RunLock::take({.run = dir.path()}, "ranks-1")) << "its ranks hold the run folder alongside it";
      if (how == RunLock::How::kTextAlone) continue;
      const auto holder = value_or_throw(holder_of_lock(path));
      ASSERT_TRUE(holder);
      EXPECT_EQ(holder->attempt, "driver-1");
      EXPECT_EQ(stale_lock_remedy(*holder), "") << "the kernel reports that the process is alive";
      EXPECT_TRUE(value_or_throw(holder_of_lock(path))) << "to look changes nothing";
      EXPECT_TRUE(first.check());
    }
    EXPECT_FALSE(value_or_throw(holder_of_lock(path)));
  }
  // Simulates a holder that was killed, on any host.
  write_all(path, text_of("elsewhere", 5));
  EXPECT_FALSE(value_or_throw(holder_of_lock(path)));
  EXPECT_TRUE(RunLock::take_for_driver(dir.path(), "driver-4"));
  // On a file system without flock, another host's holder may be alive.
  write_all(path, text_of("elsewhere", 5));
  const auto refused = RunLock::take_for_driver(dir.path(), "driver-5", {}, RunLock::How::kTextAlone);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("remove the file"), std::string::npos) << refused.error().message;
  const auto stale = value_or_throw(holder_of_lock(path, {}, RunLock::How::kTextAlone));
  ASSERT_TRUE(stale);
  EXPECT_EQ(stale_lock_remedy(*stale), "; if that process no longer runs, remove the file");
  write_all(path, text_of(host(), dead_pid()));
  EXPECT_FALSE(value_or_throw(holder_of_lock(path, {}, RunLock::How::kTextAlone)));
  EXPECT_TRUE(RunLock::take_for_driver(dir.path(), "driver-6", {}, RunLock::How::kTextAlone));
}

TEST(DriverLock, passes_to_a_later_start_of_the_job) {
  const TemporaryFolder dir;
  const std::string path = dir / "supervise.lock";
  const auto first = value_or_throw(RunLock::take_for_driver(dir.path(), "driver-1", {"4711", 0}));
  EXPECT_FALSE(RunLock::take_for_driver(dir.path(), "driver-2", {"4711", 0}));
  EXPECT_TRUE(value_or_throw(holder_of_lock(path, {"4711", 0})));
  EXPECT_FALSE(value_or_throw(holder_of_lock(path, {"4711", 1})));
  EXPECT_EQ(value_or_throw(holder_of_lock(path))->job, "4711");
  const auto heir = value_or_throw(RunLock::take_for_driver(dir.path(), "driver-2", {"4711", 1}));
  EXPECT_FALSE(first.check());
  EXPECT_TRUE(heir.check());
  EXPECT_FALSE(RunLock::take_for_driver(dir.path(), "driver-1", {"4711", 0})) << "an earlier start";
}

TEST(DriverLock, of_drivers_that_start_at_the_same_moment_one_gets_it) {
  const TemporaryFolder dir;
  for (int round = 0; round < 20; ++round) {
    constexpr int kDrivers = 4;
    int begin[2], ends[2];
    ASSERT_EQ(::pipe(begin), 0);
    ASSERT_EQ(::pipe(ends), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < kDrivers; ++i) {
      children.push_back(fork_alone());
      if (children.back() != 0) continue;
      silence_stderr();
      ::close(begin[1]);
      char byte = 0;
      if (::read(begin[0], &byte, 1) != 0) ::_exit(1);  // the end of the pipe is the signal
      const auto lock = RunLock::take_for_driver(dir.path(), fmt::format("driver-{}", i));
      byte = lock ? 'y' : 'n';
      if (::write(ends[1], &byte, 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    ::close(begin[0]), ::close(begin[1]);
    std::string answers;
    for (int i = 0; i < kDrivers; ++i) {
      char byte = 0;
      ASSERT_EQ(::read(ends[0], &byte, 1), 1);
      answers += byte;
    }
    EXPECT_EQ(std::count(answers.begin(), answers.end(), 'y'), 1) << answers;
    for (const pid_t child : children) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    ::close(ends[0]), ::close(ends[1]);
  }
}

}  // namespace
}  // namespace tri
