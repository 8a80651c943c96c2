// Counts the traffic of this process's host with other ranks through Job and bootstrap.h. It shows how start-up grows
// with the job, since every rank receives data from every other one. Safe for concurrent use.
#pragma once

#include <cstdint>

namespace tri {

struct HostTraffic {
  int64_t calls = 0;        // calls made by all ranks of the job
  int64_t heard_bytes = 0;  // received in those calls by this rank
  int64_t messages = 0;     // sent to single ranks, except for the empty ones of await_members (mpi_wait.h)
  int64_t message_bytes = 0;
};

HostTraffic host_traffic();  // so far
void count_host_call(int64_t heard_bytes);
void count_host_messages(int64_t messages, int64_t bytes_each);

}  // namespace tri
