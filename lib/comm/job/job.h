// Job: the lifetime of MPI in this process, and the few host-side exchanges that set-up and reports need.
//
// Everything here is collective over all ranks and called from the training thread (which runs the job's
// body), unless a function says otherwise. A failure of MPI throws Fatal (kComm). Exception: exchange() may run on
// another thread concurrently with collectives (MPI_THREAD_MULTIPLE; its messages have their own tag), one exchange()
// at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/base/mutex.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/device.h"
#include "lib/comm/groups/comm_group.h"
#include "lib/comm/host/bootstrap.h"
#include "lib/comm/host/messages.h"
#include "lib/comm/job/node_reaper.h"
#include "lib/comm/job/process_watch.h"
#include "lib/comm/job/shared_window.h"

namespace tri {

class Job {
 public:
  static constexpr double kConnectSeconds = 600;

  Job(int* argc, char*** argv);  // MPI_Init_thread(MULTIPLE); Fatal(kComm) when the library does not grant it
  ~Job();                        // MPI_Finalize, unless the job was ended
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  int node_rank() const { return node_rank_; }                            // rank among the ranks of this node
  int node_size() const { return static_cast<int>(node_ranks_.size()); }  // ranks on this node
  const std::vector<int>& node_ranks() const { return node_ranks_; }      // world ranks of this node, ascending
  const std::string& host() const { return host_; }                       // this node's name, for messages
  // Equal on all ranks of one running machine, which can open each other's memory, and different on other machines.
  const std::string& machine() const;

  // Returns rank 0's value on all ranks. T is any type that can be sent (messages.h), the same on all ranks.
  template <class T>
  T broadcast(const T& of_rank_0) {
    const bool root = world_rank_ == 0;
    const Call call(*this);
    const std::string bytes = broadcast_bytes(root ? to_bytes(of_rank_0) : std::string());
    return root ? of_rank_0 : from_bytes<T>(bytes);
  }
  // Returns all ranks' values, by world rank, on rank 0; empty elsewhere.
  template <class T>
  std::vector<T> gather(const T& mine) {
    const Call call(*this);
    return values_of<T>(collect_bytes(to_bytes(mine), Receivers::kRank0));
  }
  // Returns all ranks' values, by world rank, on all ranks.
  template <class T>
  std::vector<T> all_gather(const T& mine) {
    const Call call(*this);
    return values_of<T>(collect_bytes(to_bytes(mine), Receivers::kAll));
  }
  bool all_of(bool mine);  // returns on all ranks whether `mine` is true on all
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
  // Sends and receives many messages of any size between host memories. Messages from one rank to another arrive in the
  // order of the lists; what one side sends the other must expect. Called by the ranks that have messages for each
  // other.
  void exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming);

  // Ends every rank of the job with `code`, whatever this rank's other threads and the other ranks are doing. Kills
  // ranks of this node that survive the launcher's kill by two seconds, for instance because they are stopped. Not
  // collective; any thread may call it.
  [[noreturn]] void end_all(ExitCode code);
  // The same, after a line that names the rank, its host and `what`. If several ranks of a node fail with the same
  // message, only the first prints it. Not collective; any thread may call it.
  [[noreturn]] void fail(const std::string& what, ExitCode code, Cause cause = Cause::kHere);

  // The failure of a rank: mostly of this one, or of another one that has ended without a report.
  struct Failure {
    int world_rank = 0;
    ExitCode code = ExitCode::kComm;
    Cause cause = Cause::kHere;
    std::string text;
  };
  // What ended the job, if that was not the failure itself. It is printed last, and its code is the job's.
  struct FirstCause {
    std::string text;
    ExitCode code = ExitCode::kComm;
  };
  // Called before this process ends the job, on the thread that ends it. Must not throw, and must return within
  // seconds.
  using FailureHook = std::function<std::optional<FirstCause>(const Failure&)>;
  // Replaces the hook; {}: none. Any thread may call it.
  void set_failure_hook(FailureHook hook);

  // Returns the group of `world_ranks` (in that order), which contains this rank. Collective over the members only.
  // `tag` distinguishes groups that are created at the same time. `connect_seconds`: how long an NCCL call may wait for
  // other members until the group is connected (fault.connect_seconds); after that the watchdog decides.
  std::unique_ptr<CommGroup> make_group(const std::string& name, const std::vector<int>& world_ranks, int tag,
                                        Device& device, double connect_seconds = kConnectSeconds);

 private:
  // Marks a collective call in this rank's flight recorder while it lives.
  class Call {
   public:
    explicit Call(Job& job);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    flight::Channel* channel_ = nullptr;  // null: there is no flight recorder
    uint32_t number_ = 0;
    const HostScope waits_{HostState::kAwaitsJob};
  };

  // The shared state by which the ranks of a node see each other's end.
  struct NodeState {
    std::atomic<uint64_t> failure;   // a hash of the message of the first failure; 0: none
    std::atomic<bool> reported;      // ... and it was printed
    std::atomic<bool> ending;        // a rank is ending the job
    std::atomic<bool> reaps;         // ... and one is starting a NodeReaper
    std::atomic<bool> reaper_there;  // ... which runs, or cannot be started
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

  bool report(const std::string& line, const std::string& what);
  ExitCode run_failure_hook(const Failure& failure) TRI_REQUIRES(ending_);
  void neighbour_ended(int rank, const std::string& what, const ProcessWatch::WaitFor& wait_for);

  template <class T>
  static std::vector<T> values_of(const std::vector<std::string>& messages) {
    std::vector<T> values;
    for (const std::string& bytes : messages) values.push_back(from_bytes<T>(bytes));
    return values;
  }

  int world_rank_ = 0, world_size_ = 1, node_rank_ = 0;
  std::vector<int> node_ranks_;
  std::string host_, machine_;
  std::unique_ptr<SharedWindow> node_memory_;  // of a NodeState
  NodeState* node_ = nullptr;
  FlightRecorder* recorder_ = nullptr;  // the flight recorder that holds calls_
  flight::Channel* calls_ = nullptr;
  Mutex ending_;                                               // never released by the thread that ends the job
  std::optional<ExitCode> ends_with_ TRI_GUARDED_BY(ending_);  // chosen by the failure hook
  Mutex hook_mutex_;
  FailureHook failure_hook_ TRI_GUARDED_BY(hook_mutex_);
  std::unique_ptr<ProcessWatch> watch_;
  std::unique_ptr<NodeReaper> reaper_;
};

// Agrees on success: returns each rank's own result if all have succeeded; otherwise all ranks return the same error,
// the first error of any rank (messages.h, first_error). Collective.
template <class T>
Result<T> agree(Job& job, Result<T> mine) {
  if (job.all_of(mine.ok())) return mine;
  return *first_error(job.all_gather(mine ? std::optional<Error>() : std::optional(mine.error())));
}

// Runs a process as one rank: starts MPI, runs `body` on its own thread, ends MPI, and returns the exit status of
// `body`. An exception that nothing in `body` handles, or in any other thread, is reported with its status and ends the
// whole job where it is thrown. No destructor runs, since destructors may wait for peers, or for a GPU that waits for
// peers. A single rank that left would hang the others.
int run_job(int* argc, char*** argv, const std::function<int(Job&)>& body);

}  // namespace tri
