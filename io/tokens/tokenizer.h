// Text to tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

// Thread-safe: encode and decode may run on several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Of a document from its beginning: where a token begins documents (<|begin_of_text|>), it comes first.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Special tokens (end-of-document among them) and unknown ids: nothing. Bytes that are no UTF-8 are given as they
  // are.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;
  virtual int vocab_size() const = 0;
  virtual int32_t eod() const = 0;                   // ends every document
  virtual int token_bytes(int32_t token) const = 0;  // bytes of text that the token stands for; eod: 0
  virtual std::string fingerprint() const = 0;       // equal for equal ids: "bytes", "sentencepiece:<hash>"...
};

// The file that `spec` means: itself; of a folder, its tokenizer.model where that is SentencePiece's, else its
// tokenizer.json, else its only .tiktoken; `spec` where there is none of these.
std::string tokenizer_file(const std::string& spec);

// What happens where transformers 5 takes a class for a tokenizer.json that splits text differently than the file says.
// kRefuse is for new token files; runs whose tokens exist already take the file as it is, and log a warning.
enum class OtherClass { kRefuse, kWarn };

// "bytes" (256 bytes, then end-of-document as token 256), or the path of a tokenizer.json (byte-level BPE:
// bpe/bpe_tokenizer.h), of a .tiktoken, of a SentencePiece model, or of a folder that holds one of them.
// Error (kFile): none of these, or a folder with several .tiktoken.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& spec,
                                                  OtherClass other_class = OtherClass::kRefuse);

struct TokenizerTraining {
  std::vector<std::string> inputs;  // plain text, in UTF-8, as it is or packed (gzip, Zstandard)
  std::string model_path;           // ends in ".model"
  int vocab_size = 8000;
  int threads = 1;
};
// Trains a SentencePiece BPE model with byte fallback (no text is unknown). Returns after model_path is written, which
// depends on the text and the options alone. Fails with kFile if an input is not text or can't be read.
Result<void> train_tokenizer(const TokenizerTraining& training);

}  // namespace tri
