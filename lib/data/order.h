// The order in which a run sees its samples, as values: what it follows from, which a checkpoint keeps, and the
// function itself. No files: two orders can be compared where the data are not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "lib/data/sampler.h"

namespace tri {

enum class Split {
  kTrain,
  kValidation,
  kWhole,  // training and validation samples together
};

// A source as far as the order knows it.
struct OrderedSource {
  std::string path;  // for messages: the order does not depend on it
  double weight = 1.0;
  uint64_t fingerprint = 0;  // TokenFile::fingerprint()
  uint64_t shuffle_key = 0;  // TokenFile::shuffle_key()
  int64_t tokens = 0;
};

// All that the order of samples follows from. data.global_batch is not among it: it cuts the same order into other
// steps.
struct OrderFields {
  uint64_t seed = 0;               // data.seed
  double validation_fraction = 0;  // data.validation_fraction
  int seq_len = 0;                 // model.seq_len
  std::vector<OrderedSource> sources;
};

// As JSON, and back; doubles keep all their bits. Error: the text is not such.
std::string to_text(const OrderFields& fields);
Result<OrderFields> order_fields_from_text(std::string_view text);

// Which sample comes when. A source is cut into samples of seq_len + 1 tokens: number k covers tokens [k·seq_len,
// k·seq_len + seq_len]; the last validation_fraction of each source's samples are its validation samples (at least one
// of two when the fraction is positive). Equal orders are equal for ever.
class SampleOrder {
 public:
  // At least one source, each of at least one sample.
  explicit SampleOrder(const OrderFields& fields);
  bool operator==(const SampleOrder&) const = default;

  struct Place {
    int source;
    int64_t sample;  // its number in the source
    bool operator==(const Place&) const = default;
  };
  // Sample `index` >= 0 of a split's endless stream. Training: reshuffled each epoch, sources mixed by weight.
  // Validation, which must have samples: those of all sources in one fixed shuffle, repeating. Whole: every sample of
  // all sources once, in one fixed shuffle, repeating; weights do not count.
  Place at(Split split, int64_t index) const;

  int seq_len() const { return seq_len_; }
  int64_t num_samples(Split split) const;  // of all sources, each once
  int64_t num_samples(Split split, int source) const;
  // The same for the sample that stands at a place, whatever order leads to it.
  uint64_t contents(const Place& place) const { return sources_[static_cast<size_t>(place.source)].fingerprint; }

 private:
  struct Source {
    int64_t train_samples, validation_samples;
    uint64_t key;  // of its shuffles: from its contents, so that neither its path nor added sources change its order
    uint64_t fingerprint;
    bool operator==(const Source&) const = default;
  };

  int seq_len_;
  Mixer mixer_;
  std::vector<Source> sources_;
};

// Samples that a source of so many tokens holds.
constexpr int64_t num_samples(int64_t tokens, int seq_len) { return tokens < 2 ? 0 : (tokens - 1) / seq_len; }

struct OrderChange {
  std::string text;                 // for people: the first sample that changes, and a line for every difference
  std::vector<std::string> fields;  // the config's: "data.seed"
};

// What would change for a run that has consumed the training samples [0, consumed) in the order of `before` and went
// on in that of `now`. None: nothing would.
std::optional<OrderChange> order_change(const OrderFields& before, const OrderFields& now, int64_t consumed);

}  // namespace tri
