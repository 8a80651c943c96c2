#include "kernels/cpu/device.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "io/base/clock.h"
#include "io/base/mutex.h"
#include "io/base/proc.h"
#include "io/base/text_file.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/arena.h"
#include "kernels/core/dims.h"
#include "kernels/core/shared_limit.h"
#include "kernels/ops.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Sleeps while `word` equals `seen`, until a wake-up or for `timeout`; may return early. `sharing` is 0 if other
// processes also map the word, else FUTEX_PRIVATE_FLAG.
void sleep_while(const uint32_t* word, uint32_t seen, const timespec* timeout, int sharing) {
  ::syscall(SYS_futex, word, FUTEX_WAIT | sharing, seen, timeout, nullptr, 0);
}
void wake_all(const uint32_t* word, int sharing) {
  ::syscall(SYS_futex, word, FUTEX_WAKE | sharing, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

// Opens once. Replaces std::latch, whose waiters yield a few times before they sleep: if ranks outnumber cores, the
// yields are most of the cost of a waiting rank.
class Gate {
 public:
  void open() {
    if (state_.exchange(kOpen, std::memory_order_acq_rel) == kAwaited) wake_all(word(), FUTEX_PRIVATE_FLAG);
  }
  void wait() const {
    for (uint32_t seen = state_.load(std::memory_order_acquire); seen != kOpen;) {
      if (seen == kAwaited || state_.compare_exchange_strong(seen, kAwaited, std::memory_order_acquire)) {
        sleep_while(word(), kAwaited, nullptr, FUTEX_PRIVATE_FLAG);
        seen = state_.load(std::memory_order_acquire);
      }
    }
  }

 private:
  static constexpr uint32_t kShut = 0, kAwaited = 1, kOpen = 2;
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  const uint32_t* word() const { return reinterpret_cast<const uint32_t*>(&state_); }

  mutable std::atomic<uint32_t> state_{kShut};
};

// Each record has its own gate, which opens when the stream reaches it. A waiter holds the record that was the latest
// at the time of its call, whatever any stream records later.
struct Record {
  Gate reached;
  Clock::time_point time;  // written before the gate opens, as is `work`
  double work = 0;         // of a timed event: seconds for which the stream's thread has run
  bool timed = false;
};
using RecordPtr = std::shared_ptr<Record>;

class CpuEvent : public Event {
 public:
  CpuEvent(const Fault& fault, EventKind kind) : fault_(fault), kind_(kind) {}

  RecordPtr next_record() {
    latest_ = std::make_shared<Record>();
    latest_->timed = kind_ == EventKind::kTimed;
    return latest_;
  }
  RecordPtr latest_record() const { return latest_; }  // null when never recorded
  void synchronize() override {
    const HostScope waits(HostState::kAwaitsDevice);
    if (latest_) latest_->reached.wait();
    fault_.rethrow();
  }
  double seconds_after(const Event& earlier) const override {
    const Record& begin = of(earlier);
    return std::chrono::duration<double>(of(*this).time - begin.time).count();
  }
  double work_seconds_after(const Event& earlier) const override {
    const Record& begin = of(earlier);
    return of(*this).work - begin.work;
  }
  std::optional<int64_t> host_nanoseconds() const override {
    TRI_REQUIRE(latest_ != nullptr, "time of an event that was never recorded");
    latest_->reached.wait();
    return std::chrono::nanoseconds(latest_->time.time_since_epoch()).count();
  }

 private:
  static const Record& of(const Event& event) {
    const RecordPtr& latest = static_cast<const CpuEvent&>(event).latest_;
    TRI_REQUIRE(latest != nullptr, "time of an event that was never recorded");
    latest->reached.wait();
    return *latest;
  }

  const Fault& fault_;
  const EventKind kind_;
  RecordPtr latest_;
};

class QueueStream final : public CpuStream {
 public:
  QueueStream(std::string name, Fault& fault) : CpuStream(std::move(name), cpu_ops()), fault_(fault) {
    worker_ = std::thread([this] { run(); });
  }
  ~QueueStream() override {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
    }
    filled_.notify_one();
    worker_.join();
  }

  void submit(std::function<void()> task) override { push({Kind::kTask, std::move(task), nullptr}); }
  void record(Event& event) override { push({Kind::kRecord, {}, static_cast<CpuEvent&>(event).next_record()}); }
  void wait(Event& event) override {
    RecordPtr latest = static_cast<CpuEvent&>(event).latest_record();
    if (latest) push({Kind::kWait, {}, std::move(latest)});
  }
  void set_flag(uint32_t* flag, uint32_t value) override {
    submit([=] {
      std::atomic_ref(*flag).store(value, std::memory_order_release);
      wake_all(flag, 0);
    });
  }
  void wait_flag(const uint32_t* flag, uint32_t value) override {
    push({Kind::kWait, [=, this] { await_flag(flag, value); }, nullptr});
  }
  // Wakes no thread: if the stream is idle, earlier work is done; otherwise its thread is awake or will be.
  void mark(std::atomic<uint32_t>& word, uint32_t value) override {
    const MutexLock lock(mutex_);
    if (queue_.empty() && idle_)
      word.store(value, std::memory_order_relaxed);
    else if (!queue_.empty() && queue_.back().word == nullptr)
      queue_.back().word = &word, queue_.back().value = value;
    else
      queue_.push_back({Kind::kMark, {}, nullptr, &word, value});
  }
  void synchronize() override {
    const HostScope waits(HostState::kAwaitsDevice);
    MutexLock lock(mutex_);
    while (!queue_.empty() || !idle_) drained_.wait(mutex_);
    lock.unlock();
    fault_.rethrow();
  }
  bool busy() override {
    const MutexLock lock(mutex_);
    return !queue_.empty() || !idle_;
  }
  std::optional<StreamTimes> times() const override {
    const MutexLock lock(mutex_);
    return times_;
  }
  void reset_times() override {
    const MutexLock lock(mutex_);
    times_ = {};
  }

 private:
  enum class Kind { kTask, kRecord, kWait, kMark };  // kWait: for the record, or inside the task
  struct Item {
    Kind kind;
    std::function<void()> task;
    RecordPtr record;
    std::atomic<uint32_t>* word = nullptr;  // set to `value` after the item
    uint32_t value = 0;
  };

  // A flag that another rank may be setting is read atomically.
  void do_copy(void* dst, const void* src, int64_t bytes) override {
    if (bytes == sizeof(uint32_t) && reinterpret_cast<uintptr_t>(src) % alignof(uint32_t) == 0) {
      submit([=] {
        const auto* word = static_cast<const uint32_t*>(src);
        const uint32_t value = std::atomic_ref(const_cast<uint32_t&>(*word)).load(std::memory_order_acquire);
        std::memcpy(dst, &value, sizeof value);
      });
      return;
    }
    submit([=] { std::memcpy(dst, src, static_cast<size_t>(bytes)); });
  }
  void do_zero(Tensor tensor) override {
    submit([=] { std::memset(tensor.data, 0, static_cast<size_t>(tensor.bytes())); });
  }

  void push(Item item) {
    {
      const MutexLock lock(mutex_);
      queue_.push_back(std::move(item));
    }
    filled_.notify_one();
  }

  // Sleeps until set_flag, possibly in another process, wakes it: ranks may outnumber cores, and polling would take
  // processor time from ranks that compute. Processes share the memory of the flags, so the futex is not private. The
  // kernel compares the flag again before it puts the thread to sleep, so no wake-up is lost. A fault wakes no thread;
  // the function notices it within kLookForFault.
  void await_flag(const uint32_t* flag, uint32_t value) {
    constexpr timespec kLookForFault{.tv_sec = 0, .tv_nsec = 10'000'000};
    constexpr int kPolls = 50;  // these polls take less time than a sleep and a wake-up
    const std::atomic_ref<uint32_t> shared(*const_cast<uint32_t*>(flag));
    for (int poll = 0; !fault_.raised(); ++poll) {
      const uint32_t seen = shared.load(std::memory_order_acquire);
      if (static_cast<int32_t>(seen - value) >= 0) return;
      if (poll >= kPolls) sleep_while(flag, seen, &kLookForFault, 0);
    }
  }

  void run() {
    MutexLock lock(mutex_);
    for (;;) {
      idle_ = true;
      if (queue_.empty()) drained_.notify_all();
      while (queue_.empty() && !closing_) filled_.wait(mutex_);
      if (queue_.empty()) return;
      idle_ = false;
      Item item = std::move(queue_.front());
      queue_.pop_front();
      const auto [kind, word, value] = std::tuple(item.kind, item.word, item.value);
      if (kind != Kind::kMark) {
        lock.unlock();
        const double seconds = execute(std::move(item));
        lock.lock();
        (kind == Kind::kWait ? times_.waiting : times_.busy) += seconds;
      }
      if (word != nullptr) word->store(value, std::memory_order_relaxed);
    }
  }

  // Returns the seconds taken. Destroys the task, and what it captures, while the lock is not held.
  double execute(Item item) {
    const auto start = Clock::now();
    if (item.kind == Kind::kRecord) {
      item.record->time = start;
      if (item.record->timed) item.record->work = thread_seconds();
      item.record->reached.open();  // also after a fault: waiters must wake up
      return 0;
    }
    if (item.kind == Kind::kWait) {
      item.record ? item.record->reached.wait() : item.task();
    } else if (!fault_.raised()) {
      try {
        item.task();
      } catch (...) {
        fault_.raise(std::current_exception());
      }
    }
    return seconds_since(start);
  }

  Fault& fault_;
  mutable Mutex mutex_;
  ConditionVariable filled_, drained_;
  std::deque<Item> queue_ TRI_GUARDED_BY(mutex_);
  bool idle_ TRI_GUARDED_BY(mutex_) = true;  // the worker holds no item
  bool closing_ TRI_GUARDED_BY(mutex_) = false;
  StreamTimes times_ TRI_GUARDED_BY(mutex_);
  std::thread worker_;
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::optional<double> peak_tflops(Dtype) const override { return std::nullopt; }
  std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority) override {
    return std::make_unique<QueueStream>(name, fault());
  }
  std::unique_ptr<Event> make_event(EventKind kind) override { return std::make_unique<CpuEvent>(fault(), kind); }
  // The block is an unnamed file in memory, which another process can open through this process's descriptor.
  void* allocate(size_t bytes) override {
    bytes = std::max<size_t>(bytes, 1);
    int file = memfd_create("trireme", MFD_CLOEXEC);
    void* memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) {
      memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    } else if (file >= 0 && errno == EFBIG) {  // exceeds `ulimit -f`: uses memory that cannot be shared
      close(std::exchange(file, -1));
      memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (memory == MAP_FAILED) {
      const int problem = errno;
      if (file >= 0) close(file);
      throw Fatal(ExitCode::kDevice, system_error(problem, "cannot allocate {} bytes of host memory", bytes).message);
    }
    blocks_[memory] = {file, bytes};
    return memory;
  }
  void release(void* memory) noexcept override {
    const auto block = blocks_.find(memory);
    if (block == blocks_.end()) return;
    munmap(memory, block->second.bytes);
    if (block->second.file >= 0) close(block->second.file);
    blocks_.erase(block);
  }
  int64_t free_bytes() override {
    const auto available = available_bytes(text_of("/proc/meminfo"));
    return available.value_or(int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  }
  Result<std::string> share(void* memory) override {
    const Block& block = blocks_.at(memory);
    if (block.file < 0)
      return Error{fmt::format("{} bytes cannot be shared between processes because `ulimit -f` is lower; raise it",
                               block.bytes),
                   ExitCode::kDevice};
    const SharedName name{getpid(), block.file, block.bytes};
    return std::string(reinterpret_cast<const char*>(&name), sizeof name);
  }
  Result<void*> open_shared(const std::string& bytes_of_name) override {
    SharedName name{};
    TRI_REQUIRE(bytes_of_name.size() == sizeof name, "a name of {} bytes", bytes_of_name.size());
    std::memcpy(&name, bytes_of_name.data(), sizeof name);
    const std::string path = fmt::format("/proc/{}/fd/{}", name.pid, name.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* view = file < 0 ? MAP_FAILED : mmap(nullptr, name.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int problem = errno;
    if (file >= 0) close(file);
    if (view == MAP_FAILED) return Error{system_error(problem, "{}", path).message, ExitCode::kDevice};
    blocks_[view] = {-1, name.bytes};
    return view;
  }
  void close_shared(void* view) noexcept override { release(view); }
  void* allocate_host(size_t bytes) override {
    void* memory = std::aligned_alloc(Arena::kAlignment,
                                      static_cast<size_t>(round_up(static_cast<int64_t>(bytes), Arena::kAlignment)));
    if (memory == nullptr)
      throw Fatal(ExitCode::kDevice, system_error(ENOMEM, "cannot allocate {} bytes of host memory", bytes).message);
    return memory;
  }
  void release_host(void* memory) noexcept override { std::free(memory); }

 private:
  struct Block {
    int file = -1;  // -1: another process's memory
    size_t bytes = 0;
  };
  // The name by which another process of this machine finds a block: the file that this process has open.
  struct SharedName {
    pid_t pid;
    int file;
    size_t bytes;
  };
  std::map<void*, Block> blocks_;
};

}  // namespace

std::optional<int64_t> most_shared_cpu_bytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur > std::numeric_limits<int64_t>::max())
    return std::nullopt;  // RLIM_INFINITY is the largest rlim_t
  return static_cast<int64_t>(limit.rlim_cur);
}

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace tri
