#pragma once

#include <string>

namespace tri {

std::string host_name();  // of this machine, as gethostname gives it

}  // namespace tri
