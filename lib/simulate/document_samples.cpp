#include "lib/simulate/document_samples.h"

#include <algorithm>
#include <cmath>

#include "io/base/format.h"
#include "io/base/random.h"
#include "lib/config/batch_sizes.h"
#include "lib/model/flops.h"

namespace tri {
namespace {

constexpr int kMostSamples = 256;

}  // namespace

DocumentSamples::DocumentSamples(int seq_len, std::vector<int> windows, std::string source)
    : seq_len_(seq_len), windows_(std::move(windows)), source_(std::move(source)), pairs_(windows_.size()) {
  TRI_REQUIRE(!windows_.empty(), "a model has layers");
}

void DocumentSamples::add(std::span<const int32_t> starts) {
  for (size_t i = 0; i < windows_.size(); ++i) pairs_[i].push_back(attention_pairs(starts, seq_len_, windows_[i]));
  for (size_t t = 0; t < starts.size(); ++t) documents_ += t == 0 || starts[t] == static_cast<int32_t>(t);
}

double DocumentSamples::mean_length() const {
  return static_cast<double>(num_samples()) * seq_len_ / static_cast<double>(documents_);
}

std::vector<double> DocumentSamples::pairs(AttentionWork work, int sample) const {
  std::vector<double> pairs;
  for (const std::vector<AttentionPairs>& of_samples : pairs_) {
    const AttentionPairs& of = of_samples[static_cast<size_t>(sample)];
    pairs.push_back(static_cast<double>(work == AttentionWork::kBand ? of.band : of.causal));
  }
  return pairs;
}

const std::vector<AttentionPairs>& DocumentSamples::of_window(int window) const {
  const auto at = std::ranges::find(windows_, window);
  TRI_REQUIRE(at != windows_.end(), "no layer has the window {}", window);
  return pairs_[static_cast<size_t>(at - windows_.begin())];
}

double DocumentSamples::keys_per_query(AttentionWork work, int window) const {
  AttentionPairs sum;
  for (const AttentionPairs& pairs : of_window(window)) sum += pairs;
  const auto pairs = static_cast<double>(work == AttentionWork::kBand ? sum.band : sum.causal);
  return pairs / (static_cast<double>(num_samples()) * seq_len_);
}

// The largest of n normal variates is about sqrt(2 ln n) standard deviations above the mean.
double DocumentSamples::excess_of_busiest(int window, int ranks, double samples) const {
  const double mean = keys_per_query(AttentionWork::kCausal, window) * seq_len_;
  double squares = 0;
  for (const AttentionPairs& pairs : of_window(window))
    squares += std::pow(static_cast<double>(pairs.causal) - mean, 2);
  return std::sqrt(2 * std::log(std::max(1, ranks)) * squares / num_samples() / samples) / mean;
}

DocumentSamples documents_of_run(const Config& config, const Dataset& dataset) {
  const int64_t all = std::max<int64_t>(1, samples_of_run(config)), count = std::min<int64_t>(kMostSamples, all);
  DocumentSamples documents(config.model.seq_len, attention_windows(config), "of data.sources");
  for (int64_t i = 0; i < count; ++i) documents.add(dataset.document_starts(Split::kTrain, all / count * i));
  return documents;
}

DocumentSamples exponential_documents(const Config& config, double mean_tokens) {
  const int length = config.model.seq_len;
  DocumentSamples documents(
      length, attention_windows(config),
      fmt::format("with exponentially distributed lengths of {:g} tokens on average", mean_tokens));
  const uint64_t key = derive_key(config.data.seed, "document lengths");
  std::vector<int32_t> starts(static_cast<size_t>(length));
  int64_t left = 0;  // of the document that the end of a sample has cut
  for (uint64_t sample = 0, drawn = 0; sample < kMostSamples; ++sample) {
    int32_t start = 0;
    for (int32_t t = 0; t < length; ++t, --left) {
      if (left == 0) {
        left = std::max<int64_t>(1, std::llround(-mean_tokens * std::log1p(-random_uniform(key, drawn++))));
        start = t;
      }
      starts[static_cast<size_t>(t)] = start;
    }
    documents.add(starts);
  }
  return documents;
}

}  // namespace tri
