// Runs a part of a test in a child process, where it may lose rights, limits or its life.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

namespace tri {

inline void silence_stderr() {
  const int null = ::open("/dev/null", O_WRONLY);
  if (null >= 0) ::dup2(null, STDERR_FILENO);
}

// Calls fork() once this process has one thread: a mutex that another thread holds at that moment would stay locked in
// the child. Threads that handle calls of file_system_call.h end soon; others are awaited for at most 10 s.
inline pid_t fork_alone() {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  while (threads() > 1 && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ::fork();
}

// Returns the result of `body` in the child, or "died" if it does not return. The child's stderr is discarded.
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = fork_alone();
  if (child == 0) {
    silence_stderr();
    std::string text;
    try {
      text = "said " + body();
    } catch (const std::exception& problem) {
      text = std::string("threw ") + problem.what();
    }
    const ssize_t put = ::write(ends[1], text.data(), text.size());
    std::exit(put == static_cast<ssize_t>(text.size()) ? 0 : 1);  // exit handlers run, because HDF5's must also survive
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (text.rfind("said ", 0) != 0) return text.empty() ? "died" : text;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text.substr(5) : "died after: " + text;
}

}  // namespace tri
