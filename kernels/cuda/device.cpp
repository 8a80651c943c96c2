// CUDA's Device, Stream and Event. Streams do not block each other or the default stream; events record the time if
// that is requested (EventKind::kTimed).
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/arena.h"
#include "kernels/core/gpu_peak.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/cuda_device.h"
#include "kernels/workspace.h"

namespace tri {
namespace {

const OpTable& cuda_ops() {
  static const OpTable table = {
#define TRI_ROW(name, Args) .name = [](const Args& args, Stream& stream) { cuda::name(args, cuda_stream(stream)); },
      TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW
  };
  return table;
}

// Polls instead of blocking inside the driver, so that a fault raised elsewhere (a lost peer, an NCCL error) ends it.
template <class Query>
void wait_until_done(Query query, const Device& device) {
  constexpr int kSpins = 2000, kBetweenChecks = 64;
  for (int poll = 0;; ++poll) {
    const cudaError_t status = query();
    if (status == cudaSuccess) break;
    if (status != cudaErrorNotReady) TRI_CUDA(status);
    if (poll <= kSpins) continue;
    if (poll % kBetweenChecks == 0) device.run_checks();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void write_word(cudaStream_t stream, void* word, uint32_t value, const char* what) {
  static const auto write = cuda::driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
  cuda::driver_check(write(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT), what);
}

class CudaEvent final : public Event {
 public:
  CudaEvent(const Device& device, EventKind kind) : device_(device) {
    TRI_CUDA(cudaEventCreateWithFlags(&event_, kind == EventKind::kTimed ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  void synchronize() override {
    const HostScope waits(HostState::kAwaitsDevice);
    wait_until_done([&] { return cudaEventQuery(event_); }, device_);
  }
  double seconds_after(const Event& earlier) const override {
    float milliseconds = 0;
    TRI_CUDA(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_));
    return milliseconds * 1e-3;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  const Device& device_;
};

class CudaStreamImpl final : public CudaStream {
 public:
  CudaStreamImpl(std::string name, StreamPriority priority, const Device& device, cuda::Context& context)
      : CudaStream(std::move(name), cuda_ops(), context),
        device_(device),
        wait_flags_(cuda::wait_value_flags(context.properties())) {
    int least = 0, greatest = 0;
    TRI_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TRI_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                          priority == StreamPriority::kHigh ? greatest : least));
  }
  ~CudaStreamImpl() override { cudaStreamDestroy(stream_); }
  cudaStream_t get() const override { return stream_; }

  void record(Event& event) override { TRI_CUDA(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_)); }
  void wait(Event& event) override { TRI_CUDA(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).get(), 0)); }
  void synchronize() override {
    const HostScope waits(HostState::kAwaitsDevice);
    wait_until_done([&] { return cudaStreamQuery(stream_); }, device_);
  }
  void set_flag(uint32_t* flag, uint32_t value) override { write_word(stream_, flag, value, "cuStreamWriteValue32"); }
  void wait_flag(const uint32_t* flag, uint32_t value) override {
    static const auto wait = cuda::driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32");
    cuda::driver_check(wait(stream_, reinterpret_cast<CUdeviceptr>(flag), value, wait_flags_), "cuStreamWaitValue32");
  }
  void mark(std::atomic<uint32_t>& word, uint32_t value) override {
    write_word(stream_, &word, value,
               "cuStreamWriteValue32 into the rank's flight record (set fault.black_box: false to run without it)");
  }
  bool busy() override {
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status != cudaSuccess && status != cudaErrorNotReady) TRI_CUDA(status);
    return status == cudaErrorNotReady;
  }
  std::optional<StreamTimes> times() const override { return std::nullopt; }
  void reset_times() override {}

 private:
  void do_copy(void* dst, const void* src, int64_t bytes) override {
    TRI_CUDA(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_));
  }
  void do_zero(Tensor tensor) override {
    TRI_CUDA(cudaMemsetAsync(tensor.data, 0, static_cast<size_t>(tensor.bytes()), stream_));
  }

  cudaStream_t stream_ = nullptr;
  const Device& device_;
  const unsigned wait_flags_;  // of cuStreamWaitValue32
};

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  TRI_CUDA(cudaDeviceGetAttribute(&value, which, ordinal));
  return value;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {
    TRI_CUDA(cudaSetDevice(ordinal));
    cudaDeviceProp properties;
    TRI_CUDA(cudaGetDeviceProperties(&properties, ordinal));
    name_ = properties.name;
    context_ = std::make_unique<cuda::Context>(cuda::gpu_properties(ordinal));
  }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  void use_on_this_thread() override { TRI_CUDA(cudaSetDevice(ordinal_)); }
  std::optional<double> peak_tflops(Dtype dtype) const override {
    return gpu_peak_tflops(name_, context_->properties().num_multiprocessors, dtype);
  }
  std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) override {
    return std::make_unique<CudaStreamImpl>(name, priority, *this, *context_);
  }
  std::unique_ptr<Event> make_event(EventKind kind) override { return std::make_unique<CudaEvent>(*this, kind); }
  std::optional<GpuLoad> gpu_load() override {
    if (!load_) load_ = std::make_unique<cuda::LoadReader>(bus_id());
    return load_->read();
  }
  std::string bus_id() const override {
    char name[32] = {};
    TRI_CUDA(cudaDeviceGetPCIBusId(name, sizeof name, ordinal_));
    return name;
  }
  GemmSearch* gemm_search() override { return &context_->gemms(); }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    size_t free = 0, total = 0;
    TRI_CUDA(cudaMemGetInfo(&free, &total));
    if (bytes > free)
      throw Fatal(
          ExitCode::kDevice,
          fmt::format("the GPU has {} of {} bytes free, but this rank needs {}; raise parallel.tp, pp or zero, set "
                      "parallel.recompute, or lower data.micro_batch. `trireme check` lists what needs the memory",
                      free, total, bytes));
    TRI_CUDA(cudaMalloc(&memory, std::max<size_t>(bytes, Arena::kAlignment)));
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  int64_t free_bytes() override {
    size_t free = 0, total = 0;
    TRI_CUDA(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }
  Result<std::string> share(void* memory) override {
    cudaIpcMemHandle_t handle;
    if (const cudaError_t status = cudaIpcGetMemHandle(&handle, memory); status != cudaSuccess) return refused(status);
    return std::string(reinterpret_cast<const char*>(&handle), sizeof handle);
  }
  Result<void*> open_shared(const std::string& name) override {
    cudaIpcMemHandle_t handle;
    TRI_REQUIRE(name.size() == sizeof handle, "a handle of {} bytes", name.size());
    std::memcpy(&handle, name.data(), sizeof handle);
    void* view = nullptr;
    if (const cudaError_t status = cudaIpcOpenMemHandle(&view, handle, cudaIpcMemLazyEnablePeerAccess);
        status != cudaSuccess)
      return refused(status);
    return view;
  }
  void close_shared(void* view) noexcept override { cudaIpcCloseMemHandle(view); }
  void* allocate_host(size_t bytes) override { return pinned_.allocate(bytes); }
  void release_host(void* memory) noexcept override { pinned_.release(memory); }
  Result<void> map_host(void* memory, size_t bytes) override {
    if (attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal_) == 0)
      return Error{"the GPU maps host memory at other addresses than the host does", ExitCode::kDevice};
    if (const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
        status != cudaSuccess) {
      cudaGetLastError();                                      // clears the error, which the result already reports
      const bool elsewhere = status == cudaErrorInvalidValue;  // a mapped file that is not on a tmpfs
      return Error{
          fmt::format("cudaHostRegister: {}{}", cudaGetErrorString(status),
                      elsewhere ? " (flight records of a GPU run must be in memory; set TRIREME_BLACK_BOXES to a "
                                  "folder such as /dev/shm)"
                                : ""),
          ExitCode::kDevice};
    }
    // Tries no mark: which streams are used before the compute stream is created decides its speed (lib/fault).
    return {};
  }
  void unmap_host(void* memory) noexcept override { cudaHostUnregister(memory); }
  std::optional<GpuProperties> gpu_properties() const override { return context_->properties(); }
  int64_t workspace_bytes(const WorkspaceDims& dims) const override {
    return tri::workspace_bytes(kind(), dims, context_->properties());
  }
  void lend_workspace(Tensor memory) override { context_->workspace().lend(memory); }

 private:
  static Error refused(cudaError_t status) {
    cudaGetLastError();  // clears the error, which the result already reports
    return {fmt::format("CUDA inter-process memory: {}", cudaGetErrorString(status)), ExitCode::kDevice};
  }

  const int ordinal_;
  std::string name_;  // of the product
  cuda::PinnedMemory pinned_;
  std::unique_ptr<cuda::Context> context_;
  std::unique_ptr<cuda::LoadReader> load_;  // created by the first gpu_load()
};

// Gives each stream its own hardware queue; must precede the first CUDA call. Streams that share a queue (8 exist by
// default) wait for each other, possibly forever if one of them waits for a peer's flag. Keeps the user's own setting.
void set_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

// Uses the driver's second cuDeviceGetUuid (its name since version 12): for a GPU in MIG mode it returns the slice that
// this process sees. cudaGetDeviceProperties may return the whole GPU's UUID, which is equal for all slices.
std::string uuid(int ordinal) {
  static const auto get = cuda::driver_function<PFN_cuDeviceGetUuid_v11040>("cuDeviceGetUuid");
  CUuuid bytes{};
  cuda::driver_check(get(&bytes, ordinal), "cuDeviceGetUuid");
  std::string text;
  for (const char byte : bytes.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

Result<std::vector<std::string>> cuda_devices() {
  set_queues();
  std::vector<std::string> names;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the result already reports
    return Error{cudaGetErrorString(status), ExitCode::kDevice};
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) names.push_back(uuid(ordinal));
  if (names.empty()) return Error{"the CUDA driver reports no GPU", ExitCode::kDevice};
  return names;
}

Result<std::unique_ptr<Device>> make_cuda_device(int ordinal) {
  set_queues();
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess)
    return Error{
        fmt::format("run.device: cuda: {}{}; set run.device: cpu to train without a GPU", cudaGetErrorString(status),
                    status == cudaErrorMemoryAllocation ? address_space_limit() : ""),
        ExitCode::kDevice};
  if (ordinal >= count)
    return Error{
        fmt::format(
            "run.device: cuda: GPU {} does not exist, since this process sees {}; start one rank per GPU, or check "
            "CUDA_VISIBLE_DEVICES",
            ordinal, count),
        ExitCode::kDevice};
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(ordinal));
}

}  // namespace tri
