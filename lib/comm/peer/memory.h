// Peer memory: the arenas of a group's members on one machine, opened in this process.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/arena.h"

namespace tri {

class Job;

// Where the members of a group have their memory, as this process sees it.
struct PeerMemory {
  int rank = 0;
  std::vector<char*> base;  // [member]; base[rank] is this rank's

  int size() const { return static_cast<int>(base.size()); }
  // What lies at `local` here, in the memory of `member`.
  template <class T>
  T* at(int member, T* local) const {
    return reinterpret_cast<T*>(base[static_cast<size_t>(member)] +
                                (reinterpret_cast<char*>(local) - base[static_cast<size_t>(rank)]));
  }
};

class PeerArenas {
 public:
  // Called by the members of `world_ranks` only. All members get views, or all the same error: they are on several
  // machines, or one cannot open another's memory.
  static Result<std::unique_ptr<PeerArenas>> open(const std::vector<int>& world_ranks, Job& job, Device& device,
                                                  const Arena& arena);
  // Closes the views and waits until all members have: then the arenas may go. Nothing where the device has failed or
  // an exception is unwinding: the others may never come.
  ~PeerArenas();
  PeerArenas(const PeerArenas&) = delete;
  PeerArenas& operator=(const PeerArenas&) = delete;

  const PeerMemory& memory() const { return memory_; }

 private:
  PeerArenas(const std::vector<int>& world_ranks, Device& device)
      : world_ranks_(world_ranks), device_(device), exceptions_(std::uncaught_exceptions()) {}

  const std::vector<int> world_ranks_;
  Device& device_;
  const int exceptions_;  // that were unwinding when it was made
  PeerMemory memory_;
};

}  // namespace tri
