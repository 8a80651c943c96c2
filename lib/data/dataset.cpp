#include "lib/data/dataset.h"

#include <algorithm>
#include <cmath>

#include "io/base/random.h"

namespace tri {
namespace {

constexpr uint64_t kValidationKey = 0x7472692D76616C69;  // the same order for every seed: evaluations compare

}  // namespace

Result<Dataset> Dataset::open(const std::vector<SourceSpec>& specs, int seq_len, double validation_fraction,
                              uint64_t seed, int vocab) {
  TRI_REQUIRE(!specs.empty() && seq_len >= 1, "{} sources, {} tokens a sample", specs.size(), seq_len);
  allow_open_files(static_cast<int64_t>(specs.size()));
  std::vector<double> weights;
  for (const SourceSpec& spec : specs) weights.push_back(spec.weight);
  Dataset dataset{Mixer(seed, weights)};
  dataset.seq_len_ = seq_len;
  dataset.vocab_ = vocab;

  std::string problems;
  const auto note = [&](const std::string& text) { problems += (problems.empty() ? "" : "\n") + text; };
  for (const SourceSpec& spec : specs) {
    auto opened = TokenFile::open(spec.path);
    if (!opened) {
      note("data.sources: " + opened.error().message);
      continue;
    }
    TokenFile file = std::move(opened).value();
    const int64_t samples = (file.num_tokens() - 1) / seq_len;
    if (file.num_tokens() < 2 || samples < 1) {
      note(
          fmt::format("data.sources: {}: {} tokens are fewer than one sample of model.seq_len + 1 = {}; add text or "
                      "shorten model.seq_len",
                      spec.path, file.num_tokens(), seq_len + 1));
      continue;
    }
    const int64_t checked = std::min<int64_t>(file.num_tokens(), int64_t{64} * (seq_len + 1));
    for (const int64_t first : {int64_t{0}, file.num_tokens() - checked})
      if (auto range = file.check_range(first, first + checked, vocab); !range) {
        note(fmt::format("data.sources: {}; set model.vocab and data.tokenizer to those it was prepared with",
                         range.error().message));
        break;
      }
    auto validation = static_cast<int64_t>(std::llround(static_cast<double>(samples) * validation_fraction));
    if (validation_fraction > 0 && samples >= 2) validation = std::clamp<int64_t>(validation, 1, samples - 1);
    if (samples < 2) validation = 0;
    const uint64_t key = random_u64(derive_key(seed, "source"), file.fingerprint());
    dataset.sources_.push_back({std::move(file), samples - validation, validation, key});
  }
  if (!problems.empty()) return Error{problems, ExitCode::kFile};
  return dataset;
}

int64_t Dataset::num_samples(Split split) const {
  int64_t total = 0;
  for (const Source& source : sources_)
    total += split == Split::kTrain ? source.train_samples : source.validation_samples;
  return total;
}

int64_t Dataset::sample(Split split, int64_t index, std::span<int32_t> out) const {
  TRI_REQUIRE(static_cast<int>(out.size()) == seq_len_ + 1, "{} tokens for a sample of {}", out.size(), seq_len_ + 1);
  size_t source = 0;
  int64_t sample = 0;
  if (split == Split::kTrain) {
    const Mixer::Place place = mixer_.at(static_cast<uint64_t>(index));
    source = static_cast<size_t>(place.source);
    sample = static_cast<int64_t>(
        shuffled(sources_[source].key, static_cast<uint64_t>(sources_[source].train_samples), place.index));
  } else {
    // A fixed shuffle, so that a short evaluation sees every source in proportion.
    const auto count = static_cast<uint64_t>(num_samples(Split::kValidation));
    TRI_REQUIRE(count > 0, "no validation samples");
    sample = static_cast<int64_t>(shuffled(kValidationKey, count, static_cast<uint64_t>(index) % count));
    while (sample >= sources_[source].validation_samples) sample -= sources_[source++].validation_samples;
    sample += sources_[source].train_samples;
  }
  sources_[source].file.read(sample * seq_len_, out);
  for (const int32_t token : out)
    if (token < 0 || token >= vocab_)
      throw Fatal(ExitCode::kFile, fmt::format("{}.bin: sample {} holds token {}, outside model.vocab {}",
                                               sources_[source].file.prefix(), sample, token, vocab_));
  return static_cast<int64_t>(out.size()) * token_bytes(sources_[source].file.type());
}

}  // namespace tri
