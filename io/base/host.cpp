#include "io/base/host.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include "io/base/text_file.h"

namespace tri {

std::string boot_id() { return first_line_of("/proc/sys/kernel/random/boot_id"); }

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string output_of(const std::string& command) {
  struct Close {
    void operator()(FILE* pipe) const { ::pclose(pipe); }
  };
  const std::unique_ptr<FILE, Close> pipe(::popen(command.c_str(), "re"));
  std::string output;
  char part[4096];
  for (size_t got = 1; pipe && got > 0;) output.append(part, got = std::fread(part, 1, sizeof part, pipe.get()));
  return output;
}

void ignore_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace tri
