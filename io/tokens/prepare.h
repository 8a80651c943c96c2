// Converts text files to token files: PREFIX.bin, PREFIX.idx, and PREFIX.json, which records how they were made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/tokens/chat.h"
#include "io/tokens/text_reader.h"
#include "io/tokens/token_origin.h"
#include "io/tokens/tokenizer.h"

namespace tri {

enum class Existing { kRefuse, kOverwrite };  // existing output

// A part of the documents, with its own files: PREFIX_NAME. The split of a document depends only on its text, so that
// added inputs do not change it, and equal documents are never in two splits.
struct DocumentSplit {
  std::string name;
  double share = 1;  // of the documents
};

// Parses "train:0.99,val:0.01". Fails if the names are not file names or the shares do not add up to 1.
Result<std::vector<DocumentSplit>> parse_splits(const std::string& text);
// Returns the index of the split to which a document belongs; 0 if there are none.
size_t split_of(std::string_view document, const std::vector<DocumentSplit>& splits);

// How many bad documents (lines, or files of TextFormat::kText, that violate their format) may be skipped.
struct SkipBad {
  int64_t most = 0;  // this number,
  double share = 0;  // or this share of all documents; at most one of the two is above 0

  bool any() const { return most > 0 || share > 0; }
};
// Parses "100" (documents) or "0.001" (a share of them).
Result<SkipBad> parse_skip_bad(const std::string& text);

struct PrepareOptions {
  std::vector<std::string> inputs;  // input_files.h
  std::string output;               // PREFIX
  std::string tokenizer = "bytes";
  std::optional<TextFormat> format;   // none: from each input's name
  std::string text_field = "text";    // jsonl: a field, or a path to it: "a.b"
  std::optional<ChatTemplate> chat;   // each line of jsonl is a conversation; also writes PREFIX.mask (loss_mask.h)
  std::vector<DocumentSplit> splits;  // none: one output, PREFIX
  SkipBad skip_bad;                   // none: the first bad document is an error
  int threads = 1;
  Existing existing = Existing::kRefuse;
  double save_seconds = 30;  // between two states from which an interrupted run can continue
};

struct PrepareSummary {
  struct Output {
    std::string prefix;
    int64_t documents = 0, tokens = 0;
    int64_t text_bytes = 0;  // of the documents, in UTF-8: without line ends, and for JSON only the text field
    std::optional<int64_t> trained_tokens = std::nullopt;  // of conversations
  };
  std::vector<Output> outputs;  // one per split
  int64_t documents = 0, tokens = 0, text_bytes = 0;
  int64_t text_faults = 0;  // bytes of the inputs that are NUL or not UTF-8: few enough to be kept
  int64_t passed_over = 0;  // files of folders skipped because their names indicate no format
  int64_t skipped = 0;      // bad documents
  int64_t resumed = 0;      // documents that an interrupted run had prepared
  int vocab = 0;
};

// Prepares token files. Every document is followed by the tokenizer's end-of-document token. The result depends neither
// on `threads` nor on interruptions. Inputs may be packed by gzip or Zstandard.
//
// A run that is interrupted, or whose inputs fail after its first document, leaves a state (PREFIX.json.part and the
// parts of the token files), from which the next run with the same options continues. If the output cannot be written,
// as on a full disk, neither can a state of it: the last saved one stays, and at most the work of `save_seconds`, and
// of publishing the files, is lost; before the first one is saved, all of it. The texts of inputs that have changed
// since then are compared: the run continues after the last saved point before the first change, and is refused if
// there is none; kOverwrite then discards the state and starts over. A point where more documents were skipped than
// `skip_bad` allows now is not used either.
//
// Fails, leaving nothing under the final names, with a bad document more than `skip_bad` allows (the error names file
// and line), an input that is not text (text_reader.h), existing output, a missing output folder, or a split without
// documents.
Result<PrepareSummary> prepare(const PrepareOptions& options);

}  // namespace tri
