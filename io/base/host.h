// This machine and this process.
#pragma once

#include <string>

namespace tri {

std::string boot_id();    // of this boot of this machine; "": unknown
std::string host_name();  // of this machine, from gethostname

// Makes this process ignore `signal`. Programs that it starts have the default action again, unlike with SIG_IGN. Waits
// for descriptors and sleeps (poll, nanosleep) still return with EINTR.
void ignore_signal(int signal);

}  // namespace tri
