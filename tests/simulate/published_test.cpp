// Compares the model of a step with published measurements: bounds for the errors that `trireme simulate --rows`
// prints. Predictions are of whole steps; nothing is fitted here unless a test says so.
#include "lib/simulate/published.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "tests/simulate/fitting.h"

namespace tri {
namespace {

using published::cluster_of;
using published::compare;
using published::Error;
using published::errors_of;
using published::errors_on;
using published::fit;
using published::print;
using published::print_rows;
using published::Row;

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = published::rows_of_file("published.csv");
  return rows;
}

bool is_megatron(const Row& row) { return row.model.find("Megatron-LM") != row.model.npos; }
bool is_time(const Row& row) { return published::quantity_of(row) == published::Quantity::kStep; }

double squared(const std::vector<Row>& rows, const Cluster& cluster) {
  double sum = 0;
  for (const Error& error : errors_on(rows, cluster)) sum += error.value * error.value;
  return sum;
}

TEST(Published, megascale_table_2) {
  const std::vector<Error> fitted = errors_of(published::rows_of(all_rows(), "MegaScale T2 fitted")),
                           blind = errors_of(published::rows_of(all_rows(), "MegaScale T2 blind"));
  ASSERT_EQ(fitted.size(), 8u);
  ASSERT_EQ(blind.size(), 8u);
  print("MegaScale table 2, rows of the fit", fitted);
  print("MegaScale table 2, the other rows", blind);
  // Calculon, a similar model, was rerun on this table: its errors are known at both ends.
  struct Peer {
    int gpus;
    const char* errors;
    double least;  // smallest absolute value of them
  };
  for (const Peer& peer : {Peer{256, "+3 %", 0.03}, {12288, "-12 to -15 %", 0.12}})
    for (const std::vector<Error>* errors : {&fitted, &blind})
      for (const Error& error : *errors) {
        if (error.label.find(fmt::format(" {} GPUs", peer.gpus)) == error.label.npos) continue;
        fmt::print("    {:<50} {:>+6.1f} %   Calculon on this table {}\n", error.label, 100 * error.value, peer.errors);
        EXPECT_LT(std::abs(error.value), peer.least) << error.label;
      }
  print_rows(blind);
  EXPECT_LE(published::mean_error(blind), 0.03);
  EXPECT_LE(published::max_error(blind), 0.07);
  const std::vector<Error> larger = errors_of(published::rows_of(all_rows(), "MegaScale Fig9"));
  print("MegaScale figure 9, 530B", larger);
  print_rows(larger);
}

// Each row changes one thing in the previous row.
TEST(Published, megascale_ablation) {
  const std::vector<Row> rows = published::rows_of(all_rows(), "MegaScale T3");
  ASSERT_EQ(rows.size(), 9u);
  double before = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double mfu = rows[i].value / (1 + compare(rows[i], cluster_of(rows[i])).error());
    const double gain = mfu - before, published_gain = i > 0 ? rows[i].value - rows[i - 1].value : 0;
    fmt::print("    {:<18} MFU {:.1f} (published {:.1f})", rows[i].model, mfu, rows[i].value);
    fmt::print("{}\n", i > 0 ? fmt::format("  gain {:+.2f} (published {:+.2f})", gain, published_gain) : "");
    if (i > 0) {
      EXPECT_NEAR(gain, published_gain, 0.9) << rows[i].model;
    }
    before = mfu;
  }
}

// Returns the model of a row without its precision.
std::string family(const Row& row) {
  for (const char* name : {"8B", "70B", "405B", "15B"})
    if (row.model.find(std::string("-") + name) != row.model.npos) return name;
  return row.model;
}

TEST(Published, h100_leaving_one_model_out) {
  const std::vector<Row> rows = published::rows_of(all_rows(), "DGXC v25");
  std::set<std::string> families;
  for (const Row& row : rows) families.insert(family(row));
  ASSERT_EQ(families.size(), 4u);
  std::vector<Error> blind;
  for (const std::string& excluded : families) {
    Cluster cluster = cluster_of("h100_nemo");
    std::vector<Row> seen, unseen;
    for (const Row& row : rows) (family(row) == excluded ? unseen : seen).push_back(row);
    ClusterSoftware& s = cluster.software;
    fit({{&s.gemm_share, 0.02, 0.4, 1}, {&s.fp8_gemm_share, 0.02, 0.3, 1}, {&s.layer_us, 50, 0, 5000}},
        [&] { return squared(seen, cluster); });
    const std::vector<Error> errors = errors_on(unseen, cluster);
    print("H100, fitted without " + excluded, errors);
    print_rows(errors);
    fmt::print("    gemm_share {:.3f}, fp8_gemm_share {:.3f}, layer_us {:.0f}\n", s.gemm_share, s.fp8_gemm_share,
               s.layer_us);
    blind.insert(blind.end(), errors.begin(), errors.end());
  }
  print("DGX Cloud H100, fitted without each model", blind);
  EXPECT_LE(published::mean_error(blind), 0.04);
}

// One layer alone, measured by Megatron-LM's authors: without a step's schedule, transfers between stages or the host.
TEST(Published, one_layer_of_megatron_2021) {
  const std::vector<Row> rows = published::rows_of(all_rows(), "Korthikanti T4");
  ASSERT_EQ(rows.size(), 10u);
  const std::vector<Error> errors = errors_of(rows);
  print("Korthikanti table 4, one layer, nothing fitted", errors);
  EXPECT_LE(published::mean_error(errors), 0.04);
  EXPECT_LE(published::max_error(errors), 0.06);
}

// First nothing is fitted: files describe the hardware and the program as far as the source states it. Then one
// constant is fitted per stack.
TEST(Published, other_stacks) {
  std::vector<Error> plain, deepspeed, calibrated;
  for (const std::string source : {"SC21", "Korthikanti", "MT-NLG", "BLOOM log", "BLOOM prequel", "vTrain clusters",
                                   "torchtitan A100", "DGXC v24", "Llama3"}) {
    std::vector<Row> rows;
    std::ranges::copy_if(published::rows_of(all_rows(), source), std::back_inserter(rows), is_time);
    ASSERT_FALSE(rows.empty()) << source;
    Cluster cluster = cluster_of(rows.front());
    const std::vector<Error> before = errors_of(rows);
    // The mean is less sensitive than squares to single rows that disagree with all others of the same grid.
    fit({{&cluster.software.gemm_share, 0.05, 0.3, 1}},
        [&] { return published::mean_error(errors_on(rows, cluster)); });
    const std::vector<Error> after = errors_on(rows, cluster);
    print(source + ", nothing fitted", before);
    print(fmt::format("{}, one GEMM rate ({:.3f})", source, cluster.software.gemm_share), after);
    // Steps of DeepSpeed take a quarter longer than those of Megatron-LM in the same years.
    std::vector<Error>& all = rows.front().program == Program::kDeepspeed ? deepspeed : plain;
    all.insert(all.end(), before.begin(), before.end());
    calibrated.insert(calibrated.end(), after.begin(), after.end());
    if (source == "Korthikanti") {
      EXPECT_LE(published::mean_error(after), 0.05);
    }
  }
  print("other stacks, nothing fitted, without DeepSpeed", plain);
  print("DeepSpeed's, nothing fitted", deepspeed);
  std::vector<Error> all = plain;
  all.insert(all.end(), deepspeed.begin(), deepspeed.end());
  print("all other stacks, nothing fitted", all);
  print("all other stacks, one GEMM rate each", calibrated);
  EXPECT_LE(published::mean_error(plain), 0.10);
  EXPECT_LE(published::mean_error(all), 0.10);
  EXPECT_LE(published::mean_error(calibrated), 0.05);
}

// vTrain's machines have 4 adapters for 8 GPUs. With tp below 8 a machine has several ranks of each dp group, whose
// rings share one adapter; half of the line rate for each GPU predicts these steps to be too fast.
TEST(Published, shared_adapters_explain_steps_with_small_tp) {
  std::vector<Row> rows = published::rows_of(all_rows(), "vTrain clusters");
  std::erase_if(rows, [](const Row& row) { return row.tp >= 8; });
  ASSERT_EQ(rows.size(), 31u);
  const std::vector<Error> shared = errors_of(rows), halved = errors_of(rows, [](Cluster&cluster) {
                                                       cluster.network.gb_per_s *= 0.5;
                                                       cluster.node.adapters = 0;
                                                     });
  print("vTrain, tp below 8, adapters shared", shared);
  print("vTrain, tp below 8, half of the rate each", halved);
  EXPECT_LE(published::mean_error(shared), 0.05);
  EXPECT_GE(published::mean_error(halved), 0.08);
}

// The uncertainty that each shipped cluster file states is the root mean square error of its program's rows.
TEST(Published, cluster_files_state_their_own_errors) {
  std::vector<Row> rows = all_rows();
  const std::vector<Row> more = published::rows_of_file("never_fitted.csv");
  rows.insert(rows.end(), more.begin(), more.end());
  const auto summaries = published::summaries_by_cluster(value_or_throw(published::error_table(rows)));
  EXPECT_EQ(summaries.size(), 6u);
  for (const auto& [file, sum] : summaries)
    EXPECT_NEAR(value_or_throw(read_cluster(file)).uncertainty, sum.rms, 0.001) << file;
}

// The spread between the sources themselves. 530B with tp 8, pp 35 and microbatches of one sample: the time of a step
// divided by the microbatches that a stage processes or, in the bubble, waits for.
TEST(Published, megatron_530b_by_source) {
  std::map<std::string, double> slots;  // of full recompute, seconds; the fastest row of a source
  double selective_2022 = 0, baseline_2023 = 0;
  for (const Row& row : all_rows()) {
    if (row.layers != 105 || row.tp != 8 || row.pp != 35 || !is_time(row)) continue;
    const double seconds = compare(row, cluster_of(row)).measured;
    if (row.recompute.starts_with("full")) {
      const double count = static_cast<double>(row.global_batch) / row.dp + 34.0 / std::max(1, row.v);
      double& slot = slots.try_emplace(row.source, seconds / count).first->second;
      slot = std::min(slot, seconds / count);
    }
    if (row.gpus == 2240 && row.source.starts_with("Korthikanti")) selective_2022 = seconds;
    if (row.gpus == 2240 && is_megatron(row)) baseline_2023 = seconds;
  }
  ASSERT_EQ(slots.size(), 3u);
  for (const auto& [source, seconds] : slots)
    fmt::print("| 530B, full recompute, {:<42} | {:.3f} s a microbatch |\n", source, seconds);
  fmt::print("| 530B on 2,240 GPUs: Megatron-LM of 2022 {:.1f} s, MegaScale's baseline of 2023 {:.1f} s |\n",
             selective_2022, baseline_2023);
  EXPECT_GT(slots.at("MT-NLG 2.4"), 1.25 * slots.at("Korthikanti T5"));
  EXPECT_GT(baseline_2023, 1.1 * selective_2022);
}

// Rows of `source`: those used to fit a rate, and the others, which are blind.
struct Divided {
  std::vector<Row> seen, unseen;
};

Divided divided(const std::string& source, const std::function<bool(const Row&)>& is_seen) {
  Divided rows;
  for (const Row& row : published::rows_of(all_rows(), source)) (is_seen(row) ? rows.seen : rows.unseen).push_back(row);
  return rows;
}

// Expects the first rows within 3 % after a GEMM rate (printed) was fitted on them, the others within `bound`.
void expect_predicted(const std::string& source, double rate, const Divided& rows, const Cluster& cluster,
                      double bound) {
  ASSERT_FALSE(rows.seen.empty());
  ASSERT_FALSE(rows.unseen.empty());
  const std::vector<Error> calibrated = errors_on(rows.seen, cluster), blind = errors_on(rows.unseen, cluster);
  print(fmt::format("{}, rows of the calibration ({:.3f})", source, rate), calibrated);
  print_rows(calibrated);
  print(source + ", blind", blind);
  print_rows(blind);
  EXPECT_LE(published::max_error(calibrated), 0.03);
  EXPECT_LE(published::max_error(blind), bound);
}

bool calibrates_one_gpu(const Row& row) {
  return row.model.starts_with("1.316B") || row.model.starts_with("13B shape");
}

// The bf16 GEMM rate is from the two steps of 524,288 tokens, attention's from operation times of the long sequences.
TEST(Published, h200_measurements_with_waves) {
  const std::vector<Error> errors = errors_of(published::rows_of(all_rows(), "Trireme H200 with waves"));
  print("Trireme, H200, with waves", errors);
  print_rows(errors);
  EXPECT_EQ(errors.size(), 18u);
  EXPECT_LE(published::max_error(errors), 0.05);
}

// Steps of seconds on four GPUs at their power limit run 5 % slower than short ones on one GPU, so each is calibrated
// with one GEMM rate: that of one GPU on GPT 1.316B and the 13B shape, that of four GPUs on dp 4 and tp 4. The others
// are blind, except for the rates of the project's own attention, which are from the steps of LLaMA and the 13B shape.
TEST(Published, native_h200_measurements) {
  struct Measured {
    std::string source;
    std::function<bool(const Row&)> is_seen;
    double bound;
  };
  const auto calibrates_four = [](const Row& row) { return row.model == "13B" && row.pp == 1 && row.tp != 2; };
  for (const auto& [source, is_seen, bound] :
       {Measured{"Trireme H200 one", calibrates_one_gpu, 0.03}, Measured{"Trireme H200 four", calibrates_four, 0.03},
        Measured{"Trireme H200 own attention one", calibrates_one_gpu, 0.035}}) {
    const Divided rows = divided(source, is_seen);
    Cluster fitted = cluster_of(rows.seen.front());
    fit({{&fitted.software.gemm_share, 0.02, 0.3, 1}}, [&] { return squared(rows.seen, fitted); });
    expect_predicted(source, fitted.software.gemm_share, rows, fitted, bound);
  }
}

// FP8 on one GPU (lib/bench/measurements/one_gpu.md): the bf16 GEMM rate is that of the bf16 figures; the FP8 rate is
// fitted on the 13B shape, and on GPT 1.316B if that was measured. The others are blind.
TEST(Published, native_fp8_measurements) {
  for (const std::string program : {"Trireme H200 ", "Trireme H200 own attention "}) {
    const Divided bf16 = divided(program + "one", calibrates_one_gpu),
                  fp8 = divided(program + "fp8", calibrates_one_gpu);
    Cluster cluster = cluster_of(bf16.seen.front());
    fit({{&cluster.software.gemm_share, 0.02, 0.3, 1}}, [&] { return squared(bf16.seen, cluster); });
    fit({{&cluster.software.fp8_gemm_share, 0.02, 0.3, 1}}, [&] { return squared(fp8.seen, cluster); });
    expect_predicted(program + "fp8", cluster.software.fp8_gemm_share, fp8, cluster, 0.03);
  }
}

// Steps on H100 of a machine that h100.yaml was not measured on; with shapes that it was measured on, except 175B and
// LLaMA at T 2048. Those of 1.3B took part only in the fit of beside_slowdown.
TEST(Published, native_h100_measurements) {
  const std::vector<Row> all = published::rows_of(all_rows(), "Trireme H100 ");
  std::vector<Row> steps;
  std::map<std::string, double> predicted, measured;  // by model and layout
  for (const Row& row : all) {
    EXPECT_TRUE(row.constants.empty() && row.cluster.ends_with("h100.yaml")) << row.line;
    if (row.source == "Trireme H100 1.3B") continue;
    steps.push_back(row);
    const published::Comparison comparison = compare(row, cluster_of(row));
    predicted[row.model] = comparison.predicted;
    measured[row.model] = comparison.measured;
  }
  const std::vector<Error> errors = errors_of(steps);
  ASSERT_EQ(errors.size(), 16u);
  print("Trireme, H100, another machine", errors);
  print_rows(errors);
  EXPECT_LE(published::max_error(errors), 0.03);
  EXPECT_LE(published::mean_error(errors), 0.015);
  for (const std::string model : {"13B", "llama3"})
    for (const std::string numbers : {"", " fp8"}) {
      const std::string tp = model + " tp2" + numbers, dp = model + " dp2" + numbers;
      ASSERT_LT(measured.at(tp), measured.at(dp));
      EXPECT_LT(predicted.at(tp), predicted.at(dp)) << model << numbers;
    }
  const std::vector<Error> small = errors_of(published::rows_of(all, "Trireme H100 1.3B"));
  print("Trireme, H100, 1.3B", small);
  print_rows(small);
  EXPECT_LE(published::max_error(small), 0.05);
}

// The memory that BLOOM's trials used on an A100, and that PyTorch's allocator held on an H100.
TEST(Published, memory) {
  for (const std::string source : {"BLOOM prequel memory", "torchtitan H100 memory"}) {
    const std::vector<Error> errors = errors_of(published::rows_of(all_rows(), source));
    EXPECT_GE(errors.size(), 8u);
    print(source, errors);
    print_rows(errors);
    EXPECT_LE(published::mean_error(errors), 0.05) << source;
  }
}

// The choice of a layout: the loss of the predicted best against the true best, and the share of pairs in the right
// order.
TEST(Published, choice_of_layout_on_vtrains_grids) {
  std::map<std::string, std::vector<std::pair<double, double>>> grids;  // model: (predicted, measured)
  for (const Row& row : published::rows_of(all_rows(), "vTrain clusters")) {
    const published::Comparison comparison = compare(row, cluster_of(row));
    grids[row.model].push_back({comparison.predicted, comparison.measured});
  }
  ASSERT_EQ(grids.size(), 3u);
  // Published steps of one configuration scatter by 2 to 3 %: closer pairs say nothing about the order.
  constexpr double kNoise = 0.03;
  int all_right = 0, all_pairs = 0;
  double clear_share = 0, share = 0, ceiling = 0;
  for (const auto& [model, grid] : grids) {
    double fastest = grid[0].second;
    for (const auto& [predicted, measured] : grid) fastest = std::min(fastest, measured);
    const double regret = std::ranges::min_element(grid)->second / fastest - 1;
    int right = 0, pairs = 0, clear_right = 0, clear_pairs = 0;
    double expected = 0;  // pairs in order for a prediction that is right except for kNoise
    for (size_t i = 0; i < grid.size(); ++i)
      for (size_t j = 0; j < i; ++j, ++pairs) {
        const bool is_right = (grid[i].first < grid[j].first) == (grid[i].second < grid[j].second);
        right += is_right ? 1 : 0;
        expected += 0.5 * (1 + std::erf(std::abs(std::log(grid[i].second / grid[j].second)) / (2 * kNoise)));
        if (std::abs(grid[i].second / grid[j].second - 1) <= kNoise) continue;
        ++clear_pairs;
        clear_right += is_right ? 1 : 0;
      }
    const double clear = static_cast<double>(clear_right) / clear_pairs;
    fmt::print(
        "| vTrain's grid of {:<6} {:>3} layouts: regret {:.1f} %, {:.0f} % of pairs in order (a prediction within 3 %: "
        "{:.0f}), {:.0f} % of the {} that differ by more than 3 % |\n",
        model, grid.size(), 100 * regret, 100.0 * right / pairs, 100 * expected / pairs, 100 * clear, clear_pairs);
    EXPECT_LE(regret, 0.10) << model;  // layouts that the model cannot tell apart
    all_right += right;
    all_pairs += pairs;
    clear_share += clear / static_cast<double>(grids.size());
    share += static_cast<double>(right) / pairs / static_cast<double>(grids.size());
    ceiling += expected / pairs / static_cast<double>(grids.size());
  }
  const double ordered = static_cast<double>(all_right) / all_pairs;
  fmt::print(
      "| vTrain's grids together: {:.1f} % of {} pairs in order; mean of the grids {:.1f} % (a prediction within 3 %: "
      "{:.1f}), of clear pairs {:.1f} % |\n",
      100 * ordered, all_pairs, 100 * share, 100 * ceiling, 100 * clear_share);
  EXPECT_GE(ordered, 0.9);
  EXPECT_GE(clear_share, 0.9);
  EXPECT_GE(share, ceiling - 0.03);
}

}  // namespace
}  // namespace tri
