// The order in which a run sees its samples, as values: the fields that determine it, which a checkpoint stores, and
// the function itself. Needs no files: orders can be compared without the data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "lib/config/kinds.h"
#include "lib/data/sampler.h"

namespace tri {

enum class Split {
  kTrain,
  kValidation,
  kWhole,  // training and validation samples together
};

// The properties of a source that determine the order.
struct OrderedSource {
  std::string path;  // for messages only
  double weight = 1.0;
  uint64_t fingerprint = 0;  // TokenFile::fingerprint()
  uint64_t shuffle_key = 0;  // TokenFile::shuffle_key()
  int64_t tokens = 0;
  // With a loss mask: how many tokens are trained as targets. Not a property of the order, and not stored with it.
  std::optional<int64_t> trained = std::nullopt;
};

// A part of the order with a mixture of its own (data.stages).
struct OrderedStage {
  int64_t end = 0;           // the first training sample after it; 0: the stage has no end
  std::vector<int> sources;  // indices in OrderFields::sources, each once
  std::vector<double> weights;
  bool operator==(const OrderedStage&) const = default;
};

// Everything that determines the order of samples. data.global_batch does not: it splits the same order into other
// steps.
struct OrderFields {
  uint64_t seed = 0;               // data.seed
  double validation_fraction = 0;  // data.validation_fraction
  int seq_len = 0;                 // model.seq_len
  std::vector<OrderedSource> sources;
  std::vector<OrderedStage> stages;    // ends ascend, the last has none; empty: all sources by their own weights
  Packing packing = Packing::kStream;  // data.packing
};

// Convert to JSON and back; doubles keep all their bits. Fails if the text has another form.
std::string to_text(const OrderFields& fields);
Result<OrderFields> order_fields_from_text(std::string_view text);

// The order of the samples. A source is split into samples of seq_len + 1 tokens: number k covers tokens [k·seq_len,
// k·seq_len + seq_len], or with best-fit packing the tokens of packing.h. The last validation_fraction of each source's
// samples are its validation samples (at least one of two if the fraction is positive). Equal objects give the same
// order for ever.
class SampleOrder {
 public:
  // Requires at least one source, and at least one sample in each.
  explicit SampleOrder(const OrderFields& fields);
  bool operator==(const SampleOrder&) const = default;

  struct Place {
    int source;      // its number in the source
    int64_t sample;  // its number in the source
    bool operator==(const Place&) const = default;
  };
  // Returns sample `index` >= 0 of a split's endless stream. Training: reshuffled each epoch, sources mixed by weight;
  // with stages, a source continues in each stage where it ended in an earlier one.
  // Validation, which must have samples: those of all sources in one fixed shuffle, repeating. Whole: every sample of
  // all sources once, in one fixed shuffle, repeating; weights are ignored.
  Place at(Split split, int64_t index) const;

  int seq_len() const { return seq_len_; }
  Packing packing() const { return packing_; }
  int64_t num_samples(Split split) const;  // in all sources, each once
  int64_t num_samples(Split split, int source) const;
  // Returns how many of the training samples [0, index) are those of `source`.
  int64_t consumed(int source, int64_t index) const;
  // Returns the same value for the same sample contents, in whatever order.
  uint64_t contents(const Place& place) const { return sources_[static_cast<size_t>(place.source)].fingerprint; }

 private:
  struct Source {
    int64_t train_samples, validation_samples;
    // of its shuffles; derived from its contents, so that neither its path nor added sources change its order
    uint64_t key;
    uint64_t fingerprint;
    bool operator==(const Source&) const = default;
  };

  struct Stage {
    int64_t begin, end;            // training samples [begin, end)
    Mixer mixer;                   // of sample index - begin
    std::vector<int> sources;      // of the mixer's sources, by their index
    std::vector<int64_t> offsets;  // [mixer's source]: samples that it gave to earlier stages
    // The samples of the last block of the mixer if the stage ends inside it: the block's samples of a source that the
    // stage does not reach are replaced, so that the next stage continues without gaps.
    std::vector<Mixer::Place> tail;
    bool operator==(const Stage&) const = default;

    Mixer::Place at(int64_t index) const;
    int64_t tail_begin() const { return end - static_cast<int64_t>(tail.size()); }
  };
  void add_stage(const OrderFields& fields, const OrderedStage& stage);

  int seq_len_;
  Packing packing_;
  std::vector<Source> sources_;
  std::vector<Stage> stages_;
};

// Returns the samples in a source of `tokens` tokens.
constexpr int64_t num_samples(int64_t tokens, int seq_len) { return tokens < 2 ? 0 : (tokens - 1) / seq_len; }

struct OrderChange {
  std::string text;                 // for messages: the first sample that changes, and a line for every difference
  std::vector<std::string> fields;  // of the config: "data.seed"
};

// Returns what would change for a run that has consumed the training samples [0, consumed) in the order of `before` and
// continued in that of `now`. None: nothing.
std::optional<OrderChange> order_change(const OrderFields& before, const OrderFields& now, int64_t consumed);

}  // namespace tri
