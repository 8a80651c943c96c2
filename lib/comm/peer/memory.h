// Peer memory: the arenas of a group's members on one machine, opened in this process.
#pragma once

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

// The same for all processes of a running machine, and for no others.
std::string machine_name();
// For tests: another name, so that processes of one machine count as those of several; "" is the machine's own again.
void set_machine_name(std::string name);

class PeerArenas {
 public:
  // Called by the members of `world_ranks` only. All members get views, or all the same error: they are on several
  // machines, or one cannot open another's memory.
  static Result<std::unique_ptr<PeerArenas>> open(const std::vector<int>& world_ranks, Job& job, Device& device,
                                                  const Arena& arena);
  // Closes the views and, unless the device has failed, waits until all members have: then the arenas may go.
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
