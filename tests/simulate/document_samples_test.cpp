// Predictions with data.document_mask.
#include "lib/simulate/document_samples.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lib/simulate/planner.h"
#include "lib/simulate/simulation.h"

namespace tri {
namespace {

Cluster h100() { return value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/h100.yaml")); }

Config llama(int seq_len, int ranks, std::vector<std::string> settings = {}) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/llama_3_8b.yaml";
  settings.push_back(fmt::format("model.seq_len={}", seq_len));
  settings.emplace_back("data.document_mask=true");
  return value_or_throw(
      resolve_config(value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, settings)), ranks));
}

std::vector<int32_t> starts_of(const std::vector<int>& lengths) {
  std::vector<int32_t> starts;
  for (const int length : lengths)
    starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(starts.size()));
  return starts;
}

std::shared_ptr<DocumentSamples> of_lengths(const std::vector<int>& lengths) {
  const std::vector<int32_t> starts = starts_of(lengths);
  auto documents = std::make_shared<DocumentSamples>(static_cast<int>(starts.size()), std::vector<int>{0}, "of a test");
  documents->add(starts);
  return documents;
}

TEST(DocumentSamples, counts_keys_inside_documents_and_windows) {
  DocumentSamples documents(8192, {0, 128}, "of a test");
  documents.add(starts_of(std::vector<int>(16, 512)));
  EXPECT_DOUBLE_EQ(documents.keys_per_query(AttentionWork::kCausal, 0), 513 / 2.0);
  EXPECT_DOUBLE_EQ(documents.keys_per_query(AttentionWork::kBand, 0), 512);
  EXPECT_DOUBLE_EQ(documents.keys_per_query(AttentionWork::kBand, 128), 128);
  EXPECT_DOUBLE_EQ(documents.mean_length(), 512);
  EXPECT_DOUBLE_EQ(documents.excess_of_busiest(0, 64, 4), 0);  // all samples are alike
}

// Samples of 4 or of 1 document have 4 times as many pairs or as few: the deviation is 3 / 5 of the mean.
TEST(DocumentSamples, the_busiest_rank_has_the_longest_documents) {
  DocumentSamples documents(4096, {0}, "of a test");
  for (int i = 0; i < 8; ++i) {
    documents.add(starts_of({4096}));
    documents.add(starts_of({1024, 1024, 1024, 1024}));
  }
  const double deviation = 3.0 / 5;
  EXPECT_NEAR(documents.excess_of_busiest(0, 64, 1), deviation * std::sqrt(2 * std::log(64)), 1e-3);
  EXPECT_NEAR(documents.excess_of_busiest(0, 64, 16), deviation * std::sqrt(2 * std::log(64)) / 4, 1e-3);
  EXPECT_EQ(documents.excess_of_busiest(0, 1, 16), 0);
}

// The age of a document at a position of a sample is exponential too, but at most the position.
TEST(DocumentSamples, exponential_lengths_have_the_expected_keys) {
  for (const double mean : {100.0, 1000.0, 1e9}) {
    const DocumentSamples documents = exponential_documents(llama(8192, 8), mean);
    const double share = mean / 8192, keys = mean * (1 - share * (1 - std::exp(-1 / share)));
    EXPECT_NEAR(documents.keys_per_query(AttentionWork::kCausal, 0) / keys, 1, 0.1) << mean;
  }
}

// kernels/measurements/attention.md: TFLOP/s within documents over those of a whole sample.
TEST(DocumentSamples, predicts_measured_kernels) {
  struct Measured {
    std::vector<int> lengths;
    double forward, backward;
  };
  const Cluster cluster = h100();
  Workload whole = workload_of(llama(8192, 1, {"parallel.tp=1", "parallel.recompute=none"}));
  const LayerSpec layer = whole.layers()[0];
  const LayerTimes of_whole = layer_times(whole, layer, cluster, RingTimes(cluster));
  for (const Measured& row :
       {Measured{{3187, 1241, 617, 2466, 681}, 530, 381}, Measured{{513, 1790, 4011, 1250, 628}, 520, 403},
        Measured{std::vector<int>(16, 512), 308, 223}}) {
    Workload w = whole;
    w.documents = of_lengths(row.lengths);
    const LayerTimes times = layer_times(w, layer, cluster, RingTimes(cluster));
    const double pairs =
        w.documents->keys_per_query(AttentionWork::kCausal, 0) / layer.attention.keys_per_query(AttentionWork::kCausal);
    EXPECT_NEAR(pairs * of_whole.forward.attention / times.forward.attention / (row.forward / 696), 1, 0.13);
    EXPECT_NEAR(pairs * of_whole.backward.attention / times.backward.attention / (row.backward / 485), 1, 0.13);
    EXPECT_EQ(times.forward.gemm, of_whole.forward.gemm);
  }
}

TEST(DocumentSamples, simulate_and_plan_take_them) {
  const Config config = llama(8192, 8);
  const Cluster cluster = h100();
  const Simulation whole = value_or_throw(simulate(config, cluster));
  EXPECT_NE(to_text(whole).find("for samples of one document each"), std::string::npos);
  WorkloadOptions options;
  options.documents = std::make_shared<DocumentSamples>(exponential_documents(config, 600));
  const Simulation cut = value_or_throw(simulate(config, cluster, options));
  EXPECT_LT(cut.step.parts.attention, 0.35 * whole.step.parts.attention);
  EXPECT_NEAR(whole.step.seconds - cut.step.seconds, whole.step.parts.attention - cut.step.parts.attention,
              0.03 * whole.step.seconds);
  EXPECT_LT(cut.step.mfu_causal * cut.step.seconds, whole.step.mfu_causal * whole.step.seconds);  // FLOPs
  EXPECT_NE(to_text(cut).find("of 600 tokens on average"), std::string::npos);
  PlanOptions search{.ranks = 8, .keep = 1};
  const Config open = value_or_throw(without_layout(config));
  const double before = value_or_throw(search_layouts(open, cluster, search)).best.front().step.seconds;
  search.documents = options.documents;
  EXPECT_LT(value_or_throw(search_layouts(open, cluster, search)).best.front().step.seconds, before);
}

TEST(DocumentSamples, change_no_time_where_scores_are_in_memory) {
  const Config config = llama(8192, 8);
  Cluster cluster = h100();
  cluster.software.scores_in_memory = true;
  WorkloadOptions options;
  const Simulation whole = value_or_throw(simulate(config, cluster, options));
  options.documents = std::make_shared<DocumentSamples>(exponential_documents(config, 600));
  const Simulation cut = value_or_throw(simulate(config, cluster, options));
  EXPECT_EQ(cut.step.seconds, whole.step.seconds);
  for (const Simulation* simulation : {&whole, &cut}) {
    const std::string text = to_text(*simulation);
    EXPECT_NE(text.find("documents change no time"), std::string::npos) << text;
    EXPECT_EQ(text.find("% of the pairs"), std::string::npos) << text;
    EXPECT_EQ(text.find("takes less time"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tri
