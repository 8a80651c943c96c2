#include "lib/tune/aligned_timer.h"

#include <algorithm>

namespace tri {

AlignedTimer::AlignedTimer(Engine& engine, Tensor number)
    : runtime_(engine.runtime()),
      job_(*engine.job()),
      number_(number),
      begin_(engine.device().make_event(EventKind::kTimed)),
      end_(engine.device().make_event(EventKind::kTimed)) {}

double AlignedTimer::sample(const std::function<void()>& work, int repeats) {
  Stream& compute = runtime_.compute();
  GroupOnStream& world = runtime_.world();
  world.after(compute);
  world.all_reduce(number_, ReduceOp::kMax);
  world.before(compute);
  compute.record(*begin_);
  for (int i = 0; i < repeats; ++i) work();
  compute.record(*end_);
  compute.synchronize();
  return end_->seconds_after(*begin_) / repeats;
}

std::vector<double> AlignedTimer::slowest(const std::vector<double>& mine) {
  std::vector<double> most(mine.size(), 0.0);
  for (const std::vector<double>& seconds : job_.all_gather(mine)) {
    TRI_REQUIRE(seconds.size() == most.size(), "one rank has {} times, another one {}", seconds.size(), most.size());
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], seconds[i]);
  }
  return most;
}

}  // namespace tri
