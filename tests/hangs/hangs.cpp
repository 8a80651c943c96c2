#include "tests/hangs/hangs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "lib/comm/job/job.h"
#include "lib/comm/peer/windows.h"
#include "lib/data/dataset.h"
#include "lib/engine/runtime.h"
#include "lib/observe/status/run_summary.h"
#include "lib/optim/optimizer.h"
#include "tests/hangs/on_transfer.h"
#include "tests/hangs/stream_task.h"

namespace tri {
namespace {

enum class Hang { kNone, kStop, kSpin, kSleep, kTask, kSkip };
constexpr std::pair<const char*, Hang> kHangs[] = {{"stop", Hang::kStop},
                                                   {"spin", Hang::kSpin},
                                                   {"sleep", Hang::kSleep},
                                                   {"task", Hang::kTask},
                                                   {"skip", Hang::kSkip}};

std::string text_of(const char* name) { return std::getenv(name) != nullptr ? std::getenv(name) : ""; }

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

// Spins a twentieth of the time: on a machine with fewer cores than ranks the others must proceed. Not at low priority:
// the kernel would release a killed thread slowly, while it holds locks of files that all ranks have mapped.
[[noreturn]] void spin_for_ever() {
  using namespace std::chrono_literals;
  for (volatile uint64_t turns = 0;; std::this_thread::sleep_for(19ms))
    for (const auto end = std::chrono::steady_clock::now() + 1ms; std::chrono::steady_clock::now() < end;)
      turns = turns + 1;
}

class Injector {
 public:
  static Injector& instance() {
    static Injector* const injector = new Injector;  // leaked, because threads use it until the process ends
    return *injector;
  }

  // Called before the occasion's work. `stream`: where it is enqueued; null: only the host is involved.
  TransferFate reach(std::string_view place, Stream* stream = nullptr) {
    switch (hang_at(place)) {
      case Hang::kNone:
        return TransferFate::kMade;
      case Hang::kStop:
        if (stream == nullptr)
          stop();
        else
          run_on_stream(*stream, [this] { stop(); });
        return TransferFate::kMade;
      case Hang::kTask:
        if (stream == nullptr) std::abort();
        run_on_stream(*stream, [this] { struck(); });
        hang_stream(*stream);
        return TransferFate::kMade;
      case Hang::kSpin:
        struck();
        spin_for_ever();
      case Hang::kSleep:
        struck();
        sleep_for_ever();
      case Hang::kSkip:
        struck();
        break;
    }
    return TransferFate::kOmitted;
  }

 private:
  Injector() {
    const std::string rank = text_of("OMPI_COMM_WORLD_RANK");
    if (const std::string prefix = text_of("TRIREME_TEST_HANG_TRACE"); !prefix.empty())
      trace_ = ::open((prefix + "." + rank).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const std::string rule = text_of("TRIREME_TEST_HANG");
    if (rule.empty()) return;
    const size_t a = rule.find('/'), b = rule.find('/', a + 1), c = rule.find('/', b + 1);
    if (a == std::string::npos || b == std::string::npos || c == std::string::npos) std::abort();
    const auto known = std::find_if(std::begin(kHangs), std::end(kHangs),
                                    [&](const auto& entry) { return rule.substr(c + 1) == entry.first; });
    if (known == std::end(kHangs)) std::abort();
    if (rule.substr(0, a) != rank) return;
    place_ = rule.substr(a + 1, b - a - 1);
    number_ = std::strtoll(rule.c_str() + b + 1, nullptr, 10);
    hang_ = known->second;
  }

  // Counts the occasion.
  Hang hang_at(std::string_view place) {
    const std::lock_guard lock(mutex_);
    if (trace_ >= 0) {
      const std::string line = std::string(place) + "\n";
      if (::write(trace_, line.data(), line.size()) < 0) std::abort();
    }
    return place == place_ && ++seen_ == number_ ? hang_ : Hang::kNone;
  }

  void stop() {
    struck();
    ::raise(SIGSTOP);
  }

  void struck() {
    const std::string path = text_of("TRIREME_TEST_STRUCK");
    if (!path.empty()) ::close(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  }

  std::mutex mutex_;  // guards the mutable members
  int trace_ = -1;
  std::string place_;
  int64_t number_ = 0, seen_ = 0;
  Hang hang_ = Hang::kNone;
};

TransferFate reach(std::string_view place, Stream* stream = nullptr) {
  return Injector::instance().reach(place, stream);
}

// Slows this rank down: TRIREME_TEST_SLOW.
class Slowness {
 public:
  static const Slowness& instance() {
    static const Slowness* const slowness = new Slowness;
    return *slowness;
  }
  double compute_percent() const { return place_ == "compute" ? amount_ : 0; }
  std::chrono::microseconds delay(std::string_view stream) const {
    return std::chrono::microseconds(stream == place_ ? static_cast<int64_t>(amount_) : 0);
  }

 private:
  Slowness() {
    const std::string rule = text_of("TRIREME_TEST_SLOW");
    if (rule.empty()) return;
    const size_t a = rule.find('/'), b = rule.find('/', a + 1);
    if (a == std::string::npos || b == std::string::npos) std::abort();
    const std::string ranks = "," + rule.substr(0, a) + ",";
    if (ranks.find("," + text_of("OMPI_COMM_WORLD_RANK") + ",") == std::string::npos) return;
    place_ = rule.substr(a + 1, b - a - 1);
    amount_ = std::strtod(rule.c_str() + b + 1, nullptr);
  }

  std::string place_;
  double amount_ = 0;
};

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// While it lives, work enqueued on a CPU's stream takes `percent` more of its thread's time.
class SlowedScope {
 public:
  SlowedScope(Stream& stream, double percent) : stream_(stream), percent_(percent) {
    if (percent_ > 0) run_on_stream(stream_, [begin = begin_] { *begin = thread_seconds(); });
  }
  ~SlowedScope() {
    if (percent_ <= 0) return;
    run_on_stream(stream_, [begin = begin_, percent = percent_] {
      const double until = thread_seconds() + (thread_seconds() - *begin) * percent / 100;
      while (thread_seconds() < until) continue;
    });
  }
  SlowedScope(const SlowedScope&) = delete;
  SlowedScope& operator=(const SlowedScope&) = delete;

 private:
  Stream& stream_;
  const double percent_;
  const std::shared_ptr<double> begin_ = std::make_shared<double>();
};

Stream* g_compute = nullptr;  // of the latest runtime

TransferFate reach_transfer(Stream& stream) {
  if (const auto delay = Slowness::instance().delay(stream.name()); delay.count() > 0) idle(stream, delay);
  return reach(stream.name(), &stream);
}

// A stage whose actions are occasions.
class Actions final : public StageCompute {
 public:
  Actions(StageCompute& stage, const Plan& plan) : stage_(stage) {
    const auto count = [&](ActionKind kind) {
      return std::count_if(plan.begin(), plan.end(), [&](const Action& action) { return action.kind == kind; });
    };
    if (count(ActionKind::kBackward) > 0) {
      slowed_by_ = Slowness::instance().compute_percent();
      return;
    }
    forward_ = count(ActionKind::kForward) > 1 ? "evaluation" : "sample";  // tests evaluate several microbatches
  }
  void forward(int chunk, int microbatch, Tensor input, Tensor output) override {
    reach(forward_, g_compute);
    const SlowedScope slowed(*g_compute, slowed_by_);
    stage_.forward(chunk, microbatch, input, output);
  }
  void backward(int chunk, int microbatch, Tensor input, Tensor doutput, Tensor dinput) override {
    reach("backward", g_compute);
    const SlowedScope slowed(*g_compute, slowed_by_);
    stage_.backward(chunk, microbatch, input, doutput, dinput);
  }
  void weight_gradients(int chunk, int microbatch) override {
    reach("weight", g_compute);
    const SlowedScope slowed(*g_compute, slowed_by_);
    stage_.weight_gradients(chunk, microbatch);
  }

 private:
  StageCompute& stage_;
  const char* forward_ = "forward";
  double slowed_by_ = 0;  // per cent
};

}  // namespace

// Intercepted calls. --wrap=SYMBOL redirects them to __wrap_SYMBOL, and __real_SYMBOL is the function itself; if a
// declaration changes, the program does not link. A member function takes its object first.
#define TRI_WRAPPED(symbol) __asm__("__wrap_" symbol)
#define TRI_REAL(symbol) __asm__("__real_" symbol)

#define TRI_SYMBOL "_ZN3tri7RuntimeC1ERKNS_11RankContextERKNS_13SharedTensorsE"
void real_runtime(Runtime* self, const RankContext& rank, const SharedTensors& shared) TRI_REAL(TRI_SYMBOL);
void wrapped_runtime(Runtime* self, const RankContext& rank, const SharedTensors& shared) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_runtime(Runtime* self, const RankContext& rank, const SharedTensors& shared) {
  static const OnTransfer transfers(reach_transfer);
  real_runtime(self, rank, shared);
  g_compute = &self->compute();
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri15ConnectDeadline5beginENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
void real_begin(ConnectDeadline* self, std::string what) TRI_REAL(TRI_SYMBOL);
void wrapped_begin(ConnectDeadline* self, std::string what) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_begin(ConnectDeadline* self, std::string what) {
  reach("setup");
  real_begin(self, std::move(what));
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri8Executor3runERKSt6vectorINS_6ActionESaIS2_EERNS_12StageComputeEl"
void real_run(Executor* self, const Plan& plan, StageCompute& stage, int64_t rows) TRI_REAL(TRI_SYMBOL);
void wrapped_run(Executor* self, const Plan& plan, StageCompute& stage, int64_t rows) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_run(Executor* self, const Plan& plan, StageCompute& stage, int64_t rows) {
  Actions actions(stage, plan);
  real_run(self, plan, actions, rows);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri11PeerWindows12start_copiesERKSt6vectorINS_6TensorESaIS2_EERNS_6StreamE"
void real_start_copies(PeerWindows* self, const std::vector<Tensor>& blocks, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_start_copies(PeerWindows* self, const std::vector<Tensor>& blocks, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_start_copies(PeerWindows* self, const std::vector<Tensor>& blocks, Stream& stream) {
  reach("experts", &stream);
  real_start_copies(self, blocks, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri11PeerWindows13finish_copiesERNS_6StreamE"
void real_finish_copies(PeerWindows* self, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_finish_copies(PeerWindows* self, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_finish_copies(PeerWindows* self, Stream& stream) {
  reach("experts", &stream);
  real_finish_copies(self, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri9Optimizer6updateEldNS_11UpdateOrderE"
void real_update(Optimizer* self, int64_t step, double learning_rate, UpdateOrder order) TRI_REAL(TRI_SYMBOL);
void wrapped_update(Optimizer* self, int64_t step, double learning_rate, UpdateOrder order) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_update(Optimizer* self, int64_t step, double learning_rate, UpdateOrder order) {
  reach("update", g_compute);
  real_update(self, step, learning_rate, order);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZNK3tri7Dataset6sampleENS_5SplitElSt4spanIiLm18446744073709551615EES3_"
int64_t real_sample(const Dataset* self, Split split, int64_t index, std::span<int32_t> out, std::span<int32_t> starts)
    TRI_REAL(TRI_SYMBOL);
int64_t wrapped_sample(const Dataset* self, Split split, int64_t index, std::span<int32_t> out,
                       std::span<int32_t> starts) TRI_WRAPPED(TRI_SYMBOL);
int64_t wrapped_sample(const Dataset* self, Split split, int64_t index, std::span<int32_t> out,
                       std::span<int32_t> starts) {
  reach("data");
  return real_sample(self, split, index, out, starts);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri11log_summaryERNS_3JobERKNS_4MeshERKNS_9StepTimesERKSt6vectorINS_10NamedTimesESaIS9_EEd"
void real_log_summary(Job& job, const Mesh& mesh, const StepTimes& steps, const std::vector<NamedTimes>& streams,
                      double wall_seconds) TRI_REAL(TRI_SYMBOL);
void wrapped_log_summary(Job& job, const Mesh& mesh, const StepTimes& steps, const std::vector<NamedTimes>& streams,
                         double wall_seconds) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_log_summary(Job& job, const Mesh& mesh, const StepTimes& steps, const std::vector<NamedTimes>& streams,
                         double wall_seconds) {
  reach("finish");
  real_log_summary(job, mesh, steps, streams, wall_seconds);
}
#undef TRI_SYMBOL

}  // namespace tri
