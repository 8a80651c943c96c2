// Samples of seq_len + 1 tokens from token files, addressed by global sample index.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/token_file.h"
#include "lib/data/sampler.h"

namespace tri {

struct SourceSpec {
  std::string path;  // prefix of .bin and .idx
  double weight = 1.0;
};

enum class Split { kTrain, kValidation };

// A source's stream of T-token samples: sample k covers tokens [k·T, k·T + T], so that neighbours share one token and
// every token is a target once. The last validation_fraction of each source's samples is the validation split (at least
// one sample of two when the fraction is positive). Training order: shuffled anew each epoch, sources mixed by weight.
// Any number of sources, weights of any size: the shares are exact in the long run, and the order follows from (seed,
// contents of the sources, weights) alone (sampler.h says what holds).
// Validation order: all sources' samples in one fixed shuffle, repeating. Reading is thread-safe.
class Dataset {
 public:
  // Opens and checks every source; all problems come back together. Ids of tokens are checked against `vocab` over the
  // first and last samples of each source, and at every read.
  static Result<Dataset> open(const std::vector<SourceSpec>& sources, int seq_len, double validation_fraction,
                              uint64_t seed, int vocab);

  int64_t num_samples(Split split) const;
  int seq_len() const { return seq_len_; }

  // Tokens of sample `index` of the endless stream, (T + 1). Returns the bytes that were read for it.
  int64_t sample(Split split, int64_t index, std::span<int32_t> out) const;

 private:
  struct Source {
    TokenFile file;
    int64_t train_samples, validation_samples;
    uint64_t key;  // of its shuffles: from its contents, so that neither its path nor added sources change its order
  };

  explicit Dataset(Mixer mixer) : mixer_(std::move(mixer)) {}

  Mixer mixer_;
  std::vector<Source> sources_;
  int seq_len_ = 0, vocab_ = 0;
};

}  // namespace tri
