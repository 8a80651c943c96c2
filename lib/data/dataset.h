// Samples of seq_len + 1 tokens from token files, addressed by global sample index.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/loss_mask.h"
#include "io/tokens/token_file.h"
#include "lib/data/order.h"
#include "lib/data/packed_windows.h"

namespace tri {

struct SourceSpec {
  std::string path;  // prefix of .bin, .idx, and .mask if some tokens are not trained as targets
  double weight = 1.0;
};

// What determines the order of samples in addition to the sources.
struct DatasetOptions {
  std::vector<OrderedStage> stages = {};
  Packing packing = Packing::kStream;
  std::string field = "data.sources";  // that names the sources, for messages
  // Samples can say where their documents start; refuses sources of one document, which have no ends.
  bool documents = false;
  bool eod_loss = true;  // false: masks the first tokens of documents (target_mask.h); needs documents
};

// The open token files of an order of samples (order.h). Neighbouring samples share one token, so that every token is a
// target once. There may be any number of sources with any weights: the shares are exact in the long run, and the order
// depends only on (seed, contents of the sources, weights); see sampler.h. Reading is safe for concurrent use. Copies
// share the files, which close with the last copy.
class Dataset {
 public:
  // Opens and checks every source, and its loss mask if there is one; the error lists the first 100 problems and, if
  // there are more, their number. Checks token ids against `vocab` in the first and last samples of each source, and at
  // every read.
  static Result<Dataset> open(const std::vector<SourceSpec>& sources, int seq_len, double validation_fraction,
                              uint64_t seed, int vocab, const DatasetOptions& options = {});

  const OrderFields& order_fields() const { return fields_; }
  const SampleOrder& order() const { return order_; }
  int64_t num_samples(Split split) const { return order_.num_samples(split); }
  int seq_len() const { return order_.seq_len(); }

  // Reads the tokens of sample `index` of the endless stream, (T + 1). Those that the loss mask, or eod_loss, excludes
  // as targets are masked (target_mask.h); the first is never a target. Returns the bytes read for it. Throws Fatal
  // (kFile) if storage fails or a token is not below `vocab`. `starts`, (T), requires DatasetOptions::documents: the
  // position in the sample at which the document of each token starts; the first one may have begun before the sample.
  // Empty: not wanted.
  int64_t sample(Split split, int64_t index, std::span<int32_t> out, std::span<int32_t> starts = {}) const;
  // Returns only the starts, (T).
  std::vector<int32_t> document_starts(Split split, int64_t index) const;

 private:
  // The open files of a source.
  struct SourceFiles {
    TokenFile tokens;
    std::optional<LossMask> mask;
    std::shared_ptr<const DocumentIndex> documents;  // with best-fit packing or documents
    std::unique_ptr<PackedWindows> windows;          // with best-fit packing
  };

  Dataset(const OrderFields& fields, std::vector<SourceFiles> files, int vocab, bool eod_loss)
      : fields_(fields),
        order_(fields),
        files_(std::make_shared<const std::vector<SourceFiles>>(std::move(files))),
        vocab_(vocab),
        eod_loss_(eod_loss) {}
  // Returns the tokens of a sample and the one that follows them, as extents of the file.
  std::vector<Extent> extents(const SampleOrder::Place& place) const;
  // Returns where the documents of these tokens start, (T + 1).
  std::vector<int32_t> starts_of(const SampleOrder::Place& place, const std::vector<Extent>& extents) const;

  OrderFields fields_;
  SampleOrder order_;
  std::shared_ptr<const std::vector<SourceFiles>> files_;  // of the sources
  int vocab_;
  bool eod_loss_;
};

}  // namespace tri
