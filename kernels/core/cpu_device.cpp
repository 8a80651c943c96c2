#include "kernels/core/cpu_device.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/core/arena.h"
#include "kernels/core/dims.h"
#include "kernels/ops.h"

namespace tri {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Each record has a latch of its own, opened when the stream reaches it: a waiter holds the one that was the latest at
// its call, whatever is recorded later, on whichever stream.
struct Record {
  std::latch reached{1};
  Clock::time_point time;  // written before the latch opens
};
using Latch = std::shared_ptr<Record>;

class CpuEvent : public Event {
 public:
  explicit CpuEvent(const Fault& fault) : fault_(fault) {}

  Latch next_record() { return latest_ = std::make_shared<Record>(); }
  Latch latest_record() const { return latest_; }  // null when never recorded
  void synchronize() override {
    if (latest_) latest_->reached.wait();
    fault_.rethrow();
  }
  double seconds_after(const Event& earlier) const override {
    const Latch begin = static_cast<const CpuEvent&>(earlier).latest_;
    TRI_REQUIRE(begin && latest_, "time of an event that was never recorded");
    begin->reached.wait();
    latest_->reached.wait();
    return std::chrono::duration<double>(latest_->time - begin->time).count();
  }

 private:
  const Fault& fault_;
  Latch latest_;
};

class QueueStream final : public CpuStream {
 public:
  QueueStream(std::string name, Fault& fault) : CpuStream(std::move(name), cpu_ops()), fault_(fault) {
    worker_ = std::thread([this] { run(); });
  }
  ~QueueStream() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    filled_.notify_one();
    worker_.join();
  }

  void submit(std::function<void()> task) override { push({Kind::kTask, std::move(task), nullptr}); }
  void record(Event& event) override { push({Kind::kRecord, {}, static_cast<CpuEvent&>(event).next_record()}); }
  void wait(Event& event) override {
    Latch latest = static_cast<CpuEvent&>(event).latest_record();
    if (latest) push({Kind::kWait, {}, std::move(latest)});
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [&] { return queue_.empty() && idle_; });
    lock.unlock();
    fault_.rethrow();
  }
  std::optional<StreamTimes> times() const override {
    std::lock_guard lock(mutex_);
    return times_;
  }
  void reset_times() override {
    std::lock_guard lock(mutex_);
    times_ = {};
  }

 private:
  enum class Kind { kTask, kRecord, kWait };
  struct Item {
    Kind kind;
    std::function<void()> task;
    Latch latch;
  };

  void do_copy(void* dst, const void* src, int64_t bytes) override {
    submit([=] { std::memcpy(dst, src, static_cast<size_t>(bytes)); });
  }
  void do_zero(Tensor tensor) override {
    submit([=] { std::memset(tensor.data, 0, static_cast<size_t>(tensor.bytes())); });
  }

  void push(Item item) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
    }
    filled_.notify_one();
  }

  void run() {
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        idle_ = true;
        if (queue_.empty()) drained_.notify_all();
        filled_.wait(lock, [&] { return !queue_.empty() || closing_; });
        if (queue_.empty()) return;
        idle_ = false;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      execute(item);
    }
  }

  void execute(Item& item) {
    const auto start = Clock::now();
    if (item.kind == Kind::kRecord) {
      item.latch->time = start;
      item.latch->reached.count_down();  // also after a fault: waiters must wake up
      return;
    }
    if (item.kind == Kind::kWait) {
      item.latch->reached.wait();
    } else if (!fault_.raised()) {
      try {
        item.task();
      } catch (...) {
        fault_.raise(std::current_exception());
      }
    }
    std::lock_guard lock(mutex_);
    (item.kind == Kind::kWait ? times_.waiting : times_.busy) += seconds_since(start);
  }

  Fault& fault_;
  mutable std::mutex mutex_;
  std::condition_variable filled_, drained_;
  std::deque<Item> queue_;  // guarded by mutex_
  bool idle_ = true;        // guarded by mutex_: the worker holds no item
  bool closing_ = false;    // guarded by mutex_
  StreamTimes times_;       // guarded by mutex_
  std::thread worker_;
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::optional<double> peak_tflops(Dtype) const override { return std::nullopt; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<QueueStream>(name, fault());
  }
  std::unique_ptr<Event> make_event(EventKind) override { return std::make_unique<CpuEvent>(fault()); }
  void* allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(Arena::kAlignment,
                                      static_cast<size_t>(round_up(static_cast<int64_t>(bytes), Arena::kAlignment)));
    if (memory == nullptr) throw Fatal(ExitCode::kDevice, fmt::format("no host memory for {} bytes", bytes));
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void* allocate_host(size_t bytes) override { return allocate(bytes); }
  void release_host(void* memory) noexcept override { release(memory); }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace tri
