// `trireme` with injected faults: calls of its doctor pass through here (--wrap). TRIREME_TEST_DOCTOR is
// "RANK/FAULT[=NUMBER] ...":
//   slow-copy=MICROSECONDS       before each copy that the rank makes into a peer's memory
//   throttled-link=MICROSECONDS  before each transfer of the rank over a link between nodes
//   wrong-bits                   a bit of a weight flips in the last training of a mini-step
//   full-disk                    files end at 64 KiB, like on a full disk
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <thread>

#include "lib/doctor/checks.h"
#include "lib/train/trainer.h"
#include "tests/hangs/stream_task.h"

namespace tri {
namespace {

std::string text_of(const char* name) { return std::getenv(name) != nullptr ? std::getenv(name) : ""; }

struct Faults {
  std::chrono::microseconds slow_copy{0}, throttled_link{0};
  bool wrong_bits = false, full_disk = false;
};

Faults faults_of_rank() {
  Faults faults;
  std::istringstream rules(text_of("TRIREME_TEST_DOCTOR"));
  for (std::string rule; rules >> rule;) {
    const size_t slash = rule.find('/'), equals = rule.find('=');
    if (rule.substr(0, slash) != text_of("OMPI_COMM_WORLD_RANK")) continue;
    const std::string name = rule.substr(slash + 1, equals - slash - 1);
    const std::chrono::microseconds time(equals == rule.npos ? 0 : std::atoll(rule.c_str() + equals + 1));
    if (name == "slow-copy")
      faults.slow_copy = time;
    else if (name == "throttled-link")
      faults.throttled_link = time;
    else if (name == "wrong-bits")
      faults.wrong_bits = true;
    else if (name == "full-disk")
      faults.full_disk = true;
    else
      std::abort();
  }
  return faults;
}

const Faults& faults() {
  static const Faults of_rank = faults_of_rank();
  return of_rank;
}

// The effect of the current check on this rank's calls.
std::chrono::microseconds g_copy_delay{0}, g_send_delay{0};
int g_right_trainings = 0;  // trainings before the wrong one
bool g_wrong_bits = false;

using Run = CheckResult (*)(CheckContext&);

CheckResult with_slow_copies(Run run, CheckContext& context) {
  g_copy_delay = faults().slow_copy;
  CheckResult result = run(context);
  g_copy_delay = {};
  return result;
}

CheckResult with_wrong_bits(Run run, CheckContext& context, int right_trainings) {
  g_wrong_bits = faults().wrong_bits;
  g_right_trainings = right_trainings;
  CheckResult result = run(context);
  g_wrong_bits = false;
  return result;
}

// Writes beyond 64 KiB fail with EFBIG instead of raising a signal.
CheckResult with_full_disk(Run run, CheckContext& context) {
  if (!faults().full_disk) return run(context);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 65536, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  CheckResult result = run(context);
  setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  return result;
}

void wait_on(Stream& stream, std::chrono::microseconds delay) {
  if (delay.count() > 0) run_on_stream(stream, [delay] { std::this_thread::sleep_for(delay); });
}

void flip_a_bit(Trainer& trainer) {
  const Tensor& weight = trainer.store().memory.parameters().front().back().weight;
  Stream& stream = trainer.runtime().compute();
  uint32_t word = 0;
  stream.copy(&word, weight.data, sizeof word);
  stream.synchronize();
  word ^= 1u << 20;
  stream.copy(weight.data, &word, sizeof word);
  stream.synchronize();
}

}  // namespace

#define TRI_WRAPPED(symbol) __asm__("__wrap_" symbol)
#define TRI_REAL(symbol) __asm__("__real_" symbol)

// Defines a check of the table, run by `how`.
#define TRI_CHECK(name, symbol, how)                             \
  CheckResult real_##name(CheckContext&) TRI_REAL(symbol);       \
  CheckResult wrapped_##name(CheckContext&) TRI_WRAPPED(symbol); \
  CheckResult wrapped_##name(CheckContext& context) { return how; }
TRI_CHECK(peer_copies, "_ZN3tri17check_peer_copiesERNS_12CheckContextE", with_slow_copies(real_peer_copies, context))
TRI_CHECK(all_to_all, "_ZN3tri16check_all_to_allERNS_12CheckContextE", with_slow_copies(real_all_to_all, context))
TRI_CHECK(storage_write, "_ZN3tri19check_storage_writeERNS_12CheckContextE",
          with_full_disk(real_storage_write, context))
TRI_CHECK(storage_read, "_ZN3tri18check_storage_readERNS_12CheckContextE", with_full_disk(real_storage_read, context))
TRI_CHECK(repeatable_step, "_ZN3tri21check_repeatable_stepERNS_12CheckContextE",
          with_wrong_bits(real_repeatable_step, context, 1))
TRI_CHECK(equal_steps, "_ZN3tri17check_equal_stepsERNS_12CheckContextE", with_wrong_bits(real_equal_steps, context, 0))

CheckResult real_node_links(CheckContext&) TRI_REAL("_ZN3tri16check_node_linksERNS_12CheckContextE");
CheckResult wrapped_node_links(CheckContext&) TRI_WRAPPED("_ZN3tri16check_node_linksERNS_12CheckContextE");
CheckResult wrapped_node_links(CheckContext& context) {
  g_send_delay = faults().throttled_link;
  CheckResult result = real_node_links(context);
  g_send_delay = {};
  return result;
}

#define TRI_SYMBOL "_ZN3tri6Stream4copyEPvPKvl"
void real_copy(Stream* self, void* dst, const void* src, int64_t bytes) TRI_REAL(TRI_SYMBOL);
void wrapped_copy(Stream* self, void* dst, const void* src, int64_t bytes) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_copy(Stream* self, void* dst, const void* src, int64_t bytes) {
  wait_on(*self, g_copy_delay);
  real_copy(self, dst, src, bytes);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri9CommGroup4sendENS_6TensorEiRNS_6StreamE"
void real_send(CommGroup* self, Tensor tensor, int peer, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_send(CommGroup* self, Tensor tensor, int peer, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_send(CommGroup* self, Tensor tensor, int peer, Stream& stream) {
  wait_on(stream, g_send_delay);
  real_send(self, tensor, peer, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL \
  "_ZN3tri7Trainer4stepElSt4spanIKiLm18446744073709551615EES3_RKNS_14StepStatisticsERKSt8functionIFvvEENS_10StepLimitsE"
StepResult real_step(Trainer* self, int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                     const StepStatistics& local, const std::function<void()>& before_update, StepLimits limits)
    TRI_REAL(TRI_SYMBOL);
StepResult wrapped_step(Trainer* self, int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                        const StepStatistics& local, const std::function<void()>& before_update, StepLimits limits)
    TRI_WRAPPED(TRI_SYMBOL);
StepResult wrapped_step(Trainer* self, int64_t step, std::span<const int32_t> inputs, std::span<const int32_t> targets,
                        const StepStatistics& local, const std::function<void()>& before_update, StepLimits limits) {
  const StepResult result = real_step(self, step, inputs, targets, local, before_update, limits);
  if (g_wrong_bits && step == 0 && g_right_trainings-- == 0) flip_a_bit(*self);
  return result;
}
#undef TRI_SYMBOL

}  // namespace tri
