#include "lib/fault/node_dumps.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "io/base/file.h"
#include "io/base/log.h"
#include "io/base/mutex.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/fault/dump_folder.h"
#include "lib/fault/thread_stacks.h"

namespace tri {
namespace {

constexpr double kOtherAnswerSeconds = 2, kOtherTimeoutSeconds = 30;  // for a dump that another node has begun

// Maps the flight recorder of another rank for reading and writing. Returns null if there is none of this version, or
// if it is not a regular file of this user: any user may put files and links into /dev/shm.
flight::Image* map_record(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return nullptr;
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return nullptr;
  if (info.st_size < static_cast<off_t>(sizeof(flight::Image))) return nullptr;
  void* memory = ::mmap(nullptr, sizeof(flight::Image), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const image = static_cast<flight::Image*>(memory);
  if (image->magic == flight::kMagic && image->version == flight::kVersion) return image;
  ::munmap(memory, sizeof(flight::Image));
  return nullptr;
}

// A failed dump must not end a run that may be healthy.
DumpOutcome carry_out(const DumpingNode& node, const DumpOrder& order, const DumpProgress& progress) {
  try {
    return dump_node(node, order, progress);
  } catch (const std::exception& problem) {
    DumpOutcome outcome;
    outcome.problem = problem.what();
    outcome.trigger = order.trigger;
    return outcome;
  }
}

}  // namespace

struct NodeDumps::State {
  std::function<void(const DumpOutcome&)> on_report;  // set before threads start

  mutable Mutex mutex;  // held only briefly, never during a call that may hang
  ConditionVariable changed;
  DumpingNode node TRI_GUARDED_BY(mutex);
  struct Claimed {
    DumpOrder order;
    int64_t time = 0;
  };
  // Dumps to make, one after another: nodes match them by number.
  std::deque<Claimed> orders TRI_GUARDED_BY(mutex);
  Known known TRI_GUARDED_BY(mutex);
  bool over TRI_GUARDED_BY(mutex) = false;
  // ... and the owner has been destroyed, together with everything on_report uses.
  bool left TRI_GUARDED_BY(mutex) = false;
  bool dumps TRI_GUARDED_BY(mutex) = false;   // a dump is in progress
  int num_threads TRI_GUARDED_BY(mutex) = 0;  // running threads

  ~State() {
    for (flight::Image* const image : node.images)
      if (image != nullptr) ::munmap(image, sizeof(flight::Image));
  }

  // Maps the node's flight recorders that exist by now. The ranks of the node coordinate through the first one.
  flight::Image* map_records() TRI_REQUIRES(mutex) {
    flight::Image* first = nullptr;
    for (size_t i = 0; i < node.recorders.size(); ++i) {
      if (node.images[i] == nullptr) node.images[i] = map_record(node.recorders[i]);
      if (first == nullptr) first = node.images[i];
    }
    return first;
  }

  bool claim(int64_t since, DumpOrder wanted) {
    const MutexLock lock(mutex);
    flight::Image* const first = map_records();
    if (first == nullptr || over) return false;
    flight::Time& word = wanted.trigger.world_rank < 0 ? first->requested_dump_began : first->hang_dump_began;
    int64_t claimed = word.load();
    const int64_t now = FlightRecorder::now();
    if (claimed > since || !word.compare_exchange_strong(claimed, now)) return false;
    wanted.number = static_cast<int>(first->dumps.fetch_add(1)) + 1;
    orders.push_back({wanted, now});
    known = {.claimed = now};
    changed.notify_all();
    return true;
  }
};

NodeDumps::NodeDumps(DumpingNode node, const std::string& own_record, const std::vector<int>& node_ranks,
                     std::function<void(const DumpOutcome&)> on_report, std::chrono::milliseconds listen_interval)
    : state_(std::make_shared<State>()) {
  // The names of flight recorders differ only in the rank after the last dot.
  const std::string stem = own_record.substr(0, own_record.rfind('.') + 1);
  for (const int rank : node_ranks) node.recorders.push_back(stem + std::to_string(rank));
  node.images.resize(node.recorders.size());
  const bool listens = !node.run_dir.empty() && node.world_rank == node_ranks.front() &&
                       node.world_size > static_cast<int>(node_ranks.size());
  state_->node = std::move(node);
  state_->on_report = std::move(on_report);
  state_->num_threads = listens ? 2 : 1;
  std::thread([state = state_] { work(state); }).detach();
  if (listens) std::thread([state = state_, listen_interval] { listen(state, listen_interval); }).detach();
}

NodeDumps::~NodeDumps() {
  constexpr std::chrono::seconds kTimeout{1};
  const MutexLock lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
  const auto ended = [this]() TRI_REQUIRES(state_->mutex) { return state_->num_threads == 0; };
  if (state_->changed.wait_for(state_->mutex, kTimeout, ended)) return;
  state_->left = true;
  if (state_->dumps)
    log_warn("the run ended during a dump; {} may lack the records of some ranks",
             state_->known.folder.empty() ? state_->node.run_dir + "/hang" : state_->known.folder);
}

bool NodeDumps::claim(int64_t since, const HangTrigger& trigger, double answer_seconds, double timeout_seconds) {
  return state_->claim(since,
                       {.trigger = trigger, .answer_seconds = answer_seconds, .timeout_seconds = timeout_seconds});
}

NodeDumps::Known NodeDumps::known() const {
  const MutexLock lock(state_->mutex);
  return state_->known;
}

void NodeDumps::work(const std::shared_ptr<State>& state) {
  name_thread("dumps");
  MutexLock lock(state->mutex);
  for (;;) {
    while (!state->over && state->orders.empty()) state->changed.wait(state->mutex);
    if (state->over) break;
    const auto [order, claimed] = state->orders.front();
    state->orders.pop_front();
    const DumpingNode node = state->node;
    state->dumps = true;
    lock.unlock();
    const auto know = [&, claimed = claimed](const auto& change) {  // unless another dump was claimed in the meantime
      const MutexLock moment(state->mutex);
      if (state->known.claimed == claimed) change(state->known);
    };
    const DumpProgress note_progress = [&](const DumpOutcome& outcome) {
      know([&](Known& k) {
        k.headline = outcome.verdict.headline;
        k.folder = outcome.folder;
        k.problem = outcome.problem;
        k.speaks = outcome.folder.empty() || outcome.opened || outcome.wrote_report;
      });
    };
    const DumpOutcome outcome = carry_out(node, order, note_progress);
    know([&](Known& k) {
      k.problem = outcome.problem;
      k.done = true;
    });
    lock.lock();
    state->dumps = false;
    if (state->left || (!outcome.wrote_report && outcome.problem.empty())) continue;
    lock.unlock();
    state->on_report(outcome);
    lock.lock();
  }
  --state->num_threads;
  state->changed.notify_all();
}

void NodeDumps::listen(const std::shared_ptr<State>& state, std::chrono::milliseconds interval) {
  name_thread("dump listener");
  MutexLock lock(state->mutex);
  const std::string run_dir = state->node.run_dir, attempt = state->node.attempt;
  const auto over = [&]() TRI_REQUIRES(state->mutex) { return state->over; };
  while (!state->changed.wait_for(state->mutex, interval, over)) {
    flight::Image* const first = state->map_records();
    lock.unlock();
    const int seen = newest_dump(run_dir, attempt);
    const int taken_part = first == nullptr ? 0 : static_cast<int>(first->dumps.load());
    if (first != nullptr && seen > taken_part)
      if (const auto dump = join_dump(run_dir, attempt, taken_part + 1, {}))
        state->claim(FlightRecorder::now() - 1, {.trigger = dump.value().trigger,
                                                 .answer_seconds = kOtherAnswerSeconds,
                                                 .timeout_seconds = kOtherTimeoutSeconds});
    lock.lock();
  }
  --state->num_threads;
  state->changed.notify_all();
}

}  // namespace tri
