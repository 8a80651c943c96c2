// What attention computes over the documents of samples, for predictions with data.document_mask.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/config/config.h"
#include "lib/data/dataset.h"
#include "lib/data/documents.h"
#include "lib/model/linear_spec.h"

namespace tri {

class DocumentSamples {
 public:
  // `windows`: those of the model's layers (attention_windows); `source`: where the lengths are from, for reports.
  DocumentSamples(int seq_len, std::vector<int> windows, std::string source);

  // Counts a sample whose documents start at the positions `starts`, (T), as Dataset::document_starts returns them.
  void add(std::span<const int32_t> starts);

  const std::string& source() const { return source_; }
  int num_samples() const { return static_cast<int>(pairs_.front().size()); }
  double mean_length() const;  // tokens of a document, as cut by samples
  // Pairs of a query and a key: of sample `sample` for each of the windows, and the mean over all queries.
  std::vector<double> pairs(AttentionWork work, int sample) const;
  double keys_per_query(AttentionWork work, int window) const;
  // By what share of the mean the attention of the busiest of `ranks` exceeds it if each computes `samples` samples:
  // the expected largest of that many sums of independent samples.
  double excess_of_busiest(int window, int ranks, double samples) const;

 private:
  const std::vector<AttentionPairs>& of_window(int window) const;

  int seq_len_;
  std::vector<int> windows_;
  std::string source_;
  std::vector<std::vector<AttentionPairs>> pairs_;  // [window][sample]
  int64_t documents_ = 0;
};

// Returns the documents of samples spread evenly over the run. `dataset` must be open with DatasetOptions::documents.
DocumentSamples documents_of_run(const Config& config, const Dataset& dataset);

// Returns the documents of samples cut from a sequence of documents whose lengths are distributed exponentially with
// this mean, in tokens.
DocumentSamples exponential_documents(const Config& config, double mean_tokens);

}  // namespace tri
