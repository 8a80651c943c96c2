#include "lib/train/aligned_timer.h"

#include <algorithm>
#include <sstream>

namespace tri {

AlignedTimer::AlignedTimer(Runtime& runtime, Job& job, Device& device, Tensor number, Tensor gate)
    : runtime_(runtime),
      job_(job),
      number_(number),
      gate_(gate),
      opener_(device.make_stream("gate")),
      begin_(device.make_event(EventKind::kTimed)),
      end_(device.make_event(EventKind::kTimed)) {
  opener_->zero(gate_);
  opener_->synchronize();
}

AlignedTimer::~AlignedTimer() = default;

double AlignedTimer::sample(const std::function<void()>& work, int repeats) {
  Stream& compute = runtime_.compute();
  Channel& world = runtime_.world();
  auto* gate = reinterpret_cast<uint32_t*>(gate_.as<int32_t>());
  compute.wait_flag(gate, ++opened_);
  world.after(compute);
  world.all_reduce(number_, ReduceOp::kMax);
  world.before(compute);
  compute.record(*begin_);
  for (int i = 0; i < repeats; ++i) work();
  compute.record(*end_);
  opener_->set_flag(gate, opened_);
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
