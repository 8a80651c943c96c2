// Memory shared by several ranks of one node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tri {

class Job;

class SharedWindow {
 public:
  // All members get the same `bytes`, zeroed and aligned to 64 bytes, possibly at different addresses. A single member,
  // which needs no job, gets its own memory. Throws Fatal (kComm) if the memory cannot be allocated. Collective over
  // `members` (world ranks of one node) only.
  SharedWindow(Job* job, const std::vector<int>& members, int64_t bytes);
  // Waits for all members, unless an exception unwinds: then the memory stays until the processes end.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  void* memory() const { return memory_; }

 private:
  struct Mpi;  // the window and its communicator

  void* memory_ = nullptr;
  std::unique_ptr<Mpi> mpi_;  // null: a member alone
};

}  // namespace tri
