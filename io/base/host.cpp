#include "io/base/host.h"

#include <unistd.h>

namespace tri {

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace tri
