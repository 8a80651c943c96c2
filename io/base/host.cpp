#include "io/base/host.h"

#include <unistd.h>

#include <csignal>

#include "io/base/text_file.h"

namespace tri {

std::string boot_id() { return first_line_of("/proc/sys/kernel/random/boot_id"); }

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

void ignore_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace tri
