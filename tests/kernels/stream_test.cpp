// CPU streams, events and faults, and arenas. Tasks share plain memory on purpose: with -fsanitize=thread, an order
// that the streams do not establish is reported as a race.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <thread>

#include "io/base/error.h"
#include "io/base/random.h"
#include "kernels/core/arena.h"
#include "kernels/core/timeline.h"
#include "kernels/cpu/device.h"
#include "tests/hangs/stream_task.h"

namespace tri {
namespace {

class StreamTest : public ::testing::Test {
 protected:
  // Enqueues `task` on the stream.
  template <class Task>
  static void submit(const std::unique_ptr<Stream>& stream, Task task) {
    cpu_stream(*stream).submit(task);
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> a_ = device_->make_stream("a"), b_ = device_->make_stream("b");
};

// More than a processor addresses. The limit is higher, so that nothing else fails.
TEST_F(StreamTest, memory_that_cannot_be_mapped_is_an_error_that_names_the_limit_of_the_address_space) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "ulimit -v is set";
  const rlimit limited{.rlim_cur = rlim_t{1} << 50, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);
  std::string said;
  try {
    device_->release(device_->allocate(size_t{1} << 48));
  } catch (const Fatal& problem) {
    said = problem.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(said,
            "cannot allocate 281474976710656 bytes of host memory: Cannot allocate memory (the address space of a "
            "process is limited to 1024.00 TiB: RLIMIT_AS, ulimit -v)");
}

TEST_F(StreamTest, runs_tasks_in_the_order_enqueued) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) submit(a_, [&, i] { order.push_back(i); });
  a_->synchronize();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(StreamTest, the_host_does_not_wait_for_tasks) {
  std::promise<void> go;
  submit(a_, [&] { go.get_future().wait(); });  // would never end if submit ran the task
  go.set_value();
  a_->synchronize();
}

TEST_F(StreamTest, marks_are_set_once_earlier_work_is_done_and_not_before) {
  std::atomic<uint32_t> first{0}, second{0}, last{0};
  std::promise<void> go;
  std::array<uint32_t, 3> before{}, between{};
  const auto look = [&] { return std::array<uint32_t, 3>{first, second, last}; };
  submit(a_, [&] { go.get_future().wait(), before = look(); });
  a_->mark(first, 1);
  a_->mark(second, 2);
  submit(a_, [&] { between = look(); });
  a_->mark(last, 3);
  EXPECT_EQ(look(), (std::array<uint32_t, 3>{}));
  go.set_value();
  a_->synchronize();
  EXPECT_EQ(before, (std::array<uint32_t, 3>{}));
  EXPECT_EQ(between, (std::array<uint32_t, 3>{1, 2, 0}));
  EXPECT_EQ(look(), (std::array<uint32_t, 3>{1, 2, 3}));
  a_->mark(first, 4);  // the stream is idle
  EXPECT_EQ(first, 4u);
}

TEST_F(StreamTest, streams_run_side_by_side) {
  std::promise<void> from_a, from_b;
  submit(a_, [&] { from_a.set_value(), from_b.get_future().wait(); });
  submit(b_, [&] { from_b.set_value(), from_a.get_future().wait(); });
  a_->synchronize();
  b_->synchronize();
}

TEST_F(StreamTest, wait_orders_after_the_record) {
  const auto event = device_->make_event();
  std::promise<void> go;
  int value = 0, seen = -1;
  submit(a_, [&] { go.get_future().wait(), value = 7; });
  a_->record(*event);
  b_->wait(*event);
  submit(b_, [&] { seen = value; });
  go.set_value();
  b_->synchronize();
  EXPECT_EQ(seen, 7);
}

TEST_F(StreamTest, wait_means_the_latest_record_at_the_call) {
  const auto event = device_->make_event();
  std::promise<void> b_is_through;
  int value = 0, seen = -1;
  submit(a_, [&] { value = 1; });
  a_->record(*event);
  submit(a_, [&] { value = 2; });
  a_->record(*event);
  b_->wait(*event);  // the second record
  // The third record comes after the call, behind a task that ends only once b has passed its wait.
  submit(a_, [&] { b_is_through.get_future().wait(); });
  a_->record(*event);
  submit(b_, [&] { seen = value, b_is_through.set_value(); });
  b_->synchronize();
  EXPECT_EQ(seen, 2);
  a_->synchronize();
}

TEST_F(StreamTest, a_later_record_on_another_stream_does_not_end_an_earlier_wait) {
  const auto event = device_->make_event();
  const auto c = device_->make_stream("c");
  std::promise<void> go;
  int value = 0, seen = -1;
  submit(a_, [&] { go.get_future().wait(), value = 1; });
  a_->record(*event);
  c->wait(*event);
  submit(c, [&] { seen = value; });
  b_->record(*event);
  b_->synchronize();  // the second record is done, the first is not
  go.set_value();
  c->synchronize();
  EXPECT_EQ(seen, 1);
}

TEST_F(StreamTest, wait_on_an_event_never_recorded_is_no_operation) {
  const auto event = device_->make_event();
  std::promise<void> b_is_through;
  b_->wait(*event);
  submit(a_, [&] { b_is_through.get_future().wait(); });
  a_->record(*event);
  submit(b_, [&] { b_is_through.set_value(); });
  b_->synchronize();
  a_->synchronize();
  device_->make_event()->synchronize();  // the host does not wait for one either
}

TEST_F(StreamTest, the_host_waits_for_an_event_but_not_for_what_follows_it) {
  const auto event = device_->make_event();
  std::promise<void> go;
  int value = 0;
  submit(a_, [&] { value = 1; });
  a_->record(*event);
  submit(a_, [&] { go.get_future().wait(); });
  event->synchronize();
  EXPECT_EQ(value, 1);
  go.set_value();
  a_->synchronize();
}

TEST_F(StreamTest, a_stream_finishes_its_work_before_it_is_destroyed) {
  int done = 0;
  {
    const auto stream = device_->make_stream("short");
    for (int i = 0; i < 100; ++i) submit(stream, [&] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

TEST_F(StreamTest, copy_and_zero_run_in_stream_order) {
  std::array<float, 5> source{1, 2, 3, 4, 5}, middle{}, target{};
  a_->copy(middle.data(), source.data(), sizeof source);
  a_->copy(target.data(), middle.data(), sizeof source);
  a_->zero(Tensor(middle.data(), Dtype::kF32, {3}));
  a_->synchronize();
  EXPECT_EQ(target, source);
  EXPECT_EQ(middle, (std::array<float, 5>{0, 0, 0, 4, 5}));
}

TEST_F(StreamTest, a_random_graph_of_tasks_respects_every_order) {
  constexpr int kTasks = 2000, kStreams = 6, kEvents = 17;  // events are recorded repeatedly
  const uint64_t key = derive_key(1, "graph");
  uint64_t counter = 0;
  const auto random = [&](int limit) { return static_cast<int>(random_u64(key, counter++) % limit); };

  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<Stream>> streams;  // destroyed before the events
  for (int i = 0; i < kEvents; ++i) events.push_back(device_->make_event());
  for (int i = 0; i < kStreams; ++i) streams.push_back(device_->make_stream(fmt::format("{}", i)));
  std::vector<int> recorded(kEvents, -1), last(kStreams, -1);  // the latest task that an event or a stream represents
  std::vector<char> done(kTasks, 0);
  std::atomic<int> violations = 0;
  int num_edges = 0;

  for (int task = 0; task < kTasks; ++task) {
    const int stream = random(kStreams);
    std::vector<int> before;
    if (last[stream] >= 0) before.push_back(last[stream]);
    for (int n = random(4); n > 0; --n) {
      const int event = random(kEvents);
      streams[stream]->wait(*events[event]);
      if (recorded[event] >= 0) before.push_back(recorded[event]);
    }
    num_edges += static_cast<int>(before.size());
    submit(streams[stream], [&, before, task] {
      for (const int earlier : before)
        if (!done[earlier]) ++violations;
      done[task] = 1;
    });
    last[stream] = task;
    const int event = random(kEvents);
    streams[stream]->record(*events[event]);
    recorded[event] = task;
  }
  for (const auto& stream : streams) stream->synchronize();
  EXPECT_EQ(violations, 0);
  EXPECT_EQ(std::count(done.begin(), done.end(), 1), kTasks);
  EXPECT_GT(num_edges, 2 * kTasks);
}

TEST_F(StreamTest, a_fault_skips_later_tasks_but_events_fire_and_waits_rethrow) {
  const auto event = device_->make_event();
  std::atomic<int> ran = 0;
  EXPECT_FALSE(device_->faulted());
  EXPECT_NO_THROW(device_->rethrow_fault());
  submit(a_, [] { throw Fatal(ExitCode::kComm, "the first"); });
  submit(a_, [&] { ++ran; });
  submit(a_, [] { throw Fatal(ExitCode::kDevice, "the second"); });
  a_->record(*event);
  b_->wait(*event);
  submit(b_, [&] { ++ran; });
  const auto message = [](auto wait) -> std::string {
    try {
      wait();
    } catch (const Fatal& fatal) {
      return fmt::format("{} {}", static_cast<int>(fatal.code()), fatal.what());
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message([&] { b_->synchronize(); }), "5 the first");
  EXPECT_EQ(message([&] { a_->synchronize(); }), "5 the first");
  EXPECT_EQ(message([&] { event->synchronize(); }), "5 the first");
  EXPECT_EQ(message([&] { device_->rethrow_fault(); }), "5 the first");
  EXPECT_TRUE(device_->faulted());
  EXPECT_EQ(ran, 0);
}

TEST_F(StreamTest, a_task_can_leave_a_long_wait_on_a_fault_of_another_stream) {
  submit(a_, [&] {
    while (!device_->faulted()) std::this_thread::yield();
  });
  submit(b_, [] { throw Fatal(ExitCode::kComm, "a peer is gone"); });
  EXPECT_THROW(a_->synchronize(), Fatal);
}

TEST_F(StreamTest, a_fault_stays_on_its_device) {
  const auto other = make_cpu_device();
  const auto stream = other->make_stream("other");
  submit(a_, [] { throw Fatal(ExitCode::kComm, "here"); });
  EXPECT_THROW(a_->synchronize(), Fatal);
  int ran = 0;
  submit(stream, [&] { ++ran; });
  EXPECT_NO_THROW(stream->synchronize());
  EXPECT_EQ(ran, 1);
}

TEST_F(StreamTest, times_count_tasks_as_busy_and_event_waits_as_waiting) {
  using Clock = std::chrono::steady_clock;
  constexpr double kSeconds = 0.002;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto begin = Clock::now();
  const auto event = device_->make_event();
  submit(a_, [&] {
    for (const auto start = Clock::now(); seconds_since(start) < kSeconds;) std::this_thread::yield();
  });
  a_->record(*event);
  b_->wait(*event);
  b_->synchronize();
  a_->synchronize();
  const double elapsed = seconds_since(begin);
  EXPECT_GE(a_->times()->busy, kSeconds);
  EXPECT_LE(a_->times()->busy, elapsed);
  EXPECT_EQ(a_->times()->waiting, 0);
  EXPECT_EQ(b_->times()->busy, 0);
  EXPECT_GT(b_->times()->waiting, 0);
  EXPECT_LE(b_->times()->waiting, elapsed);
  a_->reset_times();
  EXPECT_EQ(a_->times()->busy, 0);
}

TEST_F(StreamTest, names_are_kept_and_the_cpu_opens) {
  EXPECT_EQ(a_->name(), "a");
  EXPECT_EQ(&a_->ops(), &b_->ops());
  EXPECT_EQ(device_->kind(), DeviceKind::kCpu);
}

// Takes a mixture of dtypes and shapes under names that repeat.
std::vector<Tensor> take_some(Arena& arena) {
  return {arena.take("params", Dtype::kBF16, {3, 5}), arena.take("grads", Dtype::kF32, {1}),
          arena.take("params", Dtype::kF32, {2, 3, 4, 5}), arena.take("tokens", Dtype::kI32, {64})};
}

TEST(Arena, hands_out_aligned_zeroed_slices_that_do_not_overlap) {
  const auto device = make_cpu_device();
  Arena arena(*device, 2048);
  const char* end = nullptr;
  for (const Tensor& slice : take_some(arena)) {
    const char* begin = static_cast<const char*>(slice.data);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % Arena::kAlignment, 0u);
    EXPECT_GE(begin, end);
    end = begin + slice.bytes();
    for (const char* byte = begin; byte < end; ++byte) ASSERT_EQ(*byte, 0);
  }
}

TEST(Arena, accounts_bytes_by_name_in_the_order_of_first_use) {
  const auto device = make_cpu_device();
  Arena arena(*device, 2048);
  take_some(arena);
  const std::vector<std::pair<std::string, int64_t>> expected{{"params", 256 + 512}, {"grads", 256}, {"tokens", 256}};
  EXPECT_EQ(arena.bytes_by_name(), expected);
  EXPECT_EQ(arena.used(), 1280);
}

TEST(Arena, a_measuring_arena_predicts_the_bytes_and_the_shapes) {
  const auto device = make_cpu_device();
  Arena measuring, of_device(*device), arena(*device, 2048);
  EXPECT_TRUE(measuring.measuring());
  EXPECT_TRUE(of_device.measuring());
  EXPECT_FALSE(arena.measuring());
  EXPECT_EQ(measuring.device(), nullptr);
  EXPECT_EQ(of_device.device(), device.get());
  EXPECT_EQ(arena.device(), device.get());
  const std::vector<Tensor> predicted = take_some(measuring), real = take_some(arena);
  EXPECT_EQ(measuring.used(), arena.used());
  EXPECT_EQ(measuring.bytes_by_name(), arena.bytes_by_name());
  std::set<const void*> addresses;
  for (size_t i = 0; i < real.size(); ++i) {
    EXPECT_EQ(predicted[i].shape_text(), real[i].shape_text());
    EXPECT_FALSE(predicted[i].empty());
    addresses.insert(predicted[i].data);
  }
  EXPECT_EQ(addresses.size(), predicted.size());
}

TEST(Arena, is_full_at_its_size_and_not_a_byte_earlier) {
  const auto device = make_cpu_device();
  Arena arena(*device, 1280);  // the need of take_some
  take_some(arena);
  EXPECT_THROW(arena.take("one more", Dtype::kF32, {1}), Fatal);
  EXPECT_EQ(arena.used(), 1280);
}

TEST(Timeline, every_moment_of_a_step_belongs_to_one_category) {
  auto device = make_cpu_device();
  auto stream = device->make_stream("compute");
  Timeline timeline(*device, *stream);
  const auto idle = [&] { tri::idle(*stream, std::chrono::microseconds(2000)); };
  const auto begin = device->make_event(EventKind::kTimed), end = device->make_event(EventKind::kTimed);
  for (int step = 0; step < 2; ++step) {
    { const TimeCategoryScope outside(*stream, TimeCategory::kTp); }  // outside a step
    stream->record(*begin);
    timeline.begin();
    idle();
    {
      const TimeCategoryScope waits(*stream, TimeCategory::kTp);
      idle();
      const TimeCategoryScope nested(*stream, TimeCategory::kDp);
      idle();
    }
    for (int i = 0; i < 3; ++i) {
      const TimeCategoryScope waits(*stream, TimeCategory::kPp);
      idle();
    }
    timeline.enter(TimeCategory::kOptimizer);
    idle();
    timeline.end();
    stream->record(*end);
    stream->synchronize();
    const Timeline::Times times = timeline.take();
    for (const TimeCategory category :
         {TimeCategory::kCompute, TimeCategory::kTp, TimeCategory::kDp, TimeCategory::kOptimizer})
      EXPECT_GE(times.of(category), 0.002);
    ASSERT_EQ(times.pp_waits.size(), 3u);
    EXPECT_NEAR(times.pp_waits[0] + times.pp_waits[1] + times.pp_waits[2], times.of(TimeCategory::kPp), 1e-9);
    EXPECT_LE(times.total(), end->seconds_after(*begin));
  }
}

}  // namespace
}  // namespace tri
