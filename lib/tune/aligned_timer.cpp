#include "lib/tune/aligned_timer.h"

#include <algorithm>
#include <sstream>

namespace tri {

AlignedTimer::AlignedTimer(Runtime& runtime, Job& job, Device& device, Tensor number)
    : runtime_(runtime),
      job_(job),
      number_(number),
      begin_(device.make_event(EventKind::kTimed)),
      end_(device.make_event(EventKind::kTimed)) {}

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
  std::string text;
  for (const double seconds : mine) text += fmt::format("{:.17g} ", seconds);
  std::vector<double> most(mine.size(), 0.0);
  for (const std::string& rank : job_.all_gather(text)) {
    std::istringstream words(rank);
    for (double& value : most)
      if (double seconds = 0; words >> seconds) value = std::max(value, seconds);
  }
  return most;
}

}  // namespace tri
