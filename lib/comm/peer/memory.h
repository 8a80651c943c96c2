// Peer memory: the arenas of a group's members on one machine, opened in this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/arena.h"

namespace tri {

class Job;

// The memory of a group's members, as mapped in this process.
struct PeerMemory {
  int rank = 0;
  std::vector<char*> base;  // [member]; base[rank] is this rank's

  int size() const { return static_cast<int>(base.size()); }
  // Returns the address in the memory of `member` that corresponds to `local` in this rank's.
  template <class T>
  T* at(int member, T* local) const {
    return reinterpret_cast<T*>(base[static_cast<size_t>(member)] +
                                (reinterpret_cast<char*>(local) - base[static_cast<size_t>(rank)]));
  }
};

class PeerArenas {
 public:
  // Opens the members' arenas. All members get views, or all fail with the same error: they are on several machines, or
  // one cannot open another's memory. Collective over `world_ranks` only.
  static Result<std::unique_ptr<PeerArenas>> open(const std::vector<int>& world_ranks, Job& job, Device& device,
                                                  const Arena& arena);
  // Closes the views and waits until all members have closed theirs; then the arenas may be freed. Does nothing if the
  // device has failed or an exception unwinds, since the others may never arrive.
  ~PeerArenas();
  PeerArenas(const PeerArenas&) = delete;
  PeerArenas& operator=(const PeerArenas&) = delete;

  const PeerMemory& memory() const { return memory_; }

 private:
  PeerArenas(const std::vector<int>& world_ranks, Device& device) : world_ranks_(world_ranks), device_(device) {}

  const std::vector<int> world_ranks_;
  Device& device_;
  PeerMemory memory_;
};

}  // namespace tri
