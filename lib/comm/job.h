// Job: MPI's life in this process, and the few host-side exchanges that set-up and reports need.
// Everything here is collective over all ranks unless it says otherwise, and called from the main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "kernels/core/device.h"
#include "lib/comm/comm_group.h"

namespace tri {

class Job {
 public:
  Job(int* argc, char*** argv);  // MPI_Init_thread(MULTIPLE); Fatal(kComm) when the library does not grant it
  ~Job();                        // MPI_Finalize, unless the job was ended
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  int node_rank() const { return node_rank_; }                            // rank among the ranks of this node
  int node_size() const { return static_cast<int>(node_ranks_.size()); }  // of which there are so many
  const std::vector<int>& node_ranks() const { return node_ranks_; }      // their world ranks, ascending

  std::string broadcast(std::string text);                       // rank 0's text, on all
  std::vector<std::string> gather(std::string text);             // all ranks' texts, on rank 0; empty elsewhere
  std::vector<std::string> all_gather(const std::string& text);  // ... on all
  bool all_of(bool mine);                                        // whether every rank says so, on all
  void barrier();

  struct Outgoing {
    int to;  // world rank
    const void* data;
    int64_t bytes;
  };
  struct Incoming {
    int from;
    int64_t bytes;
    std::function<void(const char* data)> take;  // `data` is valid during the call
  };
  // Many messages of any sizes between host memories. Those from one rank to another come in the order of the lists,
  // and what one side sends the other must expect.
  void exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming);

  // Ends every rank of the job with `code`. Not collective; any thread.
  [[noreturn]] void end_all(ExitCode code);

  // The group of `world_ranks` (in that order), which contains this rank. Called by its members only: no barrier over
  // the others. `tag` tells apart groups that are made at the same time.
  std::unique_ptr<CommGroup> make_group(const std::string& name, const std::vector<int>& world_ranks, int tag,
                                        Device& device);

 private:
  int world_rank_ = 0, world_size_ = 1, node_rank_ = 0;
  std::vector<int> node_ranks_;
};

// The first error that any rank met, on all ranks.
Result<void> agree(Job& job, const Result<void>& mine);

// A process's life as one rank: MPI starts, `body` runs and returns the exit status, MPI ends. What `body` throws is
// reported in this rank's words and ends the whole job with its status: a rank that left alone would hang the rest.
int run_job(int* argc, char*** argv, const std::function<int(Job&)>& body);

}  // namespace tri
