// Stacks of the threads of this process and of another, stopped process, and the names of their functions.
#include "lib/fault/thread_stacks.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "io/base/host.h"
#include "lib/fault/symbols.h"

namespace tri {

// With external linkage, so that their names are in the program's symbol table.
std::atomic<bool> g_leave{false};
__attribute__((noinline)) void waits_here_until_released(std::atomic<int>& thread) {
  thread = static_cast<int>(::syscall(SYS_gettid));
  while (!g_leave) std::this_thread::yield();
}

namespace {

// ThreadSanitizer has its own thread in each process, which blocks all signals and does not answer.
#ifdef __SANITIZE_THREAD__
constexpr size_t kSanitizersThreads = 1;
#else
constexpr size_t kSanitizersThreads = 0;
#endif

// An image that a child process shares.
class SharedImage {
 public:
  SharedImage() {
    memory_ = ::mmap(nullptr, sizeof(flight::Image), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    identify();
  }
  // Makes this process the owner of the image.
  void identify() {
    image().process = ::getpid();
    host_name().copy(image().host, sizeof image().host - 1);
    struct stat info {};
    ASSERT_EQ(::stat("/proc/self/ns/pid", &info), 0);
    image().process_namespace = static_cast<int64_t>(info.st_ino);
    std::ifstream file("/proc/self/stat");
    std::string line;
    std::getline(file, line);
    std::istringstream fields(line.substr(line.rfind(')') + 2));  // the third field is the first of them
    std::string field;
    for (int i = 3; i <= 22; ++i) fields >> field;
    image().process_start = std::stoll(field);
  }
  ~SharedImage() { ::munmap(memory_, sizeof(flight::Image)); }
  flight::Image& image() { return *static_cast<flight::Image*>(memory_); }

 private:
  void* memory_;
};

// Returns the part of a record that is about the image's stacks.
RankRecord record_of(const flight::Image& image) {
  RankRecord record;
  record.process = image.process;
  for (uint32_t i = 0; i < image.num_stacks && i < flight::kThreads; ++i) {
    const flight::Stack& stack = image.stacks[i];
    record.stacks.push_back(
        {.thread = stack.thread, .name = stack.name, .frames = {stack.frames, stack.frames + stack.depth}});
  }
  return record;
}

class Waiter {
 public:
  explicit Waiter(bool blocks_signals = false) {
    g_leave = false;
    runner_ = std::thread([this, blocks_signals] {
      if (blocks_signals) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, nullptr);
      }
      ::pthread_setname_np(::pthread_self(), "waiter");
      waits_here_until_released(thread_);
    });
    while (thread_ == 0) std::this_thread::yield();
  }
  ~Waiter() {
    g_leave = true;
    runner_.join();
  }
  int thread() const { return thread_; }

 private:
  std::atomic<int> thread_{0};
  std::thread runner_;
};

const StackRecord* of_thread(const std::vector<StackRecord>& stacks, int thread) {
  for (const StackRecord& stack : stacks)
    if (stack.thread == thread) return &stack;
  return nullptr;
}

TEST(ThreadStacks, of_all_own_threads_with_the_names_of_their_functions) {
  SharedImage shared;
  flight::Image* const images[] = {&shared.image()};
  const StackAnswers answers(shared.image());
  Waiter waiter;
  for (int round = 0; round < 2; ++round) {  // a second request replaces the answers to the first
    request_stacks(images, 60);
    const RankRecord record = record_of(shared.image());
    EXPECT_NE(of_thread(record.stacks, ::getpid()), nullptr);
    const StackRecord* stack = of_thread(record.stacks, waiter.thread());
    ASSERT_NE(stack, nullptr);
    EXPECT_EQ(stack->name, "waiter");
    Symbolizer symbolizer;
    const auto names = symbolizer.names(::getpid(), stack->frames);
    ASSERT_EQ(names.size(), stack->frames.size());
    // The innermost frames belong to the function or its callees, not to the handler.
    const auto at = std::find_if(names.begin(), names.end(), [](const std::string& name) {
      return name.rfind("tri::waits_here_until_released(std::atomic<int>&)+0x", 0) == 0;
    });
    ASSERT_NE(at, names.end()) << fmt::format("{}", fmt::join(names, "\n"));
    EXPECT_LE(at - names.begin(), 3);
    EXPECT_EQ(silent_threads(record).size(), kSanitizersThreads);
  }
}

// If storage fails, a page of a mapped file would end the process that explains a hang with SIGBUS.
TEST(ThreadStacks, symbol_tables_are_read_without_mapping_their_files) {
  const auto maps = [] {
    std::vector<std::string> files;
    std::ifstream in("/proc/self/maps");
    for (std::string line; std::getline(in, line);)
      if (const size_t path = line.find('/'); path != std::string::npos) files.push_back(line.substr(path));
    return files;
  };
  const auto code = reinterpret_cast<uint64_t>(&waits_here_until_released);
  const std::vector<std::string> before = maps();
  Symbolizer symbolizer;
  const auto names = symbolizer.names(::getpid(), {code});
  ASSERT_EQ(names.size(), 1u);
  EXPECT_EQ(names[0].rfind("tri::waits_here_until_released(", 0), 0u) << names[0];
  EXPECT_EQ(maps(), before);
}

TEST(ThreadStacks, unmapped_or_nameless_frames_are_shown_by_their_address) {
  Symbolizer symbolizer;
  const auto names = symbolizer.names(::getpid(), {0x10, 0x20});
  EXPECT_EQ(names, (std::vector<std::string>{"0x10", "0x20"}));
  EXPECT_EQ(symbolizer.names(999999999, {0x10}), std::vector<std::string>{"0x10"});
}

TEST(ThreadStacks, threads_that_block_signals_are_reported_from_proc_without_a_wait) {
  SharedImage shared;
  flight::Image* const images[] = {&shared.image()};
  const StackAnswers answers(shared.image());
  Waiter waiter(true);
  request_stacks(images, 3600);  // returns at once
  const RankRecord record = record_of(shared.image());
  EXPECT_EQ(of_thread(record.stacks, waiter.thread()), nullptr);
  const auto silent = silent_threads(record);
  const StackRecord* stack = of_thread(silent, waiter.thread());
  ASSERT_NE(stack, nullptr);
  EXPECT_EQ(stack->name, "waiter");
  EXPECT_TRUE(stack->frames.empty());
  ASSERT_EQ(stack->symbols.size(), 1u);
  EXPECT_EQ(stack->symbols[0].rfind("state ", 0), 0u) << stack->symbols[0];
}

TEST(ThreadStacks, of_another_process_and_of_one_that_is_stopped) {
  SharedImage shared;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  g_leave = false;
  const pid_t child = ::fork();
  if (child == 0) {
    shared.identify();
    const StackAnswers answers(shared.image());
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    std::atomic<int> thread{0};
    waits_here_until_released(thread);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  flight::Image* const images[] = {nullptr, &shared.image()};  // a rank without a flight recorder is skipped
  request_stacks(images, 60);
  RankRecord record = record_of(shared.image());
  ASSERT_EQ(record.stacks.size(), 1u);
  EXPECT_EQ(record.stacks[0].thread, child);
  EXPECT_GE(record.stacks[0].frames.size(), 2u);

  shared.image().num_stacks = 0;
  ::kill(child, SIGSTOP);
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  ASSERT_TRUE(WIFSTOPPED(status));
  request_stacks(images, 3600);  // returns at once
  EXPECT_EQ(shared.image().num_stacks, 0u);
  record.stacks.clear();
  const auto silent = silent_threads(record);
  ASSERT_EQ(silent.size(), 1 + kSanitizersThreads);
  EXPECT_EQ(silent[0].symbols[0].rfind("state T", 0), 0u) << silent[0].symbols[0];

  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(silent_threads(record).empty());
}

// The signal would end the process.
TEST(ThreadStacks, a_process_that_has_the_number_of_a_rank_that_is_gone_gets_no_signal) {
  for (const bool elsewhere : {false, true}) {
    SharedImage shared;
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) ::pause();
    shared.image().process = child;
    shared.image().stack_signal = SIGRTMIN + 9;
    if (elsewhere)
      shared.image().process_namespace += 1;
    else
      shared.image().process_start -= 1;
    EXPECT_EQ(process_state_of(shared.image()), elsewhere ? ProcessState::kUnknown : ProcessState::kGone);
    flight::Image* const images[] = {&shared.image()};
    request_stacks(images, 3600);  // returns at once
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
  }
}

TEST(ThreadStacksDeathTest, a_late_request_does_not_end_the_process) {
  const auto late = [] {
    SharedImage shared;
    int signal = 0;
    {
      const StackAnswers answers(shared.image());
      signal = static_cast<int>(shared.image().stack_signal);
    }
    if (signal == 0 || shared.image().stack_signal != 0) std::_Exit(1);
    std::raise(signal);
    std::_Exit(shared.image().num_stacks == 0 ? 0 : 2);
  };
  EXPECT_EXIT(late(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tri
