// Runs a part of a test in a child process: it may lose rights, limits or its life there.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace tri {

inline void silence_stderr() {
  const int null = ::open("/dev/null", O_WRONLY);
  if (null >= 0) ::dup2(null, STDERR_FILENO);
}

// What `body` returns in the child; "died" when it does not return. Its stderr is silent.
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    silence_stderr();
    std::string text;
    try {
      text = "said " + body();
    } catch (const std::exception& problem) {
      text = std::string("threw ") + problem.what();
    }
    const ssize_t put = ::write(ends[1], text.data(), text.size());
    std::exit(put == static_cast<ssize_t>(text.size()) ? 0 : 1);  // exit handlers run: HDF5's must survive, too
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
