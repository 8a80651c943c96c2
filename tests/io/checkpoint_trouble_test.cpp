// Full disks, missing or read-only folders, and kills at any moment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "io/checkpoint/run_lock.h"
#include "tests/io/saved_checkpoints.h"
#include "tests/io/skipped_sleeps.h"

namespace tri {
namespace {

// Mounts a file system of `bytes` at `folder`, visible only to this process; returns false if that is not allowed.
bool mount_small(const std::string& folder, int64_t bytes) {
  const uid_t user = ::getuid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    if (std::ofstream map("/proc/self/uid_map"); !(map << fmt::format("0 {} 1", user) << std::flush)) return false;
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return ::mount("tmpfs", folder.c_str(), "tmpfs", 0, fmt::format("size={}", bytes).c_str()) == 0;
}

constexpr int64_t kRows = 100;  // 150 KiB per checkpoint

// Leaves `free_space` free bytes in `dir`, then saves step 2 alongside step 1.
std::string save_with_free_bytes(const std::string& dir, int64_t free_space) {
  const std::string filler = dir + "/filler";
  struct statvfs status {};
  ::statvfs(dir.c_str(), &status);
  const int64_t free_bytes = static_cast<int64_t>(status.f_bavail * status.f_bsize);
  const Descriptor file(::open(filler.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (free_bytes > free_space && ::posix_fallocate(file.get(), 0, free_bytes - free_space) != 0) return "no filler";
  const auto saved = save(dir, 2, "two", 22, kRows);
  std::filesystem::remove(filler);
  return saved ? "saved" : saved.error().message;
}

TEST(CheckpointTrouble, a_full_disk_is_named_and_the_previous_checkpoint_stays) {
  const TemporaryFolder dir;
  const std::string outcome = in_child([&]() -> std::string {
    if (!mount_small(dir.path(), 4 << 20)) return "not allowed";
    value_or_throw(save(dir.path(), 1, "one", 11, kRows));
    std::set<std::string> places;
    for (int64_t free_space = 0;; free_space += 4 << 10) {
      const std::string result = save_with_free_bytes(dir.path(), free_space);
      if (result == "saved") return places.size() < 3 ? "few places" : fault_of_newest(dir.path(), 2, 2, kRows);
      if (free_space > 2 << 20) return "never saved";
      if (!contains(result, "No space left on device") || !contains(result, dir.path())) return "message: " + result;
      for (const char* part : {"step_00000002.tmp.two: creating", "shard_00000.h5.two.tmp", "shard_00001.h5.two.tmp",
                               "checkpoint.h5", "manifest.json", "(tensor model/w)", "latest"})
        if (contains(result, part)) places.insert(part);
      if (const std::string fault = fault_of_newest(dir.path(), 1, 1, kRows); !fault.empty()) {
        if (!contains(result, "latest") || !fault_of_newest(dir.path(), 2, 2, kRows).empty()) return fault;
        std::filesystem::remove_all(dir / "step_00000002");  // published; only the marker could not be written
      }
      for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path()))
        if (entry.path().extension() == ".tmp") return "left behind: " + entry.path().string();
      value_or_throw(remove_stale_attempts(dir.path(), "three"));
    }
  });
  if (outcome == "not allowed") GTEST_SKIP() << "skipped: no right to mount a small file system";
  EXPECT_EQ(outcome, "");
}

TEST(CheckpointTrouble, a_limit_on_file_sizes_is_named) {
  const TemporaryFolder dir;
  value_or_throw(save(dir.path(), 1, "one", 11, kRows));
  int failures = 0, successes = 0;
  for (const int64_t limit : {0, 1000, 4096, 20'000, 40'000, 400'000}) {
    const std::string outcome = in_child([&]() -> std::string {
      ::signal(SIGXFSZ, SIG_IGN);
      const struct rlimit bytes { static_cast<rlim_t>(limit), RLIM_INFINITY };
      ::setrlimit(RLIMIT_FSIZE, &bytes);
      const auto saved = save(dir.path(), 2, "two", 22, kRows);
      return saved ? "saved" : saved.error().message;
    });
    if (outcome == "saved") {
      ++successes;
      EXPECT_EQ(fault_of_newest(dir.path(), 2, 2, kRows), "");
      continue;
    }
    ++failures;
    EXPECT_TRUE(contains(outcome, "File too large") && contains(outcome, dir.path())) << outcome;
    EXPECT_EQ(fault_of_newest(dir.path(), 1, 1, kRows), "");
  }
  EXPECT_GE(failures, 4);
  EXPECT_EQ(successes, 1);
}

TEST(CheckpointTrouble, a_folder_without_the_right_to_write_is_named) {
  const TemporaryFolder dir;
  const std::string inside = dir / "checkpoints";
  value_or_throw(save(inside, 1, "one", 11, 4));
  ::chmod(dir.path().c_str(), 0755);
  ::chmod(inside.c_str(), 0555);
  const std::string outcome = in_child([&]() -> std::string {
    // The path is relative because this user may not access the folders above the temporary one.
    if (::chdir(dir.path().c_str()) != 0 || (::getuid() == 0 && ::setuid(65534) != 0)) return "not allowed";
    const auto begun = begin_attempt("checkpoints", 2, "two");
    const auto writer = ShardWriter::create("checkpoints/step_00000001/shard_00009.h5", "two");
    if (begun || writer) return "written";
    return begun.error().message + "\n" + writer.error().message + "\n" + fault_of_newest("checkpoints", 1, 1, 4);
  });
  ::chmod(inside.c_str(), 0755);
  EXPECT_EQ(outcome,
            "checkpoints/step_00000002.tmp.two: creating it: Permission denied\n"
            "checkpoints/step_00000001/shard_00009.h5.two.tmp: Permission denied\n");
}

TEST(CheckpointTrouble, a_folder_that_vanishes_is_named) {
  const TemporaryFolder dir;
  value_or_throw(save(dir.path(), 1, "one", 11, 4));
  const std::string folder = value_or_throw(begin_attempt(dir.path(), 2, "two")), path = folder + "/shard_00000.h5";
  auto writer = value_or_throw(ShardWriter::create(path, "two"));
  const TestTensor tensor = tensors_of(1)[0];
  ASSERT_TRUE(writer.add(tensor.shard(full_region(tensor.shape)), tensor.bytes.data()));
  std::filesystem::remove_all(folder);
  const auto finished = writer.finish();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().code, ExitCode::kFile);
  EXPECT_TRUE(contains(finished.error().message, path) && contains(finished.error().message, "No such file"))
      << finished.error().message;
  const Manifest manifest{.attempt = "two", .step = 2};
  for (const std::string& message :
       {ShardWriter::create(path, "two").error().message, write_index(folder, manifest).error().message,
        write_manifest(folder, manifest).error().message, publish(dir.path(), 2, "two").error().message})
    EXPECT_TRUE(contains(message, folder) && contains(message, "No such file")) << message;
  EXPECT_EQ(fault_of_newest(dir.path(), 1, 1, 4), "");
}

// Otherwise each of 12,288 writers would request an fsync from the folder's server. The publisher's fsync of the
// folder, after all writers have finished and before the checkpoint is renamed, makes the names durable.
TEST(CheckpointTrouble, the_folder_is_synced_as_often_for_many_writers_as_for_one_and_last_before_publishing) {
  std::vector<std::vector<std::string>> synced;
  for (const int writers : {1, 7}) {
    const TemporaryFolder dir;
    ASSERT_EQ(in_child([&]() -> std::string {
                watch_storage(dir.path(), "", dir.path().string() + ".trace");
                value_or_throw(write_checkpoint(dir.path(), 1, "one", tensors_of(3, 40), writers, 20, 3));
                value_or_throw(publish(dir.path(), 1, "one"));
                return "";
              }),
              "");
    std::vector<std::string>& folders = synced.emplace_back();
    int shards = 0;
    bool named = true;  // whether the folder was synced since the last shard was renamed
    for (const std::string& line : lines_of_trace(dir.path().string() + ".trace")) {
      if (line.starts_with("shard-fsync ")) ++shards;
      if (line.starts_with("shard-rename ")) named = false;
      if (line == "folder-fsync step_00000001.tmp.one") named = true;
      if (line.starts_with("folder-fsync ")) folders.push_back(line);
      if (line.starts_with("publish ")) {
        EXPECT_TRUE(named) << writers << " writers";
      }
    }
    EXPECT_EQ(shards, writers) << "each file's contents";
    EXPECT_TRUE(named);
  }
  EXPECT_EQ(synced[0], synced[1]);
}

// A folder in memory if possible: kills need no disk, and more of them fit in the time.
class FastFolder {
 public:
  FastFolder() {
    std::string name = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/trireme-XXXXXX" : "/tmp/trireme-XXXXXX";
    TRI_REQUIRE(::mkdtemp(name.data()) != nullptr, "no temporary folder");
    path_ = name;
  }
  ~FastFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The second try completes whatever the first one did.
TEST(CheckpointTrouble, a_glitch_anywhere_in_publishing_costs_another_try_and_nothing_else) {
  enum class Before { kNothing, kSameStep };
  struct Case {
    Before before;
    bool swaps;
  };
  for (const Case& at : {Case{Before::kNothing, true}, {Before::kSameStep, true}, {Before::kSameStep, false}}) {
    std::optional<NoSwaps> none;
    if (!at.swaps) none.emplace();
    int points = 0;
    for (bool has_fault = true; has_fault; ++points) {
      const FastFolder dir;
      value_or_throw(save(dir.path(), 1, "one", 11, 4));
      if (at.before == Before::kSameStep) value_or_throw(save(dir.path(), 2, "one", 21, 4));
      value_or_throw(write_checkpoint(dir.path(), 2, "two", tensors_of(22, 4), 2, 3, 22, 22));
      const char* error = points % 2 == 0 ? "EIO" : "ESTALE";
      const std::string said = on_storage(dir.path(), fmt::format("0/any/{}/fail={}", points + 1, error), [&] {
        int pauses = 0;
        const SkippedSleeps skipped([&](std::chrono::milliseconds) { ++pauses; });
        const auto published = retried({.tries = 2}, [&] { return publish(dir.path(), 2, "two"); });
        return published ? fmt::format("{} pauses", pauses) : published.error().message;
      });
      has_fault = said != "0 pauses";
      ASSERT_TRUE(!has_fault || said == "1 pauses") << "point " << points + 1 << ": " << said;
      EXPECT_EQ(fault_of_newest(dir.path(), 2, 2, 4), "") << "point " << points + 1;
      const auto newest = value_or_throw(newest_checkpoint(dir.path()));
      EXPECT_EQ(value_or_throw(read_manifest(newest->path)).attempt, "two") << "point " << points + 1;
      EXPECT_EQ(names_of(dir.path()), (std::vector<std::string>{"latest", "step_00000001", "step_00000002"}))
          << "point " << points + 1;
      EXPECT_EQ(std::string(MappedFile::open(dir.path() + "/latest").value().text()), "step_00000002\n");
    }
    EXPECT_GE(points, 5) << "folder, rename, folder, marker";
  }
}

constexpr int64_t kFewRows = 2;

// Saves `steps` steps, each one twice, and reports the published ones to the parent.
[[noreturn]] void save_steps(const std::string& dir, int64_t first, int64_t steps, uint64_t seed,
                             const std::string& attempt, int parent) {
  silence_stderr();
  const auto lock = RunLock::take({.run = dir}, attempt);
  if (!lock || !remove_stale_attempts(dir, attempt)) ::_exit(1);
  for (int64_t step = first; step < first + steps; ++step)
    for (const bool swaps : {true, step % 2 == 0}) {
      std::optional<NoSwaps> none;
      if (!swaps) none.emplace();
      if (!save(dir, step, attempt, seed++, kFewRows)) ::_exit(2);
      if (::write(parent, &step, sizeof step) != sizeof step) ::_exit(3);
      if (!prune(dir, 2, 0, attempt)) ::_exit(4);
    }
  ::_exit(0);
}

// The same in a child on storage that follows `rules` (tests/storage/points.h). Returns waitpid's status, and the last
// step that the child reported in `published`.
int saved_by_child(const std::string& dir, const std::string& rules, const std::string& trace, int64_t steps,
                   uint64_t seed, const std::string& attempt, int64_t& published) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    watch_storage(dir, rules, trace);
    save_steps(dir, published + 1, steps, seed, attempt, ends[1]);
  }
  ::close(ends[1]);
  for (int64_t step; ::read(ends[0], &step, sizeof step) == sizeof step;) published = step;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(CheckpointTrouble, a_kill_at_any_moment_leaves_the_previous_checkpoint) {
  const FastFolder dir;
  value_or_throw(save(dir.path(), 1, "first", 1, kFewRows));
  // Counts the storage calls of a save, to spread the kills over them.
  constexpr int64_t kSteps = 4;
  int64_t published = 1;  // the last step that a child reported
  ASSERT_EQ(saved_by_child(dir.path(), "", dir.path() + ".trace", kSteps, 2, "counting", published), 0);
  ASSERT_EQ(published, 1 + kSteps);
  const std::string trace = read_all(dir.path() + ".trace.0");
  std::filesystem::remove(dir.path() + ".trace.0");
  const int64_t calls = std::count(trace.begin(), trace.end(), '\n');

  constexpr int kKills = 120;
  int unfinished = 0, replacing = 0, progressed = 0;
  Draw draw(42);
  for (int kill = 0; kill < kKills; ++kill) {
    const int64_t before = published;
    const std::string rule = fmt::format("0/any/{}/kill", 1 + draw(calls * 3 / 4));
    const int status = saved_by_child(dir.path(), rule, "", kSteps, static_cast<uint64_t>(kill) * 1'000'000,
                                      fmt::format("kill-{}", kill), published);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << rule << ": status " << status;
    progressed += published > before;
    for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
      unfinished += contains(entry.path().filename(), ".tmp.");
      replacing += contains(entry.path().filename(), ".old.") || contains(entry.path().filename(), ".trash.");
    }
    // One more may have been published without being reported.
    testing::internal::CaptureStderr();
    const std::string fault = fault_of_newest(dir.path(), published, published + 1, kFewRows);
    testing::internal::GetCapturedStderr();
    ASSERT_EQ(fault, "") << "after kill " << kill << ", " << rule;
    // No other checkpoint pretends to be valid.
    for (const CheckpointEntry& entry : value_or_throw(list_checkpoints(dir.path()))) {
      if (!entry.valid) continue;
      const auto report = verify(entry.path, 1);
      ASSERT_TRUE(report && report.value().problems.empty()) << entry.path;
    }
  }
  // These counts depend only on the seed and the calls, not on the machine's speed.
  EXPECT_GT(unfinished, kKills / 4);
  EXPECT_GT(replacing, kKills / 30);
  EXPECT_GT(progressed, kKills / 2);
  fmt::print("{} kills over {} calls: {} left something unfinished, {} a replacement or removal; {} after progress\n",
             kKills, calls * 3 / 4, unfinished, replacing, progressed);
}

// Saves step 2, saves it again with both ways of replacing, and prunes step 1: everything that changes the folder.
void change_everything(const std::string& dir) {
  silence_stderr();
  const auto lock = value_or_throw(RunLock::take({.run = dir}, "b"));
  value_or_throw(remove_stale_attempts(dir, "b"));
  value_or_throw(save(dir, 2, "b", 21, kFewRows));
  {
    const NoSwaps none;
    value_or_throw(save(dir, 2, "b", 22, kFewRows));
  }
  value_or_throw(save(dir, 2, "b", 23, kFewRows));
  value_or_throw(prune(dir, 1, 0, "b"));
}

// Runs change_everything() in a child and kills it before the first of its system calls for which `kills(call)` returns
// true; calls count from 1. Returns false if it ended before that, nullopt if tracing is not allowed.
std::optional<bool> killed_at(const std::string& dir, const std::function<bool(int call)>& kills) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(9);
    ::raise(SIGSTOP);
    change_everything(dir);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return std::nullopt;
  for (int stop = 0;; ++stop) {  // each call stops at its begin and its end
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return false;
    }
    if (!WIFSTOPPED(status) || (stop % 2 == 0 && kills(stop / 2 + 1))) break;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  return true;
}

// Returns the contents of all files by their paths; of folders "".
std::map<std::string, std::string> contents_of(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir))
    files[entry.path().string()] = entry.is_regular_file() ? read_all(entry.path().string()) : "";
  return files;
}

// A kill before a call that finds the folder as the call before it did would leave the same files.
TEST(CheckpointTrouble, a_kill_at_every_system_call_leaves_a_checkpoint_that_only_advances) {
  std::map<std::string, int> seen;  // kinds of leftovers
  int64_t step = 1;
  int64_t mark = 11;
  int calls = 0;
  std::vector<int> changed;  // calls before which the folder has changed
  {
    const FastFolder dir;
    value_or_throw(save(dir.path(), 1, "a", 11, kFewRows));
    std::map<std::string, std::string> before;
    const auto traced = killed_at(dir.path(), [&](int call) {
      calls = call;
      auto now = contents_of(dir.path());
      if (now != before) changed.push_back(call);
      before = std::move(now);
      return false;
    });
    if (!traced) GTEST_SKIP() << "skipped: no right to trace a child";
  }
  changed.push_back(std::numeric_limits<int>::max());  // it ends before
  for (const int call : changed) {
    const FastFolder dir;
    value_or_throw(save(dir.path(), 1, "a", 11, kFewRows));
    const std::optional<bool> killed = killed_at(dir.path(), [&](int now) { return now == call; });
    ASSERT_TRUE(killed);
    for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
      for (const char* kind : {".tmp.b", ".old.b", ".trash.b", "latest.b.tmp"})
        seen[kind] += contains(entry.path().filename(), kind);
    for (const bool cleaned : {false, true}) {
      testing::internal::CaptureStderr();
      if (cleaned) value_or_throw(remove_stale_attempts(dir.path(), "c"));
      const std::string fault = fault_of_newest(dir.path(), step, 2, kFewRows);
      const auto newest = newest_checkpoint(dir.path());
      testing::internal::GetCapturedStderr();
      ASSERT_EQ(fault, "") << "killed at call " << call;
      // Later kills find later states: nothing that was published is lost.
      const int64_t found = read_manifest(newest.value()->path).value().info.numbers.at("mark");
      ASSERT_GE(newest.value()->step, step) << "killed at call " << call;
      ASSERT_GE(found, mark) << found << " after " << mark << ", call " << call;
      step = newest.value()->step;
      mark = found;
    }
    for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
      ASSERT_FALSE(contains(entry.path().filename(), ".b")) << entry.path() << " was not cleaned up";
  }
  fmt::print("killed at {} of {} calls, those before which the folder has changed\n", changed.size() - 1, calls);
  EXPECT_EQ(mark, 23) << "the last round was not the whole of it";
  for (const char* kind : {".tmp.b", ".old.b", ".trash.b", "latest.b.tmp"}) EXPECT_GT(seen[kind], 0) << kind;
}

}  // namespace
}  // namespace tri
