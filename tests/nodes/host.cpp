// Nodes that are only names, for the process that is linked with this and the libraries that it loads: its machine is
// called TRIREME_TEST_HOST or, if TRIREME_TEST_NODES=N is set, "nodeK" of N with equal runs of a job's ranks.
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" int gethostname(char* name, size_t size) noexcept {
  struct utsname system {};
  const char* host = std::getenv("TRIREME_TEST_HOST");
  char numbered[32];
  const char *nodes = std::getenv("TRIREME_TEST_NODES"), *rank = std::getenv("OMPI_COMM_WORLD_RANK"),
             *ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (nodes != nullptr && rank != nullptr && ranks != nullptr) {
    std::snprintf(numbered, sizeof numbered, "node%d", std::atoi(rank) * std::atoi(nodes) / std::atoi(ranks));
    host = numbered;
  }
  if (host == nullptr) {
    if (::uname(&system) != 0) return -1;
    host = system.nodename;
  }
  if (std::strlen(host) >= size) {
    errno = ENAMETOOLONG;
    return -1;
  }
  std::strcpy(name, host);
  return 0;
}
