// What NCCL itself says of its communicators: its RAS service, which NCCL >= 2.24 keeps for the ranks of a job.
#pragma once

#include <string>

namespace tri {

// The service's answer to "verbose status", as far as it comes within `seconds`; "" where nobody answers. It listens on
// the port 28028 of each node, or where NCCL_RAS_ADDR says (HOST:PORT), and speaks lines of text over TCP.
std::string nccl_report(double seconds);

}  // namespace tri
