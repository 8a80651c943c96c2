// Measurements that were not used to fit or choose any constant: never_fitted.csv, entered from the sources after the
// model and its files were finished. The models, layouts, precisions and lengths differ from published.csv.
//   DGXC 24.11, GPT-3   NVIDIA/dgxc-benchmarking: nemotron/README_340b.md, nemo_megatron/README_175b.md
//   NeMo 24.12          NVIDIA's NeMo performance summary; shapes by its recipes: its TFLOP/s over tokens/s agree
//   SC21 T2             Narayanan et al. 2021, table 2, the rows of PTD-P; chunks not stated, one
//   torchtitan H100     pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables without ring attention
//   MPT                 mosaicml/llm-foundry, scripts/train/benchmarking/README.md
#include <gtest/gtest.h>

#include <set>

#include "tests/simulate/published.h"

namespace tri {
namespace {

using published::Error;
using published::Row;

struct Stack {
  std::string source, cluster;
  std::vector<std::string> overrides;
};

// Errors without a fit, and with one factor on the rates of all GEMMs; prints both.
struct StackErrors {
  std::vector<Error> blind, one_rate;
};

Cluster cluster_of(const std::string& name, const std::vector<std::string>& overrides) {
  auto cluster = read_cluster(published::cluster_path(name), overrides);
  EXPECT_TRUE(cluster) << cluster.error().message;
  return cluster.value();
}

// torchtitan's rows without torch.compile run PyTorch's kernels one by one.
Cluster cluster_of(const Row& row, const Stack& stack) {
  std::vector<std::string> overrides = stack.overrides;
  if (row.source.starts_with("torchtitan") && row.model.find("compile") == row.model.npos) {
    overrides.push_back("software.eager_kernels=true");
    overrides.push_back("software.loss_bytes=40");
  }
  return cluster_of(stack.cluster, overrides);
}

StackErrors errors_of(const Stack& stack) {
  const std::vector<Row> rows = published::rows_of(published::read_rows("never_fitted.csv"), stack.source);
  EXPECT_FALSE(rows.empty()) << stack.source;
  std::vector<Cluster> clusters;
  for (const Row& row : rows) clusters.push_back(cluster_of(row, stack));
  const auto errors_at = [&](double factor) {
    std::vector<Error> errors;
    for (size_t i = 0; i < rows.size(); ++i) {
      Cluster cluster = clusters[i];
      cluster.software.gemm_share *= factor;
      cluster.software.fp8_gemm_share *= factor;
      errors.push_back({fmt::format("{} {} GPUs, micro-batch {}, T {}", rows[i].model, rows[i].gpus,
                                    rows[i].micro_batch, rows[i].seq),
                        published::error_of(rows[i], cluster)});
    }
    return errors;
  };
  double factor = 1;
  published::fit({{&factor, 0.05, 0.3, 1.2}}, [&] { return published::mean_error(errors_at(factor)); });
  const StackErrors errors{errors_at(1), errors_at(factor)};
  published::print(stack.source + ", blind", errors.blind);
  published::print(fmt::format("{}, GEMMs at {:.2f} of their rate", stack.source, factor), errors.one_rate);
  published::print_rows(errors.blind);
  return errors;
}

void append(std::vector<Error>& all, const std::vector<Error>& some) {
  all.insert(all.end(), some.begin(), some.end());
}

// The programs that the cluster files describe, on models and layouts that were not used for the fit.
TEST(NeverFitted, megatron_and_nemo) {
  std::vector<Error> nemo;
  for (const Stack& stack : {Stack{"DGXC 24.11", "h100", {}}, {"DGXC GPT-3", "h100", {}}, {"NeMo 24.12", "h100", {}}})
    append(nemo, errors_of(stack).blind);
  published::print("NeMo on H100, never fitted, blind", nemo);
  EXPECT_EQ(nemo.size(), 32u);
  EXPECT_LE(published::mean_error(nemo), 0.05);
  EXPECT_LE(published::mean_error(errors_of({"SC21 T2", "a100_megatron_2021", {}}).blind), 0.10);
}

// PyTorch's FSDP on machines whose GEMM rates are known but whose attention and elementwise kernels differ.
TEST(NeverFitted, fsdp_of_pytorch) {
  // Without MegaScale's start and slow machines; an A100's power limit as in a100_megatron_2021.yaml.
  const std::vector<std::string> start{"software.fixed_s=0.05", "stragglers.share=0"};
  // PyTorch 1.13 without a compiler, and FlashAttention in Triton: FlashAttention reaches 30 to 50 % of an A100's peak
  // forward and 25 to 35 % backward (Dao 2023, section 1); the middle of both ranges is used.
  std::vector<std::string> mpt = start;
  for (const char* text : {"software.eager_kernels=true", "software.attention_forward=0.4",
                           "software.attention_backward=0.3", "device.sustained_share=0.859"})
    mpt.push_back(text);
  std::vector<std::string> mpt_40 = mpt;
  mpt_40.push_back("device.memory_gb_per_s=1555");  // NVIDIA A100 datasheet, 40 GB
  // FlashAttention-2 reaches 35 % of an H100 (Shah et al. 2024, abstract). The source states 2.4 TB/s, and 500 W
  // instead of 700; the GEMM rate at 500 W is unknown.
  std::vector<std::string> torchtitan = start;
  for (const char* text :
       {"software.attention_forward=0.35", "software.attention_backward=0.35", "device.memory_gb_per_s=2400"})
    torchtitan.push_back(text);
  std::vector<Error> blind, one_rate;
  for (const Stack& stack :
       {Stack{"MPT A100-80", "a100_megascale", mpt}, Stack{"MPT A100-40", "a100_megascale", mpt_40}}) {
    const StackErrors errors = errors_of(stack);
    append(blind, errors.blind);
    append(one_rate, errors.one_rate);
  }
  published::print("MPT on A100, never fitted, blind", blind);
  published::print("MPT on A100, never fitted, one GEMM rate for each GPU", one_rate);
  EXPECT_LE(published::mean_error(blind), 0.12);
  EXPECT_LE(published::mean_error(one_rate), 0.06);
  StackErrors hopper = errors_of({"torchtitan H100", "h100", torchtitan});
  EXPECT_LE(published::mean_error(hopper.one_rate), 0.10);
  // No source states the speed of Triton's kernels of 2022 on Hopper: FlashAttention-2's rate is used.
  std::vector<std::string> mpt_h100 = start;
  for (const char* text :
       {"software.eager_kernels=true", "software.attention_forward=0.35", "software.attention_backward=0.35"})
    mpt_h100.push_back(text);
  const StackErrors mpt_on_hopper = errors_of({"MPT H100", "h100", mpt_h100});
  append(hopper.blind, mpt_on_hopper.blind);
  append(hopper.one_rate, mpt_on_hopper.one_rate);
  published::print("FSDP on H100, never fitted, blind", hopper.blind);
  published::print("FSDP on H100, never fitted, one GEMM rate each", hopper.one_rate);
  EXPECT_EQ(hopper.blind.size(), 41u);
  EXPECT_LE(published::mean_error(hopper.blind), 0.18);
  EXPECT_LE(published::mean_error(hopper.one_rate), 0.12);
}

// torch.compile saves exactly the kernels that `eager_kernels` and `loss_bytes` count.
TEST(NeverFitted, eager_kernels_cost_what_compiling_saves) {
  const std::vector<Row> rows = published::rows_of(published::read_rows("never_fitted.csv"), "torchtitan H100");
  const Stack stack{"", "h100", {"device.memory_gb_per_s=2400"}};
  for (const int gpus : {8, 128}) {
    const Row *eager = nullptr, *compiled = nullptr;
    for (const Row& row : rows) {
      if (row.gpus != gpus) continue;
      if (row.model == "8B FSDP") eager = &row;
      if (row.model == "8B FSDP+compile") compiled = &row;
    }
    ASSERT_TRUE(eager && compiled);
    const auto predicted = [&](const Row& row) {
      return (1 + published::error_of(row, cluster_of(row, stack))) * published::step_seconds(row);
    };
    const double measured_saving = published::step_seconds(*eager) - published::step_seconds(*compiled);
    const double saving = predicted(*eager) - predicted(*compiled);
    fmt::print("| 8B on {} H100: compiling saves {:.2f} s a step, predicted {:.2f} |\n", gpus, measured_saving, saving);
    EXPECT_NEAR(saving / measured_saving, 1, 0.5);
  }
}

}  // namespace
}  // namespace tri
