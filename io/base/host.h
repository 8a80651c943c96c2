#pragma once

#include <string>

namespace tri {

std::string boot_id();    // of this boot of this machine; "": not known
std::string host_name();  // of this machine, as gethostname gives it

}  // namespace tri
