// A SentencePiece BPE model as a tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// `model`: the bytes of a .model file. The `tokenizers` package makes the same ids of it: a merge for every way to
// make a piece of two others, in the order of the pieces' scores. Error when the model is no BPE with byte fallback,
// or changes text before it splits it (a normalizer, a space put in front): what `trireme data train-tokenizer` makes
// does not.
Result<std::string> sentencepiece_tokenizer_json(std::string_view model);

}  // namespace tri
