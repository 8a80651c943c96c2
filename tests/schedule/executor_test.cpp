// The executor on threads: every stage is a thread with its own device, transfers use rendezvous, a toy stage's results
// depend on every boundary value, and random delays are everywhere. Also built with ThreadSanitizer.
#include "lib/schedule/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include "io/base/random.h"
#include "lib/comm/peer/channel.h"
#include "lib/schedule/pipeline.h"
#include "tests/hangs/on_transfer.h"
#include "tests/hangs/stream_task.h"
#include "tests/schedule/local_group.h"

namespace tri {
namespace {

constexpr int64_t kRows = 3, kWidth = 5, kElements = kRows * kWidth;

struct Case {
  Schedule schedule;
  int pp, num_microbatches, chunks;
  Overlap overlap = Overlap::kOn;
  bool forward_only = false;
  bool copies = false;  // PeerChannels instead of messages
  // Durations of the actions, by virtual stage; empty: none takes time.
  std::vector<StageCost> costs = {};
  std::chrono::milliseconds unit{};  // of costs
};

// How long an action of the case takes.
std::chrono::duration<double> duration_of(const Case& c, ActionKind kind, int virtual_stage) {
  if (c.costs.empty()) return {};
  const StageCost& cost = c.costs[static_cast<size_t>(virtual_stage)];
  return c.unit * (kind == ActionKind::kForward    ? cost.forward
                   : kind == ActionKind::kBackward ? cost.backward
                                                   : cost.weight);
}

// A linear "network": virtual stage s maps x to (s + 2) · x + microbatch; its gradient is (s + 2) · dy, and the
// "parameter gradient" of s is the sum over microbatches of x · dy. A buffer that is reused too early changes the sums.
class ToyStage final : public StageCompute {
 public:
  // `delay` runs in each action.
  using Delay = std::function<void(ActionKind kind, int virtual_stage)>;
  ToyStage(Schedule schedule, Axis pp, int chunks, Stream& compute, Delay delay)
      : pp_(pp),
        chunks_(chunks),
        compute_(compute),
        delay_(std::move(delay)),
        splits_(splits_backward(schedule)),
        gradients_(static_cast<size_t>(chunks)),
        due_(static_cast<size_t>(chunks)) {}

  void forward(int chunk, int microbatch, Tensor input, Tensor output) override {
    const bool first = is_first_virtual_stage(pp_, chunk), last = is_last_virtual_stage(pp_, chunk, chunks_);
    const float factor = factor_of(chunk);
    EXPECT_EQ(last, output.empty());
    cpu_stream(compute_).submit([=, this] {
      delay_(ActionKind::kForward, virtual_stage(pp_, chunk));
      float* x = input.as<float>();
      for (int64_t i = 0; i < kElements; ++i) {
        if (first) x[i] = start_value(microbatch, i);
        const float y = factor * x[i] + static_cast<float>(microbatch);
        if (last)
          sum_of_outputs_ += y;
        else
          output.as<float>()[i] = y;
      }
    });
  }

  void backward(int chunk, int microbatch, Tensor input, Tensor doutput, Tensor dinput) override {
    const bool first = is_first_virtual_stage(pp_, chunk), last = is_last_virtual_stage(pp_, chunk, chunks_);
    const float factor = factor_of(chunk);
    EXPECT_EQ(last, doutput.empty());
    EXPECT_EQ(first, dinput.empty());
    cpu_stream(compute_).submit([=, this] {
      delay_(ActionKind::kBackward, virtual_stage(pp_, chunk));
      for (int64_t i = 0; i < kElements; ++i) {
        const float dy = last ? 1.0f / static_cast<float>(microbatch + 1) : doutput.as<float>()[i];
        const double gradient = double{input.as<float>()[i]} * dy;
        if (splits_)
          due_[static_cast<size_t>(chunk)][microbatch].push_back(gradient);
        else
          gradients_[static_cast<size_t>(chunk)] += gradient;
        if (!first) dinput.as<float>()[i] = factor * dy;
      }
    });
  }

  void weight_gradients(int chunk, int microbatch) override {
    cpu_stream(compute_).submit([=, this] {
      delay_(ActionKind::kWeight, virtual_stage(pp_, chunk));
      const auto due = due_[static_cast<size_t>(chunk)].extract(microbatch);
      ASSERT_FALSE(due.empty());
      for (const double gradient : due.mapped()) gradients_[static_cast<size_t>(chunk)] += gradient;
    });
  }

  static float start_value(int microbatch, int64_t i) {
    return random_normal(5, static_cast<uint64_t>(microbatch * 100 + i));
  }
  float factor_of(int chunk) const { return 0.25f * static_cast<float>(virtual_stage(pp_, chunk) + 2); }
  double sum_of_outputs() const { return sum_of_outputs_; }
  const std::vector<double>& gradients() const { return gradients_; }

 private:
  Axis pp_;
  int chunks_;
  Stream& compute_;
  Delay delay_;
  const bool splits_;
  double sum_of_outputs_ = 0;                            // used by the compute stream until it is drained
  std::vector<double> gradients_;                        // [chunk], the same
  std::vector<std::map<int, std::vector<double>>> due_;  // [chunk][microbatch], the same
};

struct Outcome {
  double sum_of_outputs = 0;
  std::vector<double> gradients;  // [virtual stage]
  bool operator==(const Outcome&) const = default;
};

// Computes the same in a plain loop.
Outcome expected_outcome(const Case& c) {
  const int stages = c.pp * c.chunks;
  Outcome outcome{0, std::vector<double>(static_cast<size_t>(stages))};
  for (int microbatch = 0; microbatch < c.num_microbatches; ++microbatch)
    for (int64_t i = 0; i < kElements; ++i) {
      std::vector<float> x(static_cast<size_t>(stages) + 1);
      x[0] = ToyStage::start_value(microbatch, i);
      for (int s = 0; s < stages; ++s)
        x[static_cast<size_t>(s) + 1] =
            0.25f * static_cast<float>(s + 2) * x[static_cast<size_t>(s)] + static_cast<float>(microbatch);
      outcome.sum_of_outputs += x[static_cast<size_t>(stages)];
      if (c.forward_only) continue;
      float dy = 1.0f / static_cast<float>(microbatch + 1);
      for (int s = stages - 1; s >= 0; --s) {
        outcome.gradients[static_cast<size_t>(s)] += double{x[static_cast<size_t>(s)]} * dy;
        dy *= 0.25f * static_cast<float>(s + 2);
      }
    }
  return outcome;
}

// A stage's memory and, if the case has them, its ends of the channels.
struct Rank {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Arena> arena;
  BoundaryTensors boundaries;
  Plan plan;
  std::vector<std::unique_ptr<StageChannel>> copies;  // wrapped by the observed ones
  std::unique_ptr<StageChannel> recv_forward, send_forward, recv_backward, send_backward;
  // Of the second route of a folded pipeline.
  std::unique_ptr<StageChannel> recv_forward_2, send_forward_2, recv_backward_2, send_backward_2;
};

std::vector<Rank> make_ranks(const Case& c) {
  std::vector<Rank> ranks(static_cast<size_t>(c.pp));
  for (int r = 0; r < c.pp; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    const Axis pp = pipeline_axis(c.schedule, r, c.pp);
    rank.plan = with_transfers(c.forward_only ? forward_only(pp, c.num_microbatches, c.chunks)
                                              : make_plan(c.schedule, pp, c.num_microbatches, c.chunks, c.costs),
                               pp, c.chunks);
    std::vector<int> inputs;
    for (int chunk = 0; chunk < c.chunks; ++chunk) inputs.push_back(max_inputs(rank.plan, pp, chunk));
    Arena measuring;
    allocate_boundaries(pp, c.chunks, inputs, kRows, kWidth, Dtype::kF32, measuring);
    rank.arena = std::make_unique<Arena>(*rank.device, std::max<int64_t>(measuring.used(), 1));
    rank.boundaries = allocate_boundaries(pp, c.chunks, inputs, kRows, kWidth, Dtype::kF32, *rank.arena);
  }
  const auto connect = [&](int from, int to, std::unique_ptr<StageChannel> Rank::*send,
                           std::unique_ptr<StageChannel> Rank::*recv, int send_flag, int recv_flag, bool forward,
                           size_t route = 0) {
    Rank &source = ranks[static_cast<size_t>(from)], &target = ranks[static_cast<size_t>(to)];
    PeerMemory peers{.base = {static_cast<char*>(source.arena->memory()), static_cast<char*>(target.arena->memory())}};
    PeerMemory peers_of_target = peers;
    peers_of_target.rank = 1;
    const PeerChannelEnd send_end{source.boundaries.flags.flat(send_flag, 1), {}};
    std::vector<std::vector<Tensor>> rings = target.boundaries.inputs;
    if (!forward) rings = {target.boundaries.doutputs[route]};
    if (forward && folds(c.schedule)) rings = {target.boundaries.inputs[route]};
    const PeerChannelEnd recv_end{target.boundaries.flags.flat(recv_flag, 1), rings};
    const std::vector<PeerChannelPlaces> ends{PeerChannel::places_of(peers, send_end),
                                              PeerChannel::places_of(peers_of_target, recv_end)};
    source.*send = observed(*source.copies.emplace_back(std::make_unique<PeerChannel>(peers, send_end, ends)));
    target.*recv =
        observed(*target.copies.emplace_back(std::make_unique<PeerChannel>(peers_of_target, recv_end, ends)));
  };
  if (c.copies && c.pp > 1)
    for (int r = 0; r < (folds(c.schedule) ? c.pp - 1 : c.pp); ++r) {
      const int next = (r + 1) % c.pp;
      if (folds(c.schedule)) {
        connect(next, r, &Rank::send_forward_2, &Rank::recv_forward_2, 5, 4, true, 1);
        connect(r, next, &Rank::send_backward_2, &Rank::recv_backward_2, 7, 6, false, 1);
      }
      connect(r, next, &Rank::send_forward, &Rank::recv_forward, 1, 0, true);
      connect(next, r, &Rank::send_backward, &Rank::recv_backward, 3, 2, false);
    }
  return ranks;
}

// How long the actions of a run took.
struct Measured {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> begin, end;  // of the first action, and of the last
  std::chrono::duration<double> work{};         // in actions, on all ranks

  void add(Clock::time_point from, Clock::time_point to) {
    begin = begin ? std::min(*begin, from) : from;
    end = end ? std::max(*end, to) : to;
    work += to - from;
  }
};

// Runs all stages, each on its own thread, `rounds` times with the same buffers.
Outcome run_on_threads(const Case& c, uint64_t delay_seed, int rounds = 1, Measured* measured = nullptr) {
  auto forward = std::make_shared<LocalExchange>(), backward = std::make_shared<LocalExchange>();
  auto forward_2 = std::make_shared<LocalExchange>(), backward_2 = std::make_shared<LocalExchange>();
  Outcome outcome{0, std::vector<double>(static_cast<size_t>(c.pp * c.chunks))};
  std::mutex mutex;
  std::vector<Rank> ranks = make_ranks(c);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < c.pp; ++rank) {
    threads.emplace_back([&, rank] {
      const Axis pp = pipeline_axis(c.schedule, rank, c.pp);
      Rank& local = ranks[static_cast<size_t>(rank)];
      std::atomic<uint64_t> counter{0};
      const auto delay = [&, rank] {
        if (delay_seed == 0) return;
        const uint64_t draw = random_u64(delay_seed + static_cast<uint64_t>(rank), counter++);
        if (draw % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % 300));
      };
      std::vector<std::unique_ptr<Stream>> streams;
      for (const char* name : {"compute", "rf", "sf", "rb", "sb", "rf 2", "sf 2", "rb 2", "sb 2"})
        streams.push_back(local.device->make_stream(name));
      LocalGroup forward_group(rank, c.pp, forward, delay), backward_group(rank, c.pp, backward, delay);
      LocalGroup forward_group_2(rank, c.pp, forward_2, delay), backward_group_2(rank, c.pp, backward_2, delay);
      ToyStage stage(c.schedule, pp, c.chunks, *streams[0], [&](ActionKind kind, int virtual_stage) {
        const auto begin = Measured::Clock::now();
        const auto duration = duration_of(c, kind, virtual_stage);
        if (duration.count() > 0) std::this_thread::sleep_for(duration);
        delay();
        if (measured == nullptr) return;
        const std::lock_guard lock(mutex);
        measured->add(begin, Measured::Clock::now());
      });
      const int next = (rank + 1) % c.pp, previous = (rank + c.pp - 1) % c.pp;
      if (!c.copies) {
        local.recv_forward = std::make_unique<MessageChannel>(forward_group, previous);
        local.send_forward = std::make_unique<MessageChannel>(forward_group, next);
        local.recv_backward = std::make_unique<MessageChannel>(backward_group, next);
        local.send_backward = std::make_unique<MessageChannel>(backward_group, previous);
        local.recv_forward_2 = std::make_unique<MessageChannel>(forward_group_2, next);
        local.send_forward_2 = std::make_unique<MessageChannel>(forward_group_2, previous);
        local.recv_backward_2 = std::make_unique<MessageChannel>(backward_group_2, previous);
        local.send_backward_2 = std::make_unique<MessageChannel>(backward_group_2, next);
      }
      {
        Executor executor({.pp = pp,
                           .chunks = c.chunks,
                           .tensors = local.boundaries,
                           .links = {.recv_forward = {local.recv_forward.get(), streams[1].get()},
                                     .send_forward = {local.send_forward.get(), streams[2].get()},
                                     .recv_backward = {local.recv_backward.get(), streams[3].get()},
                                     .send_backward = {local.send_backward.get(), streams[4].get()}},
                           .returning = {.recv_forward = {local.recv_forward_2.get(), streams[5].get()},
                                         .send_forward = {local.send_forward_2.get(), streams[6].get()},
                                         .recv_backward = {local.recv_backward_2.get(), streams[7].get()},
                                         .send_backward = {local.send_backward_2.get(), streams[8].get()}},
                           .compute = *streams[0],
                           .device = *local.device,
                           .overlap = c.overlap});
        for (int round = 0; round < rounds; ++round) executor.run(local.plan, stage);
        for (auto& stream : streams) stream->synchronize();
      }
      std::lock_guard lock(mutex);
      outcome.sum_of_outputs += stage.sum_of_outputs();
      for (int chunk = 0; chunk < c.chunks; ++chunk)
        outcome.gradients[static_cast<size_t>(virtual_stage(pp, chunk))] =
            stage.gradients()[static_cast<size_t>(chunk)];
    });
  }
  for (auto& thread : threads) thread.join();
  return outcome;
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Overlap overlap : {Overlap::kOn, Overlap::kOff}) {
    for (const int pp : {1, 2, 3, 4})
      for (const int num_microbatches : {1, 2, 5, 8})
        for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1})
          list.push_back({schedule, pp, num_microbatches, 1, overlap});
    for (const int pp : {2, 3, 4})
      for (const int num_microbatches : {2, 4, 7})
        for (const int chunks : {2, 3}) list.push_back({Schedule::kInterleaved, pp, num_microbatches, chunks, overlap});
    for (const int pp : {1, 2, 3, 4})
      for (const int num_microbatches : {1, 2, 5, 8})
        list.push_back({Schedule::kZbV, pp, num_microbatches, 2, overlap});
    list.push_back({Schedule::k1F1B, 4, 6, 1, overlap, true});
    list.push_back({Schedule::kZbV, 3, 5, 2, overlap, true});
    list.push_back({Schedule::kInterleaved, 2, 5, 3, overlap, true});
  }
  return list;
}

TEST(Executor, every_schedule_computes_what_a_plain_loop_does) {
  for (Case c : cases())
    for (const bool copies : {false, true}) {
      c.copies = copies;
      EXPECT_EQ(run_on_threads(c, 0), expected_outcome(c))
          << enum_name(c.schedule) << " pp " << c.pp << " num_microbatches " << c.num_microbatches << " chunks "
          << c.chunks << (copies ? " copies" : "");
    }
}

TEST(Executor, random_delays_change_nothing) {
  for (const Case& c : {Case{Schedule::k1F1B, 4, 8, 1}, Case{Schedule::kInterleaved, 2, 8, 2},
                        Case{Schedule::kInterleaved, 4, 8, 2, Overlap::kOff}, Case{Schedule::kGpipe, 3, 6, 1},
                        Case{Schedule::kZbH1, 4, 8, 1}, Case{Schedule::kZbH1, 3, 5, 1, Overlap::kOff},
                        Case{Schedule::kZbV, 4, 8, 2}, Case{Schedule::kZbV, 3, 5, 2, Overlap::kOff}})
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_EQ(run_on_threads(c, seed), expected_outcome(c)) << seed;
      std::atomic<uint64_t> transfers{0};
      OnTransfer delay([&](Stream& stream) {
        const uint64_t draw = random_u64(seed, transfers++);
        if (draw % 4 == 0) idle(stream, std::chrono::microseconds(draw / 4 % 300));
      });
      Case with_copies = c;
      with_copies.copies = true;
      EXPECT_EQ(run_on_threads(with_copies, seed), expected_outcome(c)) << seed << " copies";
      EXPECT_GT(transfers, 0u);
    }
}

// Returns the case with parts that take equal times.
Case with_equal_parts(Case c) {
  c.costs.assign(static_cast<size_t>(c.pp * c.chunks), equal_parts(c.schedule));
  return c;
}

// Returns the case with parts that take different times and with a head on the last virtual stage.
Case with_head(Case c) {
  const bool splits = splits_backward(c.schedule);
  c.costs.assign(static_cast<size_t>(c.pp * c.chunks),
                 {.forward = 1, .backward = splits ? 1.2 : 2.1, .weight = splits ? 0.9 : 0});
  c.costs.back().backward += 0.6;
  return c;
}

// `make soak-bubble`. Actions wake up late where threads share processors: that is time of the action here, and how
// late an action begins after its input is short compared with these durations.
TEST(Executor, bubbles_are_those_of_the_simulator) {
  if (std::getenv("TRIREME_SOAK") == nullptr) GTEST_SKIP() << "set TRIREME_SOAK to measure bubbles";
  const Case zb_v{Schedule::kZbV, 4, 8, 2}, zb_h1{Schedule::kZbH1, 4, 8, 1}, one_f_one_b{Schedule::k1F1B, 4, 8, 1};
  for (Case c : {with_equal_parts({Schedule::kGpipe, 4, 8, 1}), with_equal_parts(one_f_one_b), with_equal_parts(zb_h1),
                 with_equal_parts({Schedule::kZbH1, 2, 4, 1}), with_equal_parts({Schedule::kInterleaved, 4, 8, 2}),
                 with_equal_parts(zb_v), with_head(one_f_one_b), with_head(zb_h1), with_head(zb_v),
                 with_head({Schedule::kZbV, 2, 16, 2})}) {
    c.unit = std::chrono::milliseconds(300);
    const double predicted =
        simulate_pipeline(plans_of_all_stages(c.schedule, c.pp, c.num_microbatches, c.chunks, c.costs), c.chunks,
                          c.costs, Overlap::kOn, placement_of(c.schedule))
            .bubble;
    Measured m;
    run_on_threads(c, 0, 1, &m);
    const std::chrono::duration<double> makespan = *m.end - *m.begin;
    const double measured = c.pp * makespan / m.work - 1;
    fmt::print("| {} | {} | {} | {} | {} | {:.1f} % | {:.1f} % |\n", enum_name(c.schedule), c.pp, c.num_microbatches,
               c.chunks, c.costs.front().backward == c.costs.back().backward ? "equal" : "with a head", 100 * measured,
               100 * predicted);
    EXPECT_NEAR(measured, predicted, 0.1 * predicted) << enum_name(c.schedule);
  }
}

TEST(Executor, buffers_carry_over_from_step_to_step) {
  const Case c{Schedule::kInterleaved, 2, 4, 2};
  Case with_copies = c;
  with_copies.copies = true;
  const Outcome once = expected_outcome(c);
  for (const Outcome& twice : {run_on_threads(c, 9, 2), run_on_threads(with_copies, 9, 2)})
    for (size_t s = 0; s < once.gradients.size(); ++s)
      EXPECT_NEAR(twice.gradients[s], 2 * once.gradients[s], 1e-9 * std::abs(once.gradients[s]) + 1e-9);
}

TEST(Executor, too_few_buffers_are_an_error_not_a_corruption) {
  const Axis pp{0, 1};
  auto device = make_cpu_device();
  auto compute = device->make_stream("compute");
  Arena arena(*device, 4096);
  Executor executor({.pp = pp,
                     .tensors = allocate_boundaries(pp, 1, {1}, kRows, kWidth, Dtype::kF32, arena),
                     .compute = *compute,
                     .device = *device});
  ToyStage stage(Schedule::kGpipe, pp, 1, *compute, [](ActionKind, int) {});
  const Plan plan{
      {ActionKind::kForward, 0}, {ActionKind::kForward, 1}, {ActionKind::kBackward, 0}, {ActionKind::kBackward, 1}};
  EXPECT_THROW(executor.run(plan, stage), Fatal);
  compute->synchronize();
}

}  // namespace
}  // namespace tri
