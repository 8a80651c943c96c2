// Samples of seq_len + 1 tokens from token files, addressed by global sample index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/token_file.h"
#include "lib/data/order.h"

namespace tri {

struct SourceSpec {
  std::string path;  // prefix of .bin and .idx
  double weight = 1.0;
};

// What determines the order of samples in addition to the sources.
struct DatasetOptions {
  std::vector<OrderedStage> stages = {};
  Packing packing = Packing::kStream;
  std::string field = "data.sources";  // that names the sources, for messages
};

// The open token files of an order of samples (order.h). Neighbouring samples share one token, so that every token is a
// target once. There may be any number of sources with any weights: the shares are exact in the long run, and the order
// depends only on (seed, contents of the sources, weights); see sampler.h. Reading is safe for concurrent use. Copies
// share the files, which close with the last copy.
class Dataset {
 public:
  // Opens and checks every source; the error lists the first 100 problems and, if there are more, their number. Checks
  // token ids against `vocab` in the first and last samples of each source, and at every read.
  static Result<Dataset> open(const std::vector<SourceSpec>& sources, int seq_len, double validation_fraction,
                              uint64_t seed, int vocab, const DatasetOptions& options = {});

  const OrderFields& order_fields() const { return fields_; }
  const SampleOrder& order() const { return order_; }
  int64_t num_samples(Split split) const { return order_.num_samples(split); }
  int seq_len() const { return order_.seq_len(); }

  // Reads the tokens of sample `index` of the endless stream, (T + 1). Returns the bytes read for it. Throws Fatal
  // (kFile) if storage fails or a token is not below `vocab`.
  int64_t sample(Split split, int64_t index, std::span<int32_t> out) const;

 private:
  // `documents`: of each file, with best-fit packing.
  Dataset(const OrderFields& fields, std::vector<TokenFile> files, std::vector<DocumentIndex> documents, int vocab)
      : fields_(fields),
        order_(fields),
        files_(std::make_shared<const std::vector<TokenFile>>(std::move(files))),
        documents_(std::make_shared<const std::vector<DocumentIndex>>(std::move(documents))),
        vocab_(vocab) {}
  void read_packed(const SampleOrder::Place& place, std::span<int32_t> out) const;

  OrderFields fields_;
  SampleOrder order_;
  std::shared_ptr<const std::vector<TokenFile>> files_;          // of the sources
  std::shared_ptr<const std::vector<DocumentIndex>> documents_;  // of the sources, with best-fit packing
  int vocab_;
};

}  // namespace tri
