// Converts text to tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

// Safe for concurrent use: encode and decode may run on several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Encodes a document from its beginning: if the tokenizer has a token that begins documents (<|begin_of_text|>), it
  // comes first.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Special tokens (such as end-of-document) and unknown ids decode to nothing. Bytes that are not UTF-8 are returned
  // unchanged.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;
  virtual int vocab_size() const = 0;
  virtual int32_t eod() const = 0;                   // ends every document
  virtual int token_bytes(int32_t token) const = 0;  // bytes of text that the token decodes to; eod: 0
  virtual std::string fingerprint() const = 0;       // equal for equal ids: "bytes", "sentencepiece:<hash>"...
};

// Returns the file that `spec` names: itself; for a folder, its tokenizer.model if that is SentencePiece's, else its
// tokenizer.json, else its only .tiktoken; `spec` if there is none of these.
std::string tokenizer_file(const std::string& spec);

// What to do if transformers 5 encodes text differently than the tokenizer.json says, because it uses another class or
// gives added tokens other ids. kRefuse is for new token files; runs whose tokens exist use the file as it is, and log
// a warning.
enum class OtherClass { kRefuse, kWarn };

// Loads "bytes" (256 bytes, then end-of-document as token 256), or the path of a tokenizer.json (byte-level BPE:
// bpe/bpe_tokenizer.h), of a .tiktoken, of a SentencePiece model, or of a folder that holds one of them. Fails with
// kFile for anything else, and for a folder with several .tiktoken.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& spec,
                                                  OtherClass other_class = OtherClass::kRefuse);

struct TokenizerTraining {
  std::vector<std::string> inputs;  // plain text in UTF-8, possibly packed (gzip, Zstandard)
  std::string model_path;           // ends in ".model"
  int vocab_size = 8000;
  int threads = 1;
};
// Trains a SentencePiece BPE model with byte fallback (no text is unknown). Returns after model_path is written, which
// depends only on the text and the options. Fails with kFile if an input is not text or cannot be read.
Result<void> train_tokenizer(const TokenizerTraining& training);

}  // namespace tri
