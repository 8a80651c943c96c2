// Device, Stream, Event: the model of execution that both backends share.
//
// A Stream runs its work in order and asynchronously. Events order streams among each other with the semantics of CUDA
// events: wait(event) means the event's latest record() at the time of the call. The host only enqueues. On the CPU a
// Stream is a worker thread with a queue, so overlap and ordering bugs show without a GPU.
//
// Faults: a Device keeps the first exception that a task throws. It skips later tasks but still fires their events, so
// that no thread hangs, and every host-side wait rethrows the exception.
//
// Threads: one host thread enqueues, unless a function says otherwise. A device outlives its streams and events.
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
  kHigh,  // its kernels start before queued ones of normal streams
};

enum class EventKind {
  kOrder,  // orders streams
  kTimed,  // also remembers when it happened
};

class Event {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;  // waits on the host for the latest record; rethrows the device's fault
  // Returns the seconds from the latest record of `earlier` to this one's, measured on the device. Both events are
  // timed and have happened.
  virtual double seconds_after(const Event& earlier) const = 0;
  // The part of these seconds in which the stream that recorded both events was running. On the CPU this is the
  // processor time of its thread, which other threads on its core do not increase.
  virtual double work_seconds_after(const Event& earlier) const { return seconds_after(earlier); }
  // Returns when a timed event happened, in nanoseconds of CLOCK_MONOTONIC. None where the device has its own clock.
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
  virtual void wait(Event& event) = 0;  // has no effect if the event was never recorded
  virtual void synchronize() = 0;       // waits on the host for all enqueued work; rethrows the device's fault

  // Flags order streams of different processes. They are 32-bit words in memory that both processes have open.
  // set_flag() sets the flag after earlier work is done and visible to all that see the flag. wait_flag() holds
  // later work until the flag has reached `value`, counted modulo 2^32.
  virtual void set_flag(uint32_t* flag, uint32_t value) = 0;
  virtual void wait_flag(const uint32_t* flag, uint32_t value) = 0;

  // Publishes progress to other threads and processes: sets `word` to `value` once earlier work is done. Orders nothing
  // else. On a GPU `word` must lie in memory passed to map_host().
  virtual void mark(std::atomic<uint32_t>& word, uint32_t value) = 0;

  // Byte copies between host and device memory, either way. `src` and `dst` must stay valid until executed.
  void copy(void* dst, const void* src, int64_t bytes);
  void zero(Tensor tensor);

  // Returns whether enqueued work is unfinished. Any thread may call it. Throws the device's error if there is one.
  virtual bool busy() { return false; }

  virtual std::optional<StreamTimes> times() const = 0;  // none where the backend does not measure them
  virtual void reset_times() = 0;

  // While a stream leaves room, its GEMMs and attention use only a part of a GPU's multiprocessors; the others are for
  // kernels of other streams that run alongside them (AdamwUpdate::alongside). Results are the same.
  bool leaves_room() const { return leaves_room_; }
  void leave_room(bool leaves) { leaves_room_ = leaves; }

  const OpTable& ops() const { return *ops_; }
  const std::string& name() const { return name_; }
  OpProfile* profile() const { return profile_; }  // null: not profiled
  void set_profile(OpProfile* profile) { profile_ = profile; }
  Timeline* timeline() const { return timeline_; }  // null: none is measured
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }
  SpanRecorder* spans() const { return spans_; }  // null: none is recorded
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
  bool leaves_room_ = false;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // Returns the dense GEMM peak of the vendor's data sheet, the denominator of MFU. None for a CPU or an unknown GPU.
  virtual std::optional<double> peak_tflops(Dtype dtype) const = 0;
  virtual std::unique_ptr<Stream> make_stream(const std::string& name,
                                              StreamPriority priority = StreamPriority::kNormal) = 0;
  virtual std::unique_ptr<Event> make_event(EventKind kind = EventKind::kOrder) = 0;
  virtual std::string bus_id() const { return ""; }      // of a GPU: "0000:18:00.0"
  virtual GemmSearch* gemm_search() { return nullptr; }  // null: the device has no algorithms to choose from
  // A thread other than the one that opened the device calls this before it waits for events.
  virtual void use_on_this_thread() {}
  // Returns memory aligned to 256 bytes. Throws Fatal (kDevice) with the size if there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  // Frees the memory. Leaks it if the device has failed, since freeing would wait for the device. The same holds for
  // release_host() and unmap_host().
  virtual void release(void* memory) noexcept = 0;
  // Returns the bytes that allocate() can find now; on the CPU those of the machine, shared by all its processes.
  virtual int64_t free_bytes() = 0;
  // Returns a name by which another process of this machine can open memory from allocate(). The other process must
  // close its view before release(). open_shared() fails if the memory cannot be opened.
  virtual Result<std::string> share(void* memory) = 0;
  virtual Result<void*> open_shared(const std::string& name) = 0;
  virtual void close_shared(void* view) noexcept = 0;
  // Allocates host memory that the device copies from and to asynchronously and at full speed.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;
  // Maps host memory owned by someone else, in whole pages, so that streams can write marks into it until it is
  // unmapped.
  virtual Result<void> map_host(void*, size_t) { return {}; }
  virtual void unmap_host(void*) noexcept {}
  // Returns the most bytes that kernels and libraries need in addition to their operands on one rank's compute stream.
  virtual int64_t workspace_bytes(const WorkspaceDims&) const { return 0; }
  // Lends the device memory for that workspace until the next call. An empty tensor takes it back; the device must be
  // idle. The backend allocates what does not fit.
  virtual void lend_workspace(Tensor) {}
  virtual std::optional<GpuProperties> gpu_properties() const { return std::nullopt; }  // of a GPU
  // Returns the GPU's current load, if its driver reports it. Any thread may call it, one at a time.
  virtual std::optional<GpuLoad> gpu_load() { return std::nullopt; }

  // A task of a CPU stream has thrown; the first such fault is kept.
  bool faulted() const { return fault_.raised(); }  // long waits inside tasks end themselves on it
  void rethrow_fault() const { fault_.rethrow(); }  // throws the first fault, if any

  // Registers `check`, which throws when an independent user of this device (a communicator) has failed. Host-side
  // waits call it now and then, until unwatch(owner).
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

// Host memory of a device's kind. T must be trivially copyable.
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

// Returns the GPUs that this process can use, by ordinal. Their names identify a GPU across all processes of a job,
// whichever GPUs each process sees. Fails with kDevice and the reason why there is none.
Result<std::vector<std::string>> visible_gpus();

// Opens the CPU, or CUDA device `ordinal`. Fails with kDevice if the build or the machine lacks it.
Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int ordinal);

}  // namespace tri
