// The ring of batches between ranks that are threads of one process. Also run under ThreadSanitizer.
#undef _FORTIFY_SOURCE  // its inline version of pread would interfere
#include "lib/data/loader.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <latch>
#include <thread>

#include "io/base/random.h"
#include "kernels/no_target.h"
#include "tests/data/expected_batch.h"
#include "tests/data/token_files.h"
#include "tests/io/temporary_folder.h"

namespace {

// Simulates storage that hangs: reads of this program wait while the flag is set.
std::atomic<bool> g_reads_hang = false;
std::atomic<int> g_hanging_reads = 0;

}  // namespace

// NOLINTNEXTLINE: in place of the C library's
extern "C" ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  if (g_reads_hang) {
    ++g_hanging_reads;
    while (g_reads_hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --g_hanging_reads;
  }
  return ::syscall(SYS_pread64, fd, data, bytes, offset);
}

namespace tri {
namespace {

constexpr int kSeqLen = 8;

Dataset open_one(const std::string& prefix, int vocab = 1 << 30) {
  return value_or_throw(Dataset::open({{prefix, 1.0}}, kSeqLen, 0.1, 1, vocab));
}

// Replaces the shared window: zeroed and aligned memory.
class RingMemory {
 public:
  explicit RingMemory(const BatchRing::Shape& shape) : lines_(static_cast<size_t>(BatchRing::bytes(shape) / 64 + 1)) {}
  void* data() { return lines_.data(); }

 private:
  struct alignas(64) Line {
    char bytes[64] = {};
  };
  std::vector<Line> lines_;
};

enum class Takes { kInputs, kTargets, kBoth };

// One member with its buffers.
struct Member {
  Member(const Dataset& dataset, const LoaderPlan& plan, void* memory, Takes takes,
         std::function<void()> check = nullptr) {
    const auto count = static_cast<size_t>(plan.shape.samples() * plan.chunks().local_len());
    std::array<StepTokens, 2> buffers;
    for (size_t i = 0; i < 2; ++i) {
      tokens[i].assign(3 * count, -1);
      if (takes != Takes::kTargets) buffers[i].inputs = std::span(tokens[i]).first(count);
      if (takes != Takes::kInputs) buffers[i].targets = std::span(tokens[i]).subspan(count, count);
      if (plan.documents == Documents::kRead) buffers[i].document_starts = std::span(tokens[i]).last(count);
    }
    loader = std::make_unique<Loader>(plan.member == 0 ? &dataset : nullptr, plan, memory, buffers, std::move(check));
  }

  std::vector<int32_t> tokens[2];
  std::unique_ptr<Loader> loader;
};

// A node of dp ranks, each with `copies` ranks that consume its tokens: the first takes inputs, the second targets,
// further ones both.
std::vector<LoaderPlan> plans_of_node(int dp, int copies, int64_t first_step, int64_t end_step, int prefetch) {
  std::vector<LoaderPlan> plans;
  std::vector<int> dp_ranks;
  for (int d = 0; d < dp; ++d) dp_ranks.push_back(d);
  for (int member = 0; member < dp * copies; ++member)
    plans.push_back({.shape = {.global_batch = 16, .micro_batch = 2, .dp_rank = member % dp, .dp_size = dp},
                     .dp_ranks = dp_ranks,
                     .seq_len = kSeqLen,
                     .member = member,
                     .members = dp * copies,
                     .first_step = first_step,
                     .end_step = end_step,
                     .prefetch = prefetch});
  return plans;
}
Takes takes_of(const LoaderPlan& plan) {
  return static_cast<Takes>(std::min(plan.member / plan.shape.dp_size, static_cast<int>(Takes::kBoth)));
}

// Runs `body(plan, memory)` on one thread per member.
template <class Body>
void on_threads(const std::vector<LoaderPlan>& plans, Body body) {
  RingMemory memory(plans.front().ring());
  std::vector<std::jthread> threads;
  for (const LoaderPlan& plan : plans) threads.emplace_back([&] { body(plan, memory.data()); });
}

std::vector<int32_t> copy_of(std::span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

TEST(BatchRing, a_slot_is_written_again_only_when_all_have_taken_it) {
  const BatchRing::Shape shape{.slots = 2, .consumers = 2, .slot_tokens = 3};
  RingMemory memory(shape);
  BatchRing writer(memory.data(), shape), consumer(memory.data(), shape);
  for (const int64_t batch : {0, 1}) {
    EXPECT_FALSE(consumer.ready(batch));
    ASSERT_TRUE(writer.may_write(batch));
    writer.slot(batch)[2] = static_cast<int32_t>(10 + batch);
    writer.publish(batch, 100 + batch);
    EXPECT_TRUE(consumer.ready(batch));
  }
  EXPECT_EQ(std::as_const(consumer).slot(0)[2], 10);
  EXPECT_EQ(std::as_const(consumer).slot(1)[2], 11);
  EXPECT_EQ(consumer.bytes_read(1), 101);
  EXPECT_FALSE(writer.may_write(2));
  consumer.taken(0, 0);
  EXPECT_FALSE(writer.may_write(2));
  consumer.taken(1, 0);
  EXPECT_TRUE(writer.may_write(2));
  EXPECT_FALSE(writer.may_write(3));
  EXPECT_FALSE(consumer.ready(2));
}

TEST(BatchRing, a_failure_comes_after_what_was_written_before_it_and_stays) {
  const BatchRing::Shape shape{.slots = 2, .consumers = 1, .slot_tokens = 3};
  RingMemory memory(shape);
  BatchRing ring(memory.data(), shape);
  ring.publish(0, 1);
  const std::string words = "no such token " + std::string(10000, 'x');
  ring.fail(ExitCode::kFile, words);
  ring.end();
  EXPECT_TRUE(ring.ready(0));
  try {
    ring.ready(1);
    FAIL() << "nothing was thrown";
  } catch (const Fatal& fatal) {
    EXPECT_EQ(fatal.code(), ExitCode::kFile);
    EXPECT_EQ(words.rfind(fatal.what(), 0), 0u);
    EXPECT_GT(std::string(fatal.what()).size(), 1000u);
  }
}

TEST(Loader, every_member_gets_its_own_tokens_and_every_byte_is_read_once) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  for (const auto& [dp, copies, prefetch] : {std::array{1, 1, 1}, {1, 3, 1}, {2, 1, 2}, {2, 4, 1}, {4, 2, 3}}) {
    constexpr int64_t kFirst = 5, kEnd = 45;
    std::atomic<int64_t> bytes = 0;
    on_threads(plans_of_node(dp, copies, kFirst, kEnd, prefetch), [&](const LoaderPlan& plan, void* memory) {
      Member member(data, plan, memory, takes_of(plan));
      for (int64_t step = kFirst; step < kEnd; ++step) {
        const uint64_t draw = random_u64(7, static_cast<uint64_t>(step * 100 + plan.member));
        if (draw % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw % 700));
        const StepTokens tokens = member.loader->next();
        const Batch expected = make_batch(data, Split::kTrain, step, plan.shape);
        const Takes takes = takes_of(plan);
        const std::vector<int32_t> none;
        EXPECT_EQ(copy_of(tokens.inputs), takes == Takes::kTargets ? none : expected.inputs) << "step " << step;
        EXPECT_EQ(copy_of(tokens.targets), takes == Takes::kInputs ? none : expected.targets) << "step " << step;
      }
      EXPECT_EQ(member.loader->bytes_read() > 0, plan.member == 0);
      bytes += member.loader->bytes_read();
    });
    EXPECT_EQ(bytes, (kEnd - kFirst) * 16 * (kSeqLen + 1) * 4) << "dp " << dp << ", " << copies << " consumers each";
  }
}

TEST(Loader, every_member_gets_the_documents_of_its_samples) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  for (const bool eod_loss : {true, false}) {
    const Dataset data = value_or_throw(
        Dataset::open({{folder / "a", 1.0}}, kSeqLen, 0.1, 1, 1 << 30, {.documents = true, .eod_loss = eod_loss}));
    std::vector<LoaderPlan> plans = plans_of_node(2, 3, 0, 12, 2);
    for (LoaderPlan& plan : plans) {
      plan.documents = Documents::kRead, plan.windows = {0, 3};
      plan.split = Split::kValidation, plan.period = 1, plan.num_samples = 6;  // the last two of eight repeat
    }
    on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
      Member member(data, plan, memory, takes_of(plan));
      for (int step = 0; step < 12; ++step) {
        const StepTokens tokens = member.loader->next();
        std::vector<int32_t> targets, starts, sample(kSeqLen + 1);
        for (int n = 0; n < 4; ++n) {
          const int m = n / plan.shape.micro_batch, j = n % plan.shape.micro_batch;
          const int64_t index = (m * plan.shape.dp_size + plan.shape.dp_rank) * plan.shape.micro_batch + j;
          const std::vector<int32_t> of_sample = data.document_starts(Split::kValidation, index % 6);
          data.sample(Split::kValidation, index, sample);
          if (index >= 6) std::ranges::fill(sample, kNoTarget);
          starts.insert(starts.end(), of_sample.begin(), of_sample.end());
          for (int t = 1; t <= kSeqLen; ++t)
            targets.push_back(sample[static_cast<size_t>(t)] < 0 ? kNoTarget : sample[static_cast<size_t>(t)]);
        }
        EXPECT_EQ(copy_of(tokens.document_starts), starts);
        if (takes_of(plan) != Takes::kInputs) {
          EXPECT_EQ(copy_of(tokens.targets), targets);
        }
        EXPECT_EQ(tokens.pairs,
                  (std::vector{attention_pairs(starts, kSeqLen, 0), attention_pairs(starts, kSeqLen, 3)}));
      }
    });
  }
}

// The ranks of middle pipeline stages alone share a ring: they need no tokens.
TEST(Loader, reads_no_tokens_for_members_that_take_only_documents) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data =
      value_or_throw(Dataset::open({{folder / "a", 1.0}}, kSeqLen, 0.1, 1, 1 << 30, {.documents = true}));
  std::vector<LoaderPlan> plans = plans_of_node(2, 2, 3, 9, 2);
  for (LoaderPlan& plan : plans) plan.documents = Documents::kOnly, plan.windows = {0};
  on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
    const auto count = static_cast<size_t>(plan.shape.samples()) * kSeqLen;
    std::vector<int32_t> memory_of_starts(2 * count, -1);
    const std::span<int32_t> all(memory_of_starts);
    Loader loader(plan.member == 0 ? &data : nullptr, plan, memory,
                  {StepTokens{.document_starts = all.first(count)}, StepTokens{.document_starts = all.last(count)}});
    for (int64_t step = 3; step < 9; ++step) {
      const StepTokens tokens = loader.next();
      std::vector<int32_t> starts;
      for (int n = 0; n < plan.shape.samples(); ++n) {
        const int64_t B = plan.shape.micro_batch,
                      index = step * 16 + (n / B * plan.shape.dp_size + plan.shape.dp_rank) * B + n % B;
        const std::vector<int32_t> of_sample = data.document_starts(Split::kTrain, index);
        starts.insert(starts.end(), of_sample.begin(), of_sample.end());
      }
      EXPECT_EQ(copy_of(tokens.document_starts), starts) << "step " << step;
      EXPECT_EQ(tokens.pairs, std::vector{attention_pairs(starts, kSeqLen, 0)});
    }
    EXPECT_EQ(loader.bytes_read(), 0);
  });
}

// The ranks of two dp ranks and two cp ranks share one ring. Targets are the next tokens of the whole sample: the last
// target of a chunk is the first token of the next chunk, which another rank may hold.
TEST(Loader, cp_ranks_take_two_chunks_of_each_sample_of_one_ring) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  std::vector<LoaderPlan> plans = plans_of_node(2, 2, 3, 7, 2);
  for (LoaderPlan& plan : plans) plan.cp = {plan.member / 2, 2};
  on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, Takes::kBoth);
    for (int64_t step = 3; step < 7; ++step) {
      const StepTokens tokens = member.loader->next();
      const Batch whole = make_batch(data, Split::kTrain, step, plan.shape);
      std::vector<int32_t> inputs, targets;
      for (int64_t i = 0; i < std::ssize(whole.inputs); ++i) {
        const int64_t chunk = i % kSeqLen / (kSeqLen / 4);
        if ((chunk == 0 || chunk == 3) != (plan.cp.rank == 0)) continue;
        inputs.push_back(whole.inputs[static_cast<size_t>(i)]);
        targets.push_back(whole.targets[static_cast<size_t>(i)]);
      }
      EXPECT_EQ(copy_of(tokens.inputs), inputs) << "step " << step << ", cp rank " << plan.cp.rank;
      EXPECT_EQ(copy_of(tokens.targets), targets) << "step " << step << ", cp rank " << plan.cp.rank;
    }
  });
}

TEST(Loader, steps_of_different_sizes_follow_each_other) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  const BatchSizes sizes({{0, 4}, {30, 16}, {70, 8}});
  for (const int64_t begin : {0, 6, 50}) {
    std::vector<LoaderPlan> plans = plans_of_node(2, 2, 3, 13, 2);
    for (LoaderPlan& plan : plans) plan.sizes = sizes, plan.first_sample = begin;
    on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
      Member member(data, plan, memory, Takes::kBoth);
      int64_t first = begin;
      for (int step = 0; step < 10; ++step) {
        BatchShape shape = plan.shape;
        shape.global_batch = sizes.at(first);
        const StepTokens tokens = member.loader->next();
        std::vector<int32_t> inputs, targets, sample(kSeqLen + 1);
        for (int n = 0; n < shape.samples(); ++n) {
          const int m = n / shape.micro_batch, j = n % shape.micro_batch;
          data.sample(Split::kTrain, first + (m * shape.dp_size + shape.dp_rank) * shape.micro_batch + j, sample);
          inputs.insert(inputs.end(), sample.begin(), sample.end() - 1);
          targets.insert(targets.end(), sample.begin() + 1, sample.end());
        }
        EXPECT_EQ(copy_of(tokens.inputs), inputs) << "step " << step << " from sample " << first;
        EXPECT_EQ(copy_of(tokens.targets), targets);
        first += shape.global_batch;
      }
    });
  }
}

TEST(Loader, parts_follow_each_other_and_repeat) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  write_counting(folder / "b", 301, 10'000);
  const Dataset a = open_one(folder / "a"), b = open_one(folder / "b");
  std::vector<LoaderPlan> plans = plans_of_node(2, 1, 0, 10, 2);
  for (LoaderPlan& plan : plans) {
    plan.split = Split::kValidation;
    plan.parts = {{&a, Split::kTrain, 1, 16}, {&b, Split::kWhole, 3, 37}};
  }
  on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
    Member member(a, plan, memory, Takes::kBoth);
    for (int step = 0; step < 10; ++step) {
      const int64_t at = step % 4;
      const StepTokens tokens = member.loader->next();
      Batch expected =
          at == 0 ? make_batch(a, Split::kTrain, 0, plan.shape) : make_batch(b, Split::kWhole, at - 1, plan.shape);
      if (at == 3) {  // samples 32 to 36 are left
        const int samples = plan.shape.for_samples(5).samples();
        for (std::vector<int32_t>* list : {&expected.inputs, &expected.targets})
          list->resize(static_cast<size_t>(samples) * kSeqLen);
        for (int n = 0; n < samples; ++n) {
          const int m = n / plan.shape.micro_batch, j = n % plan.shape.micro_batch;
          if (32 + (m * plan.shape.dp_size + plan.shape.dp_rank) * plan.shape.micro_batch + j < 37) continue;
          std::fill_n(expected.targets.begin() + n * kSeqLen, kSeqLen, kNoTarget);
        }
      }
      EXPECT_EQ(copy_of(tokens.inputs), expected.inputs) << step;
      EXPECT_EQ(copy_of(tokens.targets), expected.targets) << step;
    }
  });
}

TEST(Loader, the_validation_batches_come_round_again) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);  // 13 validation samples, fewer than the 16 of a step
  const Dataset data = open_one(folder / "a");
  for (const int64_t period : {1, 3}) {
    std::vector<LoaderPlan> plans = plans_of_node(2, 2, 0, 10, 2);
    for (LoaderPlan& plan : plans) plan.split = Split::kValidation, plan.period = period;
    on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
      Member member(data, plan, memory, takes_of(plan));
      for (int64_t step = 0; step < 10; ++step) {
        const StepTokens tokens = member.loader->next();
        const Batch expected = make_batch(data, Split::kValidation, step % period, plan.shape);
        if (takes_of(plan) == Takes::kInputs) {
          EXPECT_EQ(copy_of(tokens.inputs), expected.inputs) << "step " << step;
        } else {
          EXPECT_EQ(copy_of(tokens.targets), expected.targets) << "step " << step;
        }
      }
    });
  }
}

TEST(Loader, the_last_batch_ends_with_the_microbatch_of_the_last_sample) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  // Two files of 13 validation samples, of which 3 and 11 are evaluated, and then all.
  const std::vector<LoaderPart> parts{{.dataset = &data, .split = Split::kValidation, .batches = 1, .num_samples = 3},
                                      {.dataset = &data, .split = Split::kValidation, .batches = 1, .num_samples = 11},
                                      {.dataset = &data, .split = Split::kTrain, .batches = 2, .num_samples = 17}};
  constexpr std::array<int, 4> kSizes{4, 12, 16, 4};  // in two dp ranks of microbatches of two
  std::vector<LoaderPlan> plans = plans_of_node(2, 2, 0, 8, 2);
  for (LoaderPlan& plan : plans) plan.parts = parts;
  std::atomic<int64_t> bytes = 0;
  on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, Takes::kBoth);
    for (size_t batch = 0; batch < 8; ++batch) {
      const StepTokens tokens = member.loader->next();
      const LoaderPart& part = parts[std::min(batch % 4, size_t{2})];
      ASSERT_EQ(std::ssize(tokens.targets), kSizes[batch % 4] / 2 * kSeqLen) << batch;
      std::vector<int32_t> sample(kSeqLen + 1);
      for (int n = 0; n < kSizes[batch % 4] / 2; ++n) {
        const int64_t index = (batch % 4 == 3 ? 16 : 0) + (n / 2 * 2 + plan.shape.dp_rank) * 2 + n % 2;
        data.sample(part.split, index % part.num_samples, sample);
        for (size_t t = 0; t < kSeqLen; ++t) {
          const size_t i = static_cast<size_t>(n) * kSeqLen + t;
          EXPECT_EQ(tokens.inputs[i], sample[t]) << batch << " " << n;
          EXPECT_EQ(tokens.targets[i], index < part.num_samples ? sample[t + 1] : kNoTarget) << batch << " " << n;
        }
      }
    }
    bytes += member.loader->bytes_read();
  });
  EXPECT_EQ(bytes, 2 * (4 + 12 + 16 + 4) * (kSeqLen + 1) * 4);
}

TEST(Loader, samples_beyond_the_last_are_the_first_ones_without_targets) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  constexpr int64_t kSamples = 11, kPeriod = 1;  // of 13; a step has 16
  for (const auto& [dp, copies] : {std::array{1, 3}, {2, 2}, {4, 2}}) {
    std::vector<LoaderPlan> plans = plans_of_node(dp, copies, 0, 6, 2);
    for (LoaderPlan& plan : plans) plan.split = Split::kValidation, plan.period = kPeriod, plan.num_samples = kSamples;
    std::atomic<int64_t> bytes = 0, targets = 0;
    on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
      Member member(data, plan, memory, takes_of(plan));
      for (int64_t step = 0; step < 6; ++step) {
        const StepTokens tokens = member.loader->next();
        std::vector<int32_t> sample(kSeqLen + 1);
        for (int n = 0; n < plan.shape.for_samples(kSamples).samples(); ++n) {
          const int B = plan.shape.micro_batch;
          const int64_t index = (n / B * plan.shape.dp_size + plan.shape.dp_rank) * B + n % B;
          const bool counts = index < kSamples;
          data.sample(Split::kValidation, index % kSamples, sample);
          for (size_t t = 0; t < kSeqLen; ++t) {
            const size_t i = static_cast<size_t>(n) * kSeqLen + t;
            if (!tokens.inputs.empty()) {
              EXPECT_EQ(tokens.inputs[i], sample[t]) << i;
            }
            if (tokens.targets.empty()) continue;
            EXPECT_EQ(tokens.targets[i], counts ? sample[t + 1] : kNoTarget) << i;
            if (takes_of(plan) == Takes::kTargets) targets += counts;
          }
        }
      }
      bytes += member.loader->bytes_read();
    });
    EXPECT_EQ(targets, 6 * kSamples * kSeqLen) << "dp " << dp;
    EXPECT_EQ(bytes, 6 * (dp == 4 ? 16 : 12) * (kSeqLen + 1) * 4) << "dp " << dp;
  }
}

TEST(Loader, counts_the_targets_of_the_next_step_that_are_not_masked) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  std::vector<LoaderPlan> plans = plans_of_node(2, 3, 0, 3, 1);
  for (LoaderPlan& plan : plans) plan.split = Split::kValidation, plan.period = 1, plan.num_samples = 13;
  on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, takes_of(plan));
    for (int step = 0; step < 3; ++step) {
      const int64_t expected = member.loader->next_targets();
      EXPECT_EQ(member.loader->next_targets(), expected);
      const StepTokens tokens = member.loader->next();
      const std::vector<int32_t> before = copy_of(tokens.targets);
      EXPECT_EQ(expected, std::ranges::count_if(before, [](int32_t target) { return target != kNoTarget; }));
      EXPECT_EQ(expected, takes_of(plan) == Takes::kInputs ? 0 : (plan.shape.dp_rank == 0 ? 7 : 6) * kSeqLen);
      member.loader->next_targets();  // overwrites no tokens in use
      EXPECT_EQ(copy_of(tokens.targets), before);
    }
    EXPECT_EQ(member.loader->next_targets(), 0) << "no step is left";
  });
}

TEST(Loader, masked_tokens_are_inputs_and_no_targets) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset plain = open_one(folder / "a");
  write_mask(folder / "a", 1001, 3);
  const Dataset data = open_one(folder / "a");
  on_threads(plans_of_node(2, 2, 0, 4, 2), [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, Takes::kBoth);
    for (int step = 0; step < 4; ++step) {
      const int64_t count = member.loader->next_targets();
      const StepTokens tokens = member.loader->next();
      Batch expected = make_batch(plain, Split::kTrain, step, plan.shape);
      EXPECT_EQ(copy_of(tokens.inputs), expected.inputs) << step;
      for (int32_t& target : expected.targets)
        if (target % 3 == 0) target = kNoTarget;
      EXPECT_EQ(copy_of(tokens.targets), expected.targets) << step;
      EXPECT_EQ(count, std::ranges::count_if(expected.targets, [](int32_t target) { return target != kNoTarget; }));
    }
  });
}

// Returns the samples of steps 0 to `steps` - 1, ordered by microbatch and then by dp rank.
std::vector<int32_t> stream_of(const Dataset& data, int dp, int micro_batch, int64_t steps) {
  std::vector<int32_t> stream;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    for (int d = 0; d < dp; ++d)
      batches.push_back(make_batch(data, Split::kTrain, step,
                                   {.global_batch = 16, .micro_batch = micro_batch, .dp_rank = d, .dp_size = dp}));
    for (int m = 0; m < 16 / (micro_batch * dp); ++m)
      for (const Batch& batch : batches)
        for (int j = 0; j < micro_batch; ++j) {
          const auto at = static_cast<size_t>((m * micro_batch + j) * kSeqLen);
          EXPECT_EQ(batch.targets[at], batch.inputs[at] + 1);
          stream.push_back(batch.inputs[at]);
        }
  }
  return stream;
}

TEST(Batch, the_stream_of_samples_is_the_same_for_every_dp) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  const std::vector<int32_t> expected = stream_of(data, 1, 1, 20);
  for (const int dp : {1, 2, 4, 8}) EXPECT_EQ(stream_of(data, dp, 2, 20), expected) << "dp " << dp;
  // A longer run begins like the shorter one.
  const std::vector<int32_t> longer = stream_of(data, 2, 1, 30);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), longer.begin()));
}

// Returns what next() throws within the first 1000 steps, or 0 and "" if it throws nothing.
std::pair<ExitCode, std::string> end_of(Loader& loader) {
  try {
    for (int i = 0; i < 1000; ++i) loader.next();
  } catch (const Fatal& fatal) {
    return {fatal.code(), fatal.what()};
  }
  return {};
}

TEST(Loader, a_failure_of_the_reading_member_reaches_all_with_its_message) {
  const TemporaryFolder folder;
  write_with_bad_token(folder / "a", 4000, 2000, 400);
  const Dataset data = open_one(folder / "a", 300);
  on_threads(plans_of_node(2, 2, 0, 1001, 2), [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, takes_of(plan));
    const auto [code, words] = end_of(*member.loader);
    EXPECT_EQ(code, ExitCode::kFile);
    EXPECT_NE(words.find("holds token 400, outside model.vocab 300"), std::string::npos) << words;
    EXPECT_THROW(member.loader->next(), Fatal) << "the second time";
  });
}

TEST(Loader, a_file_that_shrinks_is_an_error_not_a_crash) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 40000);
  const Dataset data = open_one(folder / "a");
  std::filesystem::resize_file(folder / "a.bin", 100);
  on_threads(plans_of_node(1, 2, 0, 1001, 2), [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, takes_of(plan));
    const auto [code, words] = end_of(*member.loader);
    EXPECT_EQ(code, ExitCode::kFile);
    EXPECT_NE(words.find("a.bin"), std::string::npos) << words;
    EXPECT_NE(words.find("truncated"), std::string::npos) << words;
  });
}

TEST(Loader, members_leave_in_any_order_and_at_any_step) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  for (int round = 0; round < 24; ++round) {
    const auto plans = plans_of_node(2, 2, 0, 1000, 1 + round % 3);
    std::latch all(static_cast<std::ptrdiff_t>(plans.size()));
    on_threads(plans, [&](const LoaderPlan& plan, void* memory) {
      Member member(data, plan, memory, takes_of(plan));
      for (int step = 0; step < round % 6; ++step) member.loader->next();
      all.arrive_and_wait();
      std::this_thread::sleep_for(std::chrono::microseconds(300 * ((plan.member + round) % 4)));
    });
  }
}

TEST(Loader, a_member_that_waits_learns_that_the_reading_one_has_ended) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  on_threads(plans_of_node(1, 2, 0, 1000, 2), [&](const LoaderPlan& plan, void* memory) {
    Member member(data, plan, memory, takes_of(plan));
    if (plan.member == 0) return;  // exits at once
    EXPECT_EQ(end_of(*member.loader).first, ExitCode::kComm);
  });
}

TEST(Loader, its_end_does_not_wait_for_storage_that_hangs) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  {
    const Dataset data = open_one(folder / "a");
    g_reads_hang = true;
    const LoaderPlan plan = plans_of_node(1, 1, 0, 10, 2).front();
    RingMemory memory(plan.ring());
    Member member(data, plan, memory.data(), Takes::kBoth);
    while (g_hanging_reads == 0) std::this_thread::yield();
  }  // the ring and the dataset are destroyed
  EXPECT_EQ(g_hanging_reads, 1);
  g_reads_hang = false;
  while (g_hanging_reads > 0) std::this_thread::yield();
}

TEST(Loader, a_wait_ends_when_the_check_throws) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const Dataset data = open_one(folder / "a");
  const LoaderPlan unread = plans_of_node(1, 2, 0, 10, 2).back();
  RingMemory memory(unread.ring());
  Member member(data, unread, memory.data(), Takes::kBoth,
                [] { throw Fatal(ExitCode::kDevice, "the device has burnt"); });
  EXPECT_EQ(end_of(*member.loader).second, "the device has burnt");
}

}  // namespace
}  // namespace tri
