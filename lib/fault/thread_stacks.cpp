#include "lib/fault/thread_stacks.h"

#include <execinfo.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "io/base/file.h"
#include "io/base/poll.h"
#include "io/base/proc.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

// One of the real-time signals for programs; glibc uses the first ones.
int stack_signal() { return SIGRTMIN + 9; }

std::atomic<flight::Image*> g_image{nullptr};  // null: no requests to answer
std::atomic<int> g_answering{0};               // threads in the handler
std::atomic<int> g_training{0};                // the training thread

int this_thread() { return static_cast<int>(::syscall(SYS_gettid)); }

constexpr const char* kOther = "other";  // the name of a thread without its own name

// The handler's own frame and the kernel's signal frame.
constexpr int kOwnFrames = 2;

// Makes only async-signal-safe calls: once backtrace() has run, it calls glibc's loader without a lock (glibc 2.35).
void answer(int /*signal*/) {
  const int saved = errno;
  g_answering.fetch_add(1);
  if (flight::Image* const image = g_image.load(); image != nullptr) {
    const uint32_t slot = image->num_stacks.fetch_add(1);
    if (slot < flight::kThreads) {
      flight::Stack& stack = image->stacks[slot];
      void* frames[flight::kFrames + kOwnFrames];
      const int depth = ::backtrace(frames, flight::kFrames + kOwnFrames) - kOwnFrames;
      for (int i = 0; i < depth; ++i) stack.frames[i] = reinterpret_cast<uint64_t>(frames[i + kOwnFrames]);
      stack.thread = this_thread();
      ::prctl(PR_GET_NAME, stack.name);
      // A thread inherits the name of the thread that creates it.
      if (stack.thread != g_training && std::strcmp(stack.name, kTrainingThread) == 0) std::strcpy(stack.name, kOther);
      stack.depth.store(static_cast<uint32_t>(std::max(depth, 0)), std::memory_order_release);
    }
  }
  g_answering.fetch_sub(1);
  errno = saved;
}

bool blocks(const std::string& folder, int signal) {
  std::istringstream file(text_of(folder + "/status"));
  for (std::string line; std::getline(file, line);)
    if (line.rfind("SigBlk:", 0) == 0) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

std::string tasks_of(int process) { return fmt::format("/proc/{}/task", process); }

std::vector<int> threads_of(int process) {
  std::vector<int> threads;
  const auto names = list_folder(tasks_of(process));
  if (!names) return threads;
  for (const std::string& name : names.value()) threads.push_back(std::atoi(name.c_str()));
  std::sort(threads.begin(), threads.end());  // the first is the main thread
  return threads;
}

uint32_t num_answers(const flight::Image& image) {
  uint32_t count = 0;
  const uint32_t slots = std::min<uint32_t>(image.num_stacks.load(), flight::kThreads);
  for (uint32_t i = 0; i < slots; ++i) count += image.stacks[i].depth.load(std::memory_order_acquire) > 0;
  return count;
}

// Sends the requests. Returns the number of answers to wait for.
uint32_t ask(flight::Image& image) {
  const auto signal = static_cast<int>(image.stack_signal.load());
  if (signal == 0 || process_state_of(image) != ProcessState::kRuns)
    return 0;  // the signal would end any other process
  for (flight::Stack& stack : image.stacks) stack.depth = 0;
  image.num_stacks = 0;
  uint32_t signalled = 0;
  for (const int thread : threads_of(image.process)) {
    if (blocks(fmt::format("{}/{}", tasks_of(image.process), thread), signal)) continue;
    signalled += ::syscall(SYS_tgkill, image.process, thread, signal) == 0;
  }
  return std::min<uint32_t>(signalled, flight::kThreads);
}

}  // namespace

StackAnswers::StackAnswers(flight::Image& image) : image_(image) {
  void* frames[4];
  ::backtrace(frames, 4);  // loads the libraries that it needs
  g_training = this_thread();
  if (this_thread() != ::getpid()) name_thread(kTrainingThread);  // the main thread keeps the program's name
  g_image = &image;
  struct sigaction action {};
  action.sa_handler = answer;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  if (::sigaction(stack_signal(), &action, nullptr) == 0) image.stack_signal = static_cast<uint32_t>(stack_signal());
}

StackAnswers::~StackAnswers() {
  image_.stack_signal = 0;
  g_image = nullptr;
  while (g_answering.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void request_stacks(std::span<flight::Image* const> images, double seconds) {
  constexpr std::chrono::milliseconds kPause{2};
  std::vector<uint32_t> expected;
  for (flight::Image* const image : images) expected.push_back(image == nullptr ? 0 : ask(*image));
  const auto complete = [&] {
    for (size_t i = 0; i < images.size(); ++i)
      if (expected[i] > 0 && num_answers(*images[i]) < expected[i]) return false;
    return true;
  };
  poll_for(std::chrono::duration<double>(seconds), kPause, complete);
}

std::vector<StackRecord> silent_threads(const RankRecord& record) {
  std::set<int> answered;
  for (const StackRecord& stack : record.stacks) answered.insert(stack.thread);
  std::vector<StackRecord> silent;
  bool training = false;  // found; it is the first thread with its name, since it created the others
  for (const int thread : threads_of(record.process)) {
    const std::string folder = fmt::format("{}/{}", tasks_of(record.process), thread);
    std::string name = first_line_of(folder + "/comm");
    if (name == kTrainingThread && std::exchange(training, true)) name = kOther;
    if (answered.contains(thread)) continue;
    const auto stat = process_stat(folder);
    if (!stat) continue;
    const std::string place = first_line_of(folder + "/wchan"), call = first_line_of(folder + "/syscall");
    std::string words = fmt::format("state {}", stat->state);
    if (!place.empty() && place != "0") words += ", in " + place;
    if (!call.empty()) words += call == "running" ? ", running" : ", system call " + call.substr(0, call.find(' '));
    silent.push_back({.thread = thread, .name = name, .frames = {}, .symbols = {words}});
  }
  return silent;
}

void name_thread(const char* name) { ::prctl(PR_SET_NAME, name); }

ProcessState process_state_of(const flight::Image& image) {
  RankRecord record;
  record.host = image.host;
  record.process = image.process;
  record.process_namespace = image.process_namespace;
  record.process_start = image.process_start;
  return process_state_of(record);
}

}  // namespace tri
