// Memory that several ranks of one node see.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tri {

class Job;

class SharedWindow {
 public:
  // Collective over `members` (world ranks of one node), and over them alone. All see the same `bytes`, zero and
  // aligned to 64 bytes, maybe at different addresses. A member alone, which needs no job, gets memory of its own.
  // Fatal(kComm) when there is no room for it.
  SharedWindow(Job* job, const std::vector<int>& members, int64_t bytes);
  // Waits for all members, unless an exception is unwinding: then the memory stays until the processes end.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  void* memory() const { return memory_; }

 private:
  struct Mpi;  // the window and its communicator

  void* memory_ = nullptr;
  std::unique_ptr<Mpi> mpi_;  // null: a member alone
  const int exceptions_;      // that were unwinding when it was made
};

}  // namespace tri
