// Nodes that are only names: where TRIREME_TEST_HOST is set, the machine of a process that is linked with this is
// called so, for the process and for the libraries that it loads.
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" int gethostname(char* name, size_t size) noexcept {
  struct utsname system {};
  const char* host = std::getenv("TRIREME_TEST_HOST");
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
