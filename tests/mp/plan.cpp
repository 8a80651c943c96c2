// The plan of a job, made by its ranks: they collect facts together and decide equally.
#include <sys/resource.h>

#include "kernels/cpu/device.h"
#include "lib/comm/peer/memory.h"
#include "lib/engine/job_plan.h"
#include "tests/mp/mp_test.h"
#include "tests/mp/simulated_machine.h"

namespace tri {
namespace {

// A CPU that cannot open the memory of other ranks.
class SecretiveDevice final : public Device {
 public:
  DeviceKind kind() const override { return cpu_->kind(); }
  std::optional<double> peak_tflops(Dtype dtype) const override { return cpu_->peak_tflops(dtype); }
  std::unique_ptr<Stream> make_stream(const std::string& name, StreamPriority priority) override {
    return cpu_->make_stream(name, priority);
  }
  std::unique_ptr<Event> make_event(EventKind kind) override { return cpu_->make_event(kind); }
  void* allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* memory) noexcept override { cpu_->release(memory); }
  int64_t free_bytes() override { return cpu_->free_bytes(); }
  Result<std::string> share(void* memory) override { return cpu_->share(memory); }
  Result<void*> open_shared(const std::string&) override { return Error{"not mine to open", ExitCode::kDevice}; }
  void close_shared(void* view) noexcept override { cpu_->close_shared(view); }
  void* allocate_host(size_t bytes) override { return cpu_->allocate_host(bytes); }
  void release_host(void* memory) noexcept override { cpu_->release_host(memory); }

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

Config config_of(int tp, int dp, int pp) {
  Config c;
  c.run.device = DeviceChoice::kCpu;
  c.model = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 16};
  c.data.global_batch = 8;
  c.parallel = {.tp = tp, .pp = pp, .dp = dp};
  return value_or_throw(resolve_config(c, tp * dp * pp));
}

// Like plan_for_job, with the test's device.
Result<JobPlan> plan_with(const Config& config, Device& device) {
  Job& job = *test_job();
  const ParallelConfig& p = config.parallel;
  JobFacts facts = gather_host_facts(config.run.device, job);
  add_device_facts(config, make_mesh(job.world_rank(), {{"tp", p.tp}, {"dp", p.dp}, {"pp", p.pp}}), job, device, facts);
  return plan_job(config, facts);
}

bool alike_on_all_ranks(const std::string& text) {
  const auto all = test_job()->all_gather(text);
  return std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == text; });
}

TEST(Plan, on_one_machine_memory_is_tried_and_copies_are_planned) {
  Job& job = *test_job();
  const int n = job.world_size();
  if (n < 2) GTEST_SKIP() << "needs two ranks";
  for (const auto& [tp, dp, pp] : {std::tuple{n, 1, 1}, {1, n, 1}, {1, 1, n}, {2, n / 2, 1}, {1, 2, n / 2}}) {
    if (tp * dp * pp != n) continue;
    const Config config = config_of(tp, dp, pp);
    const auto planned = plan_for_job(config, job);
    ASSERT_TRUE(planned) << planned.error().message;
    EXPECT_EQ(planned.value().requested, config);
    const ParallelConfig& p = planned.value().config.parallel;
    EXPECT_EQ(p.tp_transfers, tp > 1 ? Transfers::kCopies : Transfers::kCollectives);
    EXPECT_EQ(p.dp_transfers, dp > 1 && tp == 1 ? Transfers::kCopies : Transfers::kCollectives);
    EXPECT_EQ(p.pp_transfers, pp > 1 ? PpTransfers::kCopies : PpTransfers::kMessages);
    EXPECT_TRUE(alike_on_all_ranks(to_string(planned.value().plan) + to_yaml(planned.value().config)));
  }
}

TEST(Plan, ranks_on_several_machines_decide_alike) {
  Job& job = *test_job();
  const int n = job.world_size();
  if (n < 4) GTEST_SKIP() << "needs four ranks";
  auto simulated = std::make_unique<SimulatedMachine>(fmt::format("machine {}", job.world_rank() / 2));
  const auto wide = plan_for_job(config_of(n, 1, 1), job), deep = plan_for_job(config_of(1, 1, n), job);
  const auto pairs = plan_for_job(config_of(2, n / 2, 1), job);
  Config insists = config_of(1, n, 1);
  insists.parallel.dp_transfers = Transfers::kCopies;
  const auto refused = plan_for_job(insists, job);
  simulated.reset();
  ASSERT_TRUE(wide && deep && pairs);
  EXPECT_EQ(wide.value().plan.tp, Transfers::kCollectives);
  EXPECT_EQ(pairs.value().plan.tp, Transfers::kCopies);
  for (int rank = 0; rank + 1 < n; ++rank)
    EXPECT_EQ(deep.value().plan.pp[static_cast<size_t>(rank)],
              rank % 2 == 0 ? PpTransfers::kCopies : PpTransfers::kMessages);
  EXPECT_EQ(deep.value().config.parallel.pp_transfers, PpTransfers::kAuto);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "parallel.dp_transfers: copies: the group's ranks are on several machines; set auto");
  EXPECT_TRUE(alike_on_all_ranks(to_string(deep.value().plan)));
}

// Only one rank cannot open the others' memory: the plan is equal on all ranks, with memory for collectives.
TEST(Plan, memory_that_one_rank_cannot_open_is_done_without_by_all) {
  Job& job = *test_job();
  const int n = job.world_size();
  if (n < 2) GTEST_SKIP() << "needs two ranks";
  SecretiveDevice secretive;
  const auto cpu = make_cpu_device();
  Device& device = job.world_rank() == n - 1 ? static_cast<Device&>(secretive) : *cpu;
  for (const auto& [tp, dp, pp] : {std::tuple{n, 1, 1}, {1, n, 1}, {1, 1, n}}) {
    Config config = config_of(tp, dp, pp);
    const auto plan = plan_with(config, device);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan.value().tp, Transfers::kCollectives);
    EXPECT_EQ(plan.value().dp, Transfers::kCollectives);
    EXPECT_EQ(std::count(plan.value().pp.begin(), plan.value().pp.end(), PpTransfers::kCopies), pp > 1 ? pp - 2 : 0);
    EXPECT_NE(to_string(plan.value()).find("not mine to open"), std::string::npos) << to_string(plan.value());
    EXPECT_TRUE(alike_on_all_ranks(to_string(plan.value())));
    config.parallel.tp_transfers = config.parallel.dp_transfers = Transfers::kCopies;
    config.parallel.pp_transfers = PpTransfers::kCopies;
    const auto refused = plan_with(config, device);
    ASSERT_FALSE(refused) << "copies are insisted on and can't be had";
    EXPECT_NE(refused.error().message.find("not mine to open; set auto"), std::string::npos) << refused.error().message;
    EXPECT_TRUE(alike_on_all_ranks(refused.error().message));
  }
}

// A limit like that of `ulimit -f`, only on the last rank, one byte below what it would share.
TEST(Plan, a_file_size_limit_of_one_rank_leaves_all_ranks_without_copies) {
  Job& job = *test_job();
  const int n = job.world_size();
  if (n < 2) GTEST_SKIP() << "needs two ranks";
  const auto cpu = make_cpu_device();
  const Config config = config_of(1, n, 1);
  Arena measuring;
  allocate_rank(with_plan(config, value_or_throw(plan_with(config, *cpu))),
                make_mesh(job.world_rank(), {{"tp", 1}, {"dp", n}, {"pp", 1}}), measuring);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto planned = [&](int64_t most) {
    rlimit limit = before;
    if (job.world_rank() == n - 1) limit.rlim_cur = static_cast<rlim_t>(most);
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    auto plan = plan_with(config, *cpu);
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    return value_or_throw(std::move(plan));
  };
  EXPECT_EQ(planned(measuring.used()).dp, Transfers::kCopies);
  const JobPlan plan = planned(measuring.used() - 1);
  EXPECT_EQ(plan.dp, Transfers::kCollectives);
  EXPECT_NE(to_string(plan).find("(ulimit -f)"), std::string::npos) << to_string(plan);
  EXPECT_TRUE(alike_on_all_ranks(to_string(plan)));
}

TEST(Plan, recompute_auto_asks_for_the_free_memory_of_every_rank) {
  Job& job = *test_job();
  Config config = config_of(1, job.world_size(), 1);
  config.parallel.recompute = Recompute::kAuto;
  const auto planned = plan_for_job(config, job);
  ASSERT_TRUE(planned) << planned.error().message;
  EXPECT_NE(planned.value().config.parallel.recompute, Recompute::kAuto);
  EXPECT_TRUE(alike_on_all_ranks(to_yaml(planned.value().config)));
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
