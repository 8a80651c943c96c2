// For tests that run jobs and inspect what they leave behind.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "io/base/format.h"

namespace tri {

using Strings = std::vector<std::string>;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

inline std::string read_all(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();  // throws nothing if reading fails, as in /proc when a process ends
  return text.str();
}

inline Strings lines_of(const std::string& path) {
  Strings lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Runs a program to its end, with `settings` added to the environment and its output in the file `output`. Returns its
// exit status, or 128 + the signal. None: it took longer than `timeout` and was terminated.
inline std::optional<int> run_program(const Strings& command, const Strings& settings, const std::string& output,
                                      std::chrono::seconds timeout) {
  Strings environment;
  for (char** at = environ; *at != nullptr; ++at) environment.emplace_back(*at);
  environment.insert(environment.end(), settings.begin(), settings.end());
  const auto pointers = [](const Strings& texts) {
    std::vector<char*> out;
    for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
    out.push_back(nullptr);
    return out;
  };
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t child = 0;
  const int why = ::posix_spawnp(&child, command[0].c_str(), &files, nullptr, pointers(command).data(),
                                 pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  require(why == 0, "{} can't be started", command[0]);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGTERM);  // mpirun ends its ranks
      ::waitpid(child, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace tri
