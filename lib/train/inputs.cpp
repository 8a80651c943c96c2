#include "lib/train/inputs.h"

#include "io/tokens/prepare.h"

namespace tri {

Result<void> open_inputs(const Config& config, Inputs& inputs) {
  if (config.data.sources.empty())
    return usage_error("data.sources: training needs at least one token file; make one with `trireme data prepare`");
  auto tokenizer = open_tokenizer(config.data.tokenizer);
  if (!tokenizer) return tokenizer.error();
  inputs.tokenizer = std::move(tokenizer).value();
  if (inputs.tokenizer->vocab_size() > config.model.vocab)
    return usage_error("model.vocab: {} is smaller than the {} tokens of data.tokenizer {}; set model.vocab: {}",
                       config.model.vocab, inputs.tokenizer->vocab_size(), config.data.tokenizer,
                       inputs.tokenizer->vocab_size());
  for (const Source& source : config.data.sources) {
    const auto made_with = prepared_with(source.path);
    if (!made_with) return made_with.error();
    if (!made_with.value().empty() && made_with.value() != inputs.tokenizer->fingerprint())
      return usage_error("data.tokenizer: {} is {}, but {} was prepared with {}; set data.tokenizer to that one",
                         config.data.tokenizer, inputs.tokenizer->fingerprint(), source.path, made_with.value());
  }
  std::vector<SourceSpec> sources;
  for (const Source& source : config.data.sources) sources.push_back({source.path, source.weight});
  auto dataset = Dataset::open(sources, config.model.seq_len, config.data.validation_fraction, config.data.seed,
                               config.model.vocab);
  if (!dataset) return dataset.error();
  inputs.dataset = std::move(dataset).value();
  return {};
}

}  // namespace tri
