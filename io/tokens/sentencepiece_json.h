// Converts a SentencePiece BPE model to a tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// `model`: the bytes of a .model file. The `tokenizers` package then produces the same ids: there is a merge for every
// way to make a piece of two others, in the order of the pieces' scores. Fails if the model is not BPE with byte
// fallback, or changes text before it splits it (a normalizer, a space put in front); models from `trireme data
// train-tokenizer` do not.
Result<std::string> sentencepiece_tokenizer_json(std::string_view model);

}  // namespace tri
