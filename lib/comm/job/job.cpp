#include "lib/comm/job/job.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "io/base/hash.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/poll.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/groups/mpi_group.h"
#include "lib/comm/groups/nccl_group.h"
#include "lib/comm/host/host_traffic.h"
#include "lib/comm/host/mpi_check.h"
#include "lib/comm/host/mpi_wait.h"

namespace tri {
namespace {

constexpr int kExchangeTag = 32000;  // groups under construction have smaller tags

}  // namespace

Job::Job(int* argc, char*** argv) {
  int provided = 0;
  TRI_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_MULTIPLE)
    throw Fatal(ExitCode::kComm, "this MPI library does not grant MPI_THREAD_MULTIPLE; use an Open MPI built with it");
  TRI_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_));
  TRI_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size_));
  MPI_Comm node;
  TRI_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank_, MPI_INFO_NULL, &node));
  TRI_MPI(MPI_Comm_rank(node, &node_rank_));
  int node_size = 1;
  TRI_MPI(MPI_Comm_size(node, &node_size));
  node_ranks_.resize(static_cast<size_t>(node_size));
  TRI_MPI(MPI_Allgather(&world_rank_, 1, MPI_INT, node_ranks_.data(), 1, MPI_INT, node));
  const ProcessId self = this_process();
  std::vector<ProcessId> processes(node_ranks_.size());
  TRI_MPI(MPI_Allgather(&self, sizeof self, MPI_BYTE, processes.data(), sizeof self, MPI_BYTE, node));
  TRI_MPI(MPI_Comm_free(&node));

  host_ = host_name();
  machine_ = fmt::format("{} {}", host_, boot_id());

  node_memory_ = std::make_unique<SharedWindow>(this, node_ranks_, sizeof(NodeState));
  node_ = static_cast<NodeState*>(node_memory_->memory());  // zero: no rank has failed
  reaper_ = std::make_unique<NodeReaper>(processes);
  // The ranks watch each other in a ring, so that whenever some ranks end, at least one of them is watched by a live
  // rank.
  if (node_size > 1) {
    const auto next = static_cast<size_t>((node_rank_ + 1) % node_size);
    watch_ = std::make_unique<ProcessWatch>(
        processes[next], [this, rank = node_ranks_[next], pid = processes[next].pid](
                             const std::string& ending, const ProcessWatch::WaitFor& wait_for) {
          neighbour_ended(rank, fmt::format("process {} {}", pid, ending), wait_for);
        });
  }
}

const std::string& Job::machine() const { return machine_; }

// Every rank of this node stops watching before any of them ends: the memory is freed once all have released it.
Job::~Job() {
  watch_.reset();
  node_memory_.reset();
  MPI_Finalize();
}

Job::Call::Call(Job& job) {
  FlightRecorder* const recorder = flight_recorder();
  if (recorder == nullptr || job.world_size_ == 1) return;
  if (job.recorder_ != recorder) {
    job.recorder_ = recorder;
    job.calls_ = recorder->add_channel("job", ChannelKind::kHost, {0, 1, job.world_size_}, job.world_rank_);
  }
  channel_ = job.calls_;
  if (channel_ == nullptr) return;
  number_ = recorder->enqueue(*channel_, ChannelOperation::kHostCall, 0);
  channel_->joined.store(number_, std::memory_order_relaxed);
}

Job::Call::~Call() {
  if (channel_ == nullptr) return;
  channel_->completed.store(number_, std::memory_order_relaxed);
  tick_flight_recorder();
}

bool Job::all_of(bool mine) {
  const Call call(*this);
  int all = mine;
  count_host_call(sizeof all);
  MPI_Request request;
  TRI_MPI(MPI_Iallreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD, &request));
  wait_sleeping(request);
  return all != 0;
}

void Job::barrier() {
  const Call call(*this);
  count_host_call(0);
  await_all_ranks();
}

// All sends are started before the first receive is waited for, so no order of ranks can deadlock.
void Job::exchange(const std::vector<Outgoing>& outgoing, const std::vector<Incoming>& incoming) {
  const HostScope waits(HostState::kAwaitsJob);  // no Call: ranks call this different numbers of times
  std::vector<MPI_Request> sends;
  for (const Outgoing& message : outgoing)
    for (int64_t at = 0; at < message.bytes; at += kMaxMessageBytes)
      TRI_MPI(MPI_Isend(static_cast<const char*>(message.data) + at,
                        static_cast<int>(std::min(kMaxMessageBytes, message.bytes - at)), MPI_BYTE, message.to,
                        kExchangeTag, MPI_COMM_WORLD, &sends.emplace_back()));
  std::vector<char> buffer;
  for (const Incoming& message : incoming) {
    buffer.resize(static_cast<size_t>(message.bytes));
    for (int64_t at = 0; at < message.bytes; at += kMaxMessageBytes) {
      MPI_Request request;
      TRI_MPI(MPI_Irecv(buffer.data() + at, static_cast<int>(std::min(kMaxMessageBytes, message.bytes - at)), MPI_BYTE,
                        message.from, kExchangeTag, MPI_COMM_WORLD, &request));
      wait_sleeping(request);
    }
    message.take(buffer.data());
    tick_flight_recorder();
  }
  wait_sleeping(sends);
}

// The launcher gives the job the status of the first rank that ends. So this rank ends with `code`, by MPI or directly,
// before the reaper kills any. No rank aborts before the node's reaper runs: the launcher would then kill the rank that
// starts it. A fork can be delayed for seconds by a process that has the same files mapped and gets no processor time;
// waits for it at most kForkTimeout.
void Job::end_all(ExitCode code) {
  constexpr double kReaperTimeout = 2;                      // seconds
  constexpr std::chrono::milliseconds kAbortTimeout{1500};  // MPI's calls may hang
  const auto await_reaper = [node = node_] {
    constexpr std::chrono::milliseconds kForkTimeout{3000}, kPause{1};
    poll_for(kForkTimeout, kPause, [&] { return node->reaper_there.load(); });
  };
  const auto abort = [=] {
    await_reaper();
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  };
  node_->ending = true;
  bool has_thread = true;
  try {
    std::thread(abort).detach();
  } catch (const std::system_error&) {
    has_thread = false;
  }
  if (!node_->reaps.exchange(true)) {
    reaper_->start(kReaperTimeout);
    node_->reaper_there = true;
  }
  if (!has_thread) abort();
  await_reaper();
  std::this_thread::sleep_for(kAbortTimeout);
  std::_Exit(static_cast<int>(code));
}

// Prints `line` unless another rank of the node has printed the same message. Returns whether it was printed.
bool Job::report(const std::string& line, const std::string& what) {
  constexpr std::chrono::seconds kTimeout{3};  // for a rank that is about to print
  constexpr std::chrono::milliseconds kPause{1};
  const uint64_t mine = xxh3_64(what) | 1;
  uint64_t first = 0;
  if (node_->failure.compare_exchange_strong(first, mine)) {
    log_error("{}", line);
    node_->reported = true;
    return true;
  }
  // If this rank ended now, it would interrupt the first one's report.
  poll_for(kTimeout, kPause, [&] { return node_->reported.load(); });
  if (first == mine) return false;
  log_error("{}", line);
  return true;
}

void Job::set_failure_hook(FailureHook hook) {
  const MutexLock lock(hook_mutex_);
  failure_hook_ = std::move(hook);
}

// Returns the job's exit code. The hook runs once: it reads and writes files of the run, and only the first cause
// counts.
ExitCode Job::run_failure_hook(const Failure& failure) {
  if (FlightRecorder* const recorder = flight_recorder(); recorder != nullptr && failure.world_rank == world_rank_)
    recorder->failure(static_cast<uint32_t>(failure.code), failure.cause == Cause::kPeer, failure.text);
  if (ends_with_) return *ends_with_;
  FailureHook hook;
  {
    const MutexLock lock(hook_mutex_);
    hook = failure_hook_;
  }
  const auto cause = hook ? hook(failure) : std::nullopt;
  if (cause) log_last_words(fmt::format("first cause: {}", cause->text));
  ends_with_ = cause ? cause->code : failure.code;
  return *ends_with_;
}

void Job::fail(const std::string& what, ExitCode code, Cause cause) {
  ending_.lock();
  report(world_size_ == 1 ? what : fmt::format("rank {} on {}: {}", world_rank_, host_, what), what);
  end_all(run_failure_hook({.world_rank = world_rank_, .code = code, .cause = cause, .text = what}));
}

// The launcher usually notices too, and ends the job with the status of that process. If it lets the other ranks
// continue, they would wait for the ended one forever.
void Job::neighbour_ended(int rank, const std::string& what, const ProcessWatch::WaitFor& wait_for) {
  constexpr double kLauncherFirst = 10;  // seconds
  if (node_->ending || node_->failure != 0) return;
  const std::string line = fmt::format("rank {} on {} is gone: {}", rank, host_, what);
  if (!ending_.try_lock()) return;  // this process is already ending the job
  report(line, line);
  const ExitCode code = run_failure_hook({.world_rank = rank, .text = what});
  ending_.unlock();
  if (wait_for(kLauncherFirst)) return;
  ending_.lock();
  end_all(code);
}

std::unique_ptr<CommGroup> Job::make_group(const std::string& name, const std::vector<int>& world_ranks, int tag,
                                           Device& device, double connect_seconds) {
  if (world_ranks.size() == 1) return make_self_group(name);
  if (device.kind() == DeviceKind::kCuda)
    return make_nccl_group(name, world_ranks, world_rank_, tag, device, connect_seconds);
  MPI_Group world, members;
  MPI_Comm comm;
  await_members(world_ranks);
  TRI_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  TRI_MPI(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members));
  TRI_MPI(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &comm));
  TRI_MPI(MPI_Group_free(&members));
  TRI_MPI(MPI_Group_free(&world));
  return make_mpi_group(name, comm, device);
}

namespace {

std::atomic<Job*> g_job{nullptr};  // the job whose body runs in this process

// C++ calls this for an unhandled exception before it unwinds, on the thread that threw, with its stack intact.
[[noreturn]] void end_job_of_exception() {
  std::string what = "internal error: terminated without an exception";
  auto code = static_cast<ExitCode>(1);  // any other exception is a bug
  auto cause = Cause::kHere;
  try {
    if (const auto exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const Fatal& fatal) {
    what = fatal.what();
    code = fatal.code();
    cause = fatal.cause();
  } catch (const std::bad_alloc&) {
    what = "out of memory on the host" + address_space_limit();
  } catch (const std::exception& problem) {
    what = problem.what();
  } catch (...) {
    what = "internal error: an exception of an unknown type";
  }
  g_job.load()->fail(what, code, cause);
}

}  // namespace

int run_job(int* argc, char*** argv, const std::function<int(Job&)>& body) {
  Job job(argc, argv);
  g_job = &job;
  const std::terminate_handler before = std::set_terminate(end_job_of_exception);
  int status = 0;
  // No function on a new thread's stack handles exceptions; a function above main might.
  std::thread([&] { status = body(job); }).join();
  std::set_terminate(before);
  g_job = nullptr;
  return status;
}

}  // namespace tri
