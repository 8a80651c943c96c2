// NCCL's own report on its communicators, from its RAS service, which NCCL >= 2.24 runs for the ranks of a job.
#pragma once

#include <string>

namespace tri {

// Returns the service's answer to "verbose status" as far as it arrives within `seconds`; "" if there is none. The
// service listens on port 28028 of each node, or at NCCL_RAS_ADDR (HOST:PORT), and sends lines of text over TCP.
std::string nccl_report(double seconds);

}  // namespace tri
