#include "lib/bench/sweep.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "io/base/format.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/job_plan.h"
#include "lib/engine/rank_tensors.h"

namespace tri {

template <class Archive>
void fields(Archive& archive, LayoutChoice& choice) {
  archive(choice.layouts, choice.own_first, choice.own_problem, choice.refused, choice.too_large, choice.beyond_limit);
}

namespace {

// Returns the maximum over all ranks, on every rank. Collective.
template <class T>
T largest(Job& job, T mine) {
  for (const T of_rank : job.all_gather(mine)) mine = std::max(mine, of_rank);
  return mine;
}

// Returns rank 0's choice on all ranks: rounding in another libm must not make them differ. Collective.
Result<LayoutChoice> agreed_choice(const Config& config, Job& job, int64_t most_bytes, int limit) {
  Result<LayoutChoice> choice = LayoutChoice();
  if (job.world_rank() == 0) choice = choose_layouts(config, job.world_size(), most_bytes, limit);
  return job.broadcast(choice);
}

Result<void> measure(const Config& resolved, Job& job, Device& device, JobFacts facts, const StepBench& bench,
                     SweepRow& row) {
  add_device_facts(resolved, mesh_of(resolved, job.world_rank()), job, device, facts);
  const auto plan = plan_job(resolved, facts);
  if (!plan) return plan.error();
  const Config config = with_plan(resolved, plan.value());
  const Mesh mesh = mesh_of(config, job.world_rank());  // as planned: a schedule may fold the pipeline
  Arena measuring(device);
  allocate_rank(config, mesh, measuring);
  row.memory_bytes = largest(job, measuring.used());
  std::unique_ptr<Arena> arena;
  Result<void> mine;
  try {
    arena = std::make_unique<Arena>(device, measuring.used());
  } catch (const Fatal& full) {  // other ranks wait in agree(), not in a communicator
    mine = Error{full.what(), full.code()};
  }
  if (auto all = agree(job, mine); !all) return all;
  const StepBenchResult result = bench_step(config, mesh, job, device, *arena, bench);
  if (!std::isfinite(largest(job, std::isfinite(result.last_loss) ? 0.0 : HUGE_VAL)))
    return Error{"the loss is not finite", ExitCode::kNotFinite};
  row.ms = largest(job, result.median_ms);
  const double tokens = static_cast<double>(config.data.global_batch) * config.model.seq_len;
  row.tokens_per_s = tokens / row.ms * 1e3;
  if (result.mfu) row.mfu = *result.mfu * result.median_ms / row.ms;
  return {};
}

}  // namespace

void sort_best_first(std::vector<SweepRow>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const SweepRow& a, const SweepRow& b) {
    if (a.problem.empty() != b.problem.empty()) return a.problem.empty();
    return a.problem.empty() && a.ms < b.ms;
  });
}

Result<SweepResult> sweep_layouts(const Config& config, Job& job, Device& device, const LayoutSweep& sweep,
                                  const std::function<void(const ParallelLayout&, int, int)>& on_trial) {
  const JobFacts hosts = gather_host_facts(config.run.device, job);
  SweepResult result;
  const int64_t free = device.free_bytes();
  result.most_bytes = -largest(job, -room_for_arena(device.kind(), free, job.node_size()));
  auto choice = agreed_choice(config, job, result.most_bytes, sweep.limit);
  if (!choice) return choice.error();
  result.choice = std::move(choice).value();
  const auto& layouts = result.choice.layouts;
  if (layouts.empty())
    return Error{fmt::format("no layout of {} ranks fits into {} per rank; use more ranks or a smaller model",
                             job.world_size(), format_bytes(result.most_bytes)),
                 ExitCode::kDevice};
  for (size_t i = 0; i < layouts.size(); ++i) {
    SweepRow row{.layout = layouts[i], .own = i == 0 && result.choice.own_first};
    on_trial(row.layout, static_cast<int>(i) + 1, static_cast<int>(layouts.size()));
    const Config resolved = value_or_throw(resolve_config(with_layout(config, row.layout), job.world_size()));
    if (auto measured = measure(resolved, job, device, hosts, sweep.step, row); !measured) {
      row.problem = measured.error().message;
      row.code = measured.error().code;
    }
    result.rows.push_back(std::move(row));
    job.barrier();  // all ranks have freed their memory before the next layout allocates
  }
  if (device.kind() == DeviceKind::kCuda)
    result.left_bytes = largest(job, std::max<int64_t>(0, free - device.free_bytes()));
  sort_best_first(result.rows);
  return result;
}

}  // namespace tri
