// Gradients and parameters of buckets with different axes, on two dp ranks of one process: one host thread enqueues for
// both.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "kernels/cpu/device.h"
#include "lib/optim/gradient_buckets.h"
#include "lib/optim/parameter_gathers.h"
#include "tests/comm/local_collectives.h"

namespace tri {
namespace {

constexpr int64_t kSize = 600;

// One parameter that both ranks hold, and one of which each rank holds a half.
const std::vector<ParamSpec> kSpecs{
    {.name = "both", .shape = {kSize}, .reduced = {"dp"}, .decay = true},
    {.name = "own", .shape = {2 * kSize}, .split_dim = 0, .sharded = {"dp"}, .reduced = {"tp"}, .decay = true}};

struct Rank {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> compute, collectives;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<CommGroup> group;
  std::unique_ptr<AxisTransfers> transfers;
  std::optional<ParameterMemory> memory;
  std::optional<GradientBuckets> gradients;
  std::optional<ParameterGathers> gathers;
};

Config config_of(int zero) {
  Config c;
  c.parallel = {.zero = zero, .dp_transfers = Transfers::kCollectives};
  c.precision.compute = Dtype::kF32;
  return c;
}

void make(Rank& rank, int index, const Config& config, const std::shared_ptr<RendezvousPoint>& place) {
  const Mesh mesh = make_mesh(index, {{"dp", 2}});
  rank.compute = rank.device->make_stream("compute");
  rank.collectives = rank.device->make_stream("dp");
  Arena measuring;
  allocate_store(config, mesh, {kSpecs}, measuring);
  rank.arena = std::make_unique<Arena>(*rank.device, measuring.used());
  rank.memory.emplace(config, mesh, allocate_store(config, mesh, {kSpecs}, *rank.arena), *rank.compute);
  rank.group = std::make_unique<LocalCollectives>(index, 2, place);
  GroupOnStream collectives(*rank.group, *rank.collectives, *rank.device, TimeCategory::kDp);
  rank.transfers = std::make_unique<CollectiveTransfers>(std::move(collectives), *rank.device);
  const BucketTransfers dp{mesh.divided(kBucketAxes), *rank.transfers};
  rank.gradients.emplace(GradientBucketsContext{.config = config,
                                                .memory = *rank.memory,
                                                .num_microbatches = 2,
                                                .device = *rank.device,
                                                .compute = *rank.compute,
                                                .dp = dp});
  rank.gathers.emplace(
      ParameterGathersContext{.memory = *rank.memory, .device = *rank.device, .compute = *rank.compute, .dp = dp});
}

float gradient_of(size_t rank, size_t parameter, int64_t i) {
  return static_cast<float>(1 + rank + 2 * parameter) + static_cast<float>(i) / 1024;
}

TEST(BucketTransfers, only_buckets_that_dp_reduces_are_summed_and_gathered_over_it) {
  for (const int zero : {1, 2}) {
    SCOPED_TRACE(zero);
    const Config config = config_of(zero);
    const auto place = std::make_shared<RendezvousPoint>(2);
    std::array<Rank, 2> ranks;
    for (size_t r = 0; r < 2; ++r) make(ranks[r], static_cast<int>(r), config, place);
    for (Rank& rank : ranks) rank.gradients->begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch)
      for (size_t r = 0; r < 2; ++r) {
        Rank& rank = ranks[r];
        for (size_t p = kSpecs.size(); p-- > 0;) {
          const Parameter& parameter = rank.memory->parameters().front()[p];
          const Tensor gradient = rank.gradients->gradient(parameter);
          cpu_stream(*rank.compute).submit([=] {
            for (int64_t i = 0; i < kSize; ++i) gradient.as<float>()[i] += gradient_of(r, p, i);
          });
          rank.gradients->gradient_ready(parameter);
        }
      }
    for (Rank& rank : ranks) rank.gradients->finish({});
    for (Rank& rank : ranks) rank.compute->synchronize();
    for (size_t r = 0; r < 2; ++r) {
      const ParameterMemory& memory = *ranks[r].memory;
      for (const BucketSlice& slice : memory.slices()) {
        const BucketMemory& bucket = memory.buckets()[static_cast<size_t>(slice.bucket)];
        const auto p = static_cast<size_t>(bucket.bucket->parameters.front());
        ASSERT_EQ(slice.grad.numel(), p == 0 ? bucket.bucket->size / 2 : bucket.bucket->size);
        const int64_t first = bucket.slice.begin - bucket.bucket->first;
        for (int64_t i = first; i < std::min(kSize, first + slice.grad.numel()); ++i) {
          const float other = p == 0 ? gradient_of(1 - r, p, i) : 0;
          ASSERT_NEAR(slice.grad.as<float>()[i - first], 2 * (gradient_of(r, p, i) + other), 1e-5) << r << p << i;
        }
        for (int64_t i = 0; i < slice.master.numel(); ++i) slice.master.as<float>()[i] = static_cast<float>(1 + r);
      }
    }
    for (Rank& rank : ranks)
      for (const BucketSlice& slice : rank.memory->slices()) rank.gathers->publish(slice, *rank.compute);
    for (Rank& rank : ranks)
      for (const Parameter& parameter : rank.memory->parameters().front()) rank.gathers->before_use(parameter);
    for (Rank& rank : ranks) rank.compute->synchronize();
    for (size_t r = 0; r < 2; ++r) {
      const std::vector<Parameter>& parameters = ranks[r].memory->parameters().front();
      const int64_t half = ranks[r].memory->buckets()[0].bucket->size / 2;
      for (int64_t i = 0; i < kSize; ++i) {
        ASSERT_EQ(parameters[0].weight.as<float>()[i], i < half ? 1 : 2) << i;
        ASSERT_EQ(parameters[1].weight.as<float>()[i], static_cast<float>(1 + r)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tri
