// Device, Stream, Event: the model of execution that both backends share.
//
// A Stream runs what it is given in order and asynchronously; Events order streams among each other with the semantics
// of CUDA events: wait(event) means the event's latest record() at the time of the call. The host only enqueues.
// On the CPU a Stream is a worker thread with a queue, so overlap and ordering bugs show without a GPU.
//
// Faults: what a task throws is kept by its Device; later tasks are skipped (events still fire, so nobody hangs) and
// every host-side wait rethrows it.
//
// Threads: one host thread enqueues. Devices outlive their streams and events.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "kernels/core/fault.h"
#include "kernels/core/gpu.h"
#include "kernels/core/kinds.h"
#include "kernels/core/tensor.h"

namespace tri {

struct OpTable;      // kernels/ops.h
class GemmSearch;    // kernels/gemm_search.h
class OpProfile;     // kernels/core/profile.h
class Timeline;      // kernels/core/timeline.h
class SpanRecorder;  // kernels/core/span_recorder.h

enum class StreamPriority {
  kNormal,
  kHigh,  // its kernels begin before waiting ones of normal streams
};

enum class EventKind {
  kOrder,  // orders streams
  kTimed,  // and remembers when it happened
};

class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;  // the host waits for the latest record; rethrows the device's fault
  // Seconds from `earlier`'s latest record to this one's, measured on the device. Both timed, and both have happened.
  virtual double seconds_after(const Event& earlier) const = 0;
  // Of these the seconds in which the stream that recorded both was at work: on the CPU its thread's, which another
  // thread on its core does not make more of.
  virtual double work_seconds_after(const Event& earlier) const { return seconds_after(earlier); }
  // When a timed event happened, in nanoseconds of CLOCK_MONOTONIC; none where the device has a clock of its own.
  virtual std::optional<int64_t> host_nanoseconds() const { return std::nullopt; }
};

// Seconds since the stream's creation or the last reset_times().
struct StreamTimes {
  double busy = 0;     // inside tasks
  double waiting = 0;  // blocked in wait(event)
};

struct NamedTimes {
  std::string stream;
  StreamTimes times;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;  // no-op when the event was never recorded
  virtual void synchronize() = 0;       // the host waits for all enqueued work; rethrows the device's fault

  // Flags order streams of different processes: 32-bit words in memory that both have open. set_flag: once earlier work
  // is done, and seen by whoever sees the flag. wait_flag: later work waits until the flag has reached `value`, counted
  // modulo 2^32.
  virtual void set_flag(uint32_t* flag, uint32_t value) = 0;
  virtual void wait_flag(const uint32_t* flag, uint32_t value) = 0;

  // Progress for whoever looks on: once earlier work is done, `word` has the value. Orders nothing else. On a GPU
  // `word` lies in memory of map_host().
  virtual void mark(std::atomic<uint32_t>& word, uint32_t value) = 0;

  // Earlier work is followed by `duration` in which the stream does nothing: for tests.
  virtual void idle(std::chrono::microseconds duration) = 0;

  // Byte copies between host and device memory, either way. `src` and `dst` must stay valid until executed.
  void copy(void* dst, const void* src, int64_t bytes);
  void zero(Tensor tensor);

  // Work is enqueued that is not done. Any thread; throws what the device says instead.
  virtual bool busy() { return false; }

  virtual std::optional<StreamTimes> times() const = 0;  // none where the backend does not measure them
  virtual void reset_times() = 0;

  const OpTable& ops() const { return *ops_; }
  const std::string& name() const { return name_; }
  OpProfile* profile() const { return profile_; }  // null: not profiled
  void set_profile(OpProfile* profile) { profile_ = profile; }
  Timeline* timeline() const { return timeline_; }  // null: nobody asks where the time goes
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }
  SpanRecorder* spans() const { return spans_; }  // null: nobody records what it runs
  void set_spans(SpanRecorder* spans) { spans_ = spans; }

 protected:
  Stream(std::string name, const OpTable& ops) : name_(std::move(name)), ops_(&ops) {}

 private:
  virtual void do_copy(void* dst, const void* src, int64_t bytes) = 0;
  virtual void do_zero(Tensor tensor) = 0;

  std::string name_;
  const OpTable* ops_;
  OpProfile* profile_ = nullptr;
  Timeline* timeline_ = nullptr;
  SpanRecorder* spans_ = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // Dense GEMM peak of the vendor's data sheet, the denominator of MFU; none for a CPU, or a GPU unknown here.
  virtual std::optional<double> peak_tflops(Dtype dtype) const = 0;
  virtual std::unique_ptr<Stream> make_stream(const std::string& name,
                                              StreamPriority priority = StreamPriority::kNormal) = 0;
  virtual std::unique_ptr<Event> make_event(EventKind kind = EventKind::kOrder) = 0;
  virtual std::string bus_id() const { return ""; }      // of a GPU: "0000:18:00.0"
  virtual GemmSearch* gemm_search() { return nullptr; }  // null where there is nothing to choose
  virtual void use_on_this_thread() {}  // before a thread other than the one that opened the device waits for events
  virtual void* allocate(size_t bytes) = 0;  // 256-byte aligned; Fatal(kDevice) with the size when there is no memory
  // Keeps the memory where it would have to wait for a device that has failed, as what follows.
  virtual void release(void* memory) noexcept = 0;
  virtual int64_t free_bytes() = 0;  // that allocate() finds now; on the CPU the machine's, for all its processes
  // A name by which another process of this machine opens what allocate() gave; its view is closed before release().
  virtual Result<std::string> share(void* memory) = 0;
  virtual Result<void*> open_shared(const std::string& name) = 0;
  virtual void close_shared(void* view) noexcept = 0;
  // Host memory that the device copies from and to at full speed, and asynchronously.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;
  // Host memory of somebody else's, whole pages, that streams write marks into until it is unmapped.
  virtual Result<void> map_host(void*, size_t) { return {}; }
  virtual void unmap_host(void*) noexcept {}
  // Bytes that kernels and libraries need in addition to their operands on one rank's compute stream, at most.
  virtual int64_t workspace_bytes(const WorkspaceDims&) const { return 0; }
  // The memory for that, until lent again; an empty tensor takes it back, with the device idle. What it does not hold,
  // the backend allocates.
  virtual void lend_workspace(Tensor) {}
  virtual std::optional<GpuProperties> gpu_properties() const { return std::nullopt; }  // of a GPU
  // Of a GPU whose driver tells it. From any thread, one at a time.
  virtual std::optional<GpuLoad> gpu_load() { return std::nullopt; }

  // The first fault is kept. Raised by failing tasks, and by a host that unwinds while tasks may wait for peers.
  void raise_fault(std::exception_ptr cause) noexcept { fault_.raise(std::move(cause)); }
  bool faulted() const { return fault_.raised(); }  // long waits inside tasks end themselves on it
  void rethrow_fault() const { fault_.rethrow(); }  // throws the first fault, if any

  // `check` throws when something that works for this device behind its back (a communicator) has failed; the host's
  // waits call it now and then. Until unwatch(owner).
  void watch(const void* owner, std::function<void()> check) { watches_[owner] = std::move(check); }
  void unwatch(const void* owner) { watches_.erase(owner); }
  void run_checks() const {
    for (const auto& [owner, check] : watches_) check();
  }

 protected:
  Fault& fault() { return fault_; }

 private:
  Fault fault_;
  std::map<const void*, std::function<void()>> watches_;
};

// Host memory of a device's kind, for T that can be copied bytewise.
template <class T>
class HostBuffer {
 public:
  HostBuffer(Device& device, size_t count)
      : device_(&device), data_(static_cast<T*>(device.allocate_host(count * sizeof(T)))), size_(count) {}
  ~HostBuffer() { device_->release_host(data_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Device* device_;
  T* data_;
  size_t size_;
};

// The GPUs that this process can use, by ordinal: names that tell the GPUs of a job apart, whatever each of its
// processes sees. kDevice error: why there is none.
Result<std::vector<std::string>> visible_gpus();

// The CPU, or CUDA device `ordinal`. kDevice error when the build or the machine lacks it.
Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int ordinal);

}  // namespace tri
