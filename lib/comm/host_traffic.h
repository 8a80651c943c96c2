// What this process's host has told other ranks and heard from them, through Job and the calls of bootstrap.h. At a
// start, what grows with the job is here: every rank hears of every other.
#pragma once

#include <cstdint>

namespace tri {

struct HostTraffic {
  int64_t calls = 0;        // that all ranks of the job make
  int64_t heard_bytes = 0;  // that those brought to this rank
  int64_t messages = 0;     // that it sent to single ranks, except for the empty ones of await_members (mpi_wait.h)
  int64_t message_bytes = 0;
};

HostTraffic host_traffic();  // so far
// Any thread.
void count_host_call(int64_t heard_bytes);
void count_host_messages(int64_t messages, int64_t bytes_each);

}  // namespace tri
