// What a rank reads: token files and the tokenizer that names their tokens.
#pragma once

#include <memory>
#include <optional>

#include "io/tokens/tokenizer.h"
#include "lib/config/config.h"
#include "lib/data/dataset.h"

namespace tri {

struct Inputs {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Dataset> dataset;
};

// Opens config.data.sources and config.data.tokenizer, and checks that they and model.vocab belong together.
Result<void> open_inputs(const Config& config, Inputs& inputs);

}  // namespace tri
