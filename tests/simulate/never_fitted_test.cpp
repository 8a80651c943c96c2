// Measurements that were not used to fit or choose any constant: never_fitted.csv, entered from the sources after the
// model and its files were finished. The models, layouts, precisions and lengths differ from published.csv.
//   DGXC 24.11, GPT-3   NVIDIA/dgxc-benchmarking: nemotron/README_340b.md, nemo_megatron/README_175b.md
//   NeMo 24.12          NVIDIA's NeMo performance summary; shapes by its recipes: its TFLOP/s over tokens/s agree
//   SC21 T2             Narayanan et al. 2021, table 2, the rows of PTD-P; chunks not stated, one
//   torchtitan H100     pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables without ring attention
//   MPT                 mosaicml/llm-foundry, scripts/train/benchmarking/README.md
#include <gtest/gtest.h>

#include "tests/simulate/fitting.h"

namespace tri {
namespace {

using published::Error;
using published::Row;

// Errors without a fit, and with one factor on the rates of all GEMMs; prints both.
struct StackErrors {
  std::vector<Error> blind, one_rate;
};

StackErrors errors_of(const std::string& source) {
  const std::vector<Row> rows = published::rows_of(published::rows_of_file("never_fitted.csv"), source);
  EXPECT_FALSE(rows.empty()) << source;
  std::vector<Cluster> clusters;
  for (const Row& row : rows) clusters.push_back(published::cluster_of(row));
  const auto errors_at = [&](double factor) {
    std::vector<Error> errors;
    for (size_t i = 0; i < rows.size(); ++i) {
      Cluster cluster = clusters[i];
      cluster.software.gemm_share *= factor;
      cluster.software.fp8_gemm_share *= factor;
      errors.push_back(published::errors_on({rows[i]}, cluster).front());
    }
    return errors;
  };
  double factor = 1;
  published::fit({{&factor, 0.05, 0.3, 1.2}}, [&] { return published::mean_error(errors_at(factor)); });
  const StackErrors errors{errors_at(1), errors_at(factor)};
  published::print(source + ", blind", errors.blind);
  published::print(fmt::format("{}, GEMMs at {:.2f} of their rate", source, factor), errors.one_rate);
  published::print_rows(errors.blind);
  return errors;
}

void append(std::vector<Error>& all, const std::vector<Error>& some) {
  all.insert(all.end(), some.begin(), some.end());
}

// The programs that the cluster files describe, on models and layouts that were not used for the fit.
TEST(NeverFitted, megatron_and_nemo) {
  std::vector<Error> nemo;
  for (const char* source : {"DGXC 24.11", "DGXC GPT-3", "NeMo 24.12"}) append(nemo, errors_of(source).blind);
  published::print("NeMo on H100, never fitted, blind", nemo);
  EXPECT_EQ(nemo.size(), 32u);
  EXPECT_LE(published::mean_error(nemo), 0.05);
  EXPECT_LE(published::mean_error(errors_of("SC21 T2").blind), 0.10);
}

// PyTorch's FSDP on machines whose GEMM rates are known but whose attention and elementwise kernels differ.
TEST(NeverFitted, fsdp_of_pytorch) {
  std::vector<Error> blind, one_rate;
  for (const char* source : {"MPT A100-80", "MPT A100-40"}) {
    const StackErrors errors = errors_of(source);
    append(blind, errors.blind);
    append(one_rate, errors.one_rate);
  }
  published::print("MPT on A100, never fitted, blind", blind);
  published::print("MPT on A100, never fitted, one GEMM rate for each GPU", one_rate);
  EXPECT_LE(published::mean_error(blind), 0.12);
  EXPECT_LE(published::mean_error(one_rate), 0.06);
  StackErrors hopper = errors_of("torchtitan H100");
  EXPECT_LE(published::mean_error(hopper.one_rate), 0.10);
  const StackErrors mpt_on_hopper = errors_of("MPT H100");
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
  const std::vector<Row> rows = published::rows_of(published::rows_of_file("never_fitted.csv"), "torchtitan H100");
  for (const int gpus : {8, 128}) {
    const Row *eager = nullptr, *compiled = nullptr;
    for (const Row& row : rows) {
      if (row.gpus != gpus) continue;
      if (row.model == "llama3-8B FSDP") eager = &row;
      if (row.model == "llama3-8B FSDP+compile") compiled = &row;
    }
    ASSERT_TRUE(eager && compiled);
    const auto before = published::compare(*eager, published::cluster_of(*eager)),
               after = published::compare(*compiled, published::cluster_of(*compiled));
    const double measured_saving = before.measured - after.measured, saving = before.predicted - after.predicted;
    fmt::print("| 8B on {} H100: compiling saves {:.2f} s a step, predicted {:.2f} |\n", gpus, measured_saving, saving);
    EXPECT_NEAR(saving / measured_saving, 1, 0.5);
  }
}

}  // namespace
}  // namespace tri
