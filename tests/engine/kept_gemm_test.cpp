// What a start reads of the last one's precision.gemm: auto, from the files that it left.
#include "lib/engine/kept_gemm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace tri {
namespace {

class KeptGemmTest : public ::testing::Test {
 protected:
  KeptGemmTest() {
    std::filesystem::create_directories(folder_);
    config_.run.dir = folder_.string();
    config_.model = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 16};
    config_.precision.gemm = GemmFormat::kAuto;
    config_ = value_or_throw(resolve_config(config_, 1));
  }
  ~KeptGemmTest() override { std::filesystem::remove_all(folder_); }

  // Leaves the files of a start that was asked for `asked` and decided for `decided`, with what may change at the next.
  void start(GemmFormat asked, GemmFormat decided, DeviceChoice device = DeviceChoice::kCuda,
             const std::string& kinds = "") {
    Config of_start = config_;
    of_start.precision.gemm = asked;
    std::ofstream(folder_ / "config.yaml") << to_yaml(of_start);
    of_start.precision.gemm = decided;
    of_start.run.device = device;
    of_start.run.steps += 100;
    of_start.parallel.recompute = Recompute::kFull;
    std::ofstream(folder_ / "resolved.yaml") << gpu_kinds_line(kinds) << to_yaml(of_start);
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("kept_gemm_{}", ::getpid());
  Config config_;
};

TEST_F(KeptGemmTest, files_that_cannot_be_read_do_not_count_as_missing) {
  start(GemmFormat::kAuto, GemmFormat::kFp8);
  std::filesystem::remove(folder_ / "resolved.yaml");
  std::filesystem::create_directories(folder_ / "resolved.yaml");  // reading it fails, whoever reads
  EXPECT_THROW(kept_gemm(config_), Fatal);
}

TEST_F(KeptGemmTest, the_last_start_counts_where_the_layers_are_the_same) {
  EXPECT_FALSE(kept_gemm(config_)) << "no start";
  for (const GemmFormat decided : {GemmFormat::kFp8, GemmFormat::kCompute}) {
    start(GemmFormat::kAuto, decided);
    const std::optional<KeptGemm> kept = kept_gemm(config_);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->format, decided);
    start(decided, decided);
    EXPECT_FALSE(kept_gemm(config_)) << "auto was not asked for";
  }
  start(GemmFormat::kAuto, GemmFormat::kCompute, DeviceChoice::kCpu);
  EXPECT_FALSE(kept_gemm(config_)) << "the CPU times nothing";
  start(GemmFormat::kAuto, GemmFormat::kFp8);
  ASSERT_TRUE(kept_gemm(config_));
  for (const auto& change : std::initializer_list<std::function<void(Config&)>>{
           [](Config& c) { c.model.hidden *= 2; }, [](Config& c) { c.data.micro_batch *= 2; },
           [](Config& c) { c.precision.fp8_fast_accumulation = FastAccumulation::kAll; }}) {
    Config other = config_;
    change(other);
    EXPECT_FALSE(kept_gemm(other));
  }
}

TEST_F(KeptGemmTest, kinds_of_gpus_are_kept_beside_it) {
  const GpuProperties a100{.num_multiprocessors = 108, .capability = 80}, h100{};
  const std::string both = kinds_of({h100, std::nullopt, a100, h100});
  EXPECT_EQ(both, "8.0 with 108 multiprocessors, 9.0 with 132 multiprocessors");
  EXPECT_EQ(kinds_of({std::nullopt}), "");
  for (const std::string& kinds : {both, std::string()}) {
    start(GemmFormat::kAuto, GemmFormat::kFp8, DeviceChoice::kCuda, kinds);
    const std::optional<KeptGemm> kept = kept_gemm(config_);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->gpu_kinds, kinds);
    EXPECT_EQ(kept->format, GemmFormat::kFp8);
  }
}

}  // namespace
}  // namespace tri
