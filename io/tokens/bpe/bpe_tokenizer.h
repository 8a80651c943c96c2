// A byte-level BPE tokenizer: what is known of it, as a value, and the tokenizer made of it. The stages of encoding, as
// the `tokenizers` package has them: added tokens are found, the text between them is normalized and split into words,
// words are merged, and what begins a document is put in front.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/tokens/bpe/added_tokens.h"
#include "io/tokens/bpe/byte_pair_encoder.h"
#include "io/tokens/bpe/unicode.h"
#include "io/tokens/tokenizer.h"

namespace tri {

// What becomes of a match of the pattern, and of what stands between two.
enum class SplitBehavior {
  kIsolated,            // each is a piece
  kRemoved,             // matches are dropped
  kMergedWithPrevious,  // a match belongs to what stands before it
  kMergedWithNext,      // to what stands behind it
  kContiguous,          // neighbouring matches are one piece
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

// One step of the way from text to words; each takes the pieces of the one before it.
struct SplitStep {
  std::optional<SplitPattern> pattern;  // none: puts a space before pieces that begin with none
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the matches are what the pattern does not match
};

struct BpeDescription {
  std::string path;                      // for messages
  std::vector<std::string> token_bytes;  // [id]: the text that it stands for; none for ids without a token
  std::vector<int32_t> unspelled;        // in the vocabulary, but of no byte letters: decoded, and never encoded
  std::vector<Merge> merges;
  WholeWords whole = WholeWords::kMerged;
  std::vector<AddedToken> added;
  bool splits_special = false;           // special ones in a text are text, and only found
  std::vector<NormalForm> normal_forms;  // one after the other
  std::vector<SplitStep> steps;
  std::vector<int32_t> begin;  // of every document
  int32_t eod = -1;
  std::string fingerprint;
};

// Bytes that are no UTF-8 become the tokens of their bytes, each a word of its own. Error when a byte has no token.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(BpeDescription description);

// GPT-2's pattern, which ByteLevel means by use_regex.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// tokenizer.json, with what the files next to it change (folder_tokens.h): the tokens that they add, and the one that
// ends a text (eos_token). Error naming what of the file is not understood.
Result<std::unique_ptr<Tokenizer>> open_tokenizer_json(const std::string& path, OtherClass other_class);

// The file's text, with the added tokens of the files next to it, and a post_processor that puts before a text what
// encode() does, and nothing behind it. The same bytes where it says so already.
Result<std::string> portable_tokenizer_json(const std::string& path);

// A file of the package `tiktoken`: .tiktoken, or LLaMA 3's tokenizer.model, which has 128,000 ranks. What it holds is
// understood by its name, as the package does it: r50k_base, p50k_base, cl100k_base, o200k_base, qwen, llama3, with
// anything behind it.
bool is_tiktoken_file(const std::string& path);
Result<std::unique_ptr<Tokenizer>> open_tiktoken(const std::string& path);
// The same as a tokenizer.json. There no two merges have the same rank: where tokens overlap that several pairs make,
// as in a row of one letter, its ids may be others than these here.
Result<std::string> tiktoken_as_json(const std::string& path);

}  // namespace tri
