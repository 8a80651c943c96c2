// A byte-level BPE tokenizer: its description as a value, and the tokenizer built from it. Encoding has the stages of
// the `tokenizers` package: added tokens are matched, the text between them is normalized and split into words, words
// are merged, and the tokens that begin a document are put in front.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/tokens/bpe/added_tokens.h"
#include "io/tokens/bpe/byte_pair_encoder.h"
#include "io/tokens/bpe/unicode.h"
#include "io/tokens/tokenizer.h"

namespace tri {

// What happens to a match of the pattern, and to the text between two matches.
enum class SplitBehavior {
  kIsolated,            // each is a piece
  kRemoved,             // matches are dropped
  kMergedWithPrevious,  // a match belongs to the text before it
  kMergedWithNext,      // to the text after it
  kContiguous,          // consecutive matches are one piece
};

template <>
struct EnumNames<SplitBehavior> {
  static constexpr std::array table{
      std::pair{SplitBehavior::kIsolated, std::string_view("Isolated")},
      std::pair{SplitBehavior::kRemoved, std::string_view("Removed")},
      std::pair{SplitBehavior::kMergedWithPrevious, std::string_view("MergedWithPrevious")},
      std::pair{SplitBehavior::kMergedWithNext, std::string_view("MergedWithNext")},
      std::pair{SplitBehavior::kContiguous, std::string_view("Contiguous")}};
};

// One step from text to words, applied to the pieces of the previous step.
struct SplitStep {
  std::optional<SplitPattern> pattern;  // none: puts a space before pieces that do not begin with one
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the matches are what the pattern does not match
};

struct BpeDescription {
  std::string path;                      // for messages
  std::vector<std::string> token_bytes;  // [id]: the bytes that it decodes to; empty for ids without a token
  std::vector<int32_t> unspelled;  // in the vocabulary, but not spelled in byte letters: decoded, and never encoded
  std::vector<Merge> merges;
  WholeWords whole = WholeWords::kMerged;
  std::vector<AddedToken> added;
  bool splits_special = false;           // special tokens in a text are matched, but encoded as text
  std::vector<NormalForm> normal_forms;  // applied in order
  std::vector<SplitStep> steps;
  std::vector<int32_t> begin;  // of every document
  int32_t eod = -1;
  std::string fingerprint;
};

// Bytes that are not UTF-8 become the tokens of their bytes, each a separate word. Fails if a byte has no token.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(BpeDescription description);

// GPT-2's pattern, which ByteLevel uses with use_regex.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Reads a tokenizer.json with the changes that the files next to it make (folder_tokens.h): added tokens, and the one
// that ends a text (eos_token). Fails, naming the part of the file that is not supported.
Result<std::unique_ptr<Tokenizer>> open_tokenizer_json(const std::string& path, OtherClass other_class);

// Returns the file's text with the added tokens of the files next to it, and with a post_processor that puts before a
// text what encode() does, and nothing after it. Returns the same bytes if the file says so already.
Result<std::string> portable_tokenizer_json(const std::string& path);

// Reads a file of the package `tiktoken`: .tiktoken, or LLaMA 3's tokenizer.model, which has 128,000 ranks. Its name
// selects the encoding, as in the package: r50k_base, p50k_base, cl100k_base, o200k_base, qwen, llama3, with any
// suffix.
bool is_tiktoken_file(const std::string& path);
Result<std::unique_ptr<Tokenizer>> open_tiktoken(const std::string& path);
// Returns the same as a tokenizer.json. There no two merges have the same rank: if tokens overlap that several pairs
// make, as in repetitions of one letter, its ids may differ from those here.
Result<std::string> tiktoken_as_json(const std::string& path);

}  // namespace tri
