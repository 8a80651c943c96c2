// This machine and this process.
#pragma once

#include <string>

namespace tri {

std::string boot_id();    // of this boot of this machine; "": not known
std::string host_name();  // of this machine, as gethostname gives it

// From now on `signal` does nothing in this process. Programs that it starts have the default action again, which
// SIG_IGN would not give them. Waits for descriptors and sleeps (poll, nanosleep) still return with EINTR.
void ignore_signal(int signal);

}  // namespace tri
