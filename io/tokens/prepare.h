// Text files to token files: PREFIX.bin, PREFIX.idx, and PREFIX.json, which says how they were made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/tokens/text_reader.h"
#include "io/tokens/tokenizer.h"

namespace tri {

enum class Existing { kRefuse, kOverwrite };  // output that is there already

// A part of the documents, with files of its own: PREFIX_NAME. Which documents is a function of each one's text alone,
// so that it does not change with inputs that are added, and equal documents are never in two.
struct DocumentSplit {
  std::string name;
  double share = 1;  // of the documents
};

// "train:0.99,val:0.01". Error when the names are no file names or the shares don't add up to 1.
Result<std::vector<DocumentSplit>> parse_splits(const std::string& text);
// The index of the split to which a document belongs; 0 when there are none.
size_t split_of(std::string_view document, const std::vector<DocumentSplit>& splits);

// How many bad documents (lines, or files of TextFormat::kText, that are not what their format says) may be skipped.
struct SkipBad {
  int64_t most = 0;  // so many,
  double share = 0;  // or this share of all documents; at most one of the two is above 0

  bool any() const { return most > 0 || share > 0; }
};
// "100" (documents) or "0.001" (a share of them). Error when it is neither.
Result<SkipBad> parse_skip_bad(const std::string& text);

struct PrepareOptions {
  std::vector<std::string> inputs;  // input_files.h
  std::string output;               // PREFIX
  std::string tokenizer = "bytes";
  std::optional<TextFormat> format;   // none: by each input's name
  std::string text_field = "text";    // jsonl: a field, or a path to it: "a.b"
  std::vector<DocumentSplit> splits;  // none: one output, PREFIX
  SkipBad skip_bad;                   // none: the first bad document is an error
  int threads = 1;
  Existing existing = Existing::kRefuse;
  double save_seconds = 30;  // between two states from which an interrupted run goes on
};

struct PrepareSummary {
  struct Output {
    std::string prefix;
    int64_t documents = 0, tokens = 0;
    int64_t text_bytes = 0;  // of the documents, in UTF-8: without line ends, and of JSON the text field alone
  };
  std::vector<Output> outputs;  // one a split
  int64_t documents = 0, tokens = 0, text_bytes = 0;
  int64_t text_faults = 0;  // bytes of the inputs that are NUL or no UTF-8: too few to refuse them, and kept
  int64_t passed_over = 0;  // files of folders whose names say no format
  int64_t skipped = 0;      // bad documents
  int64_t resumed = 0;      // documents that an interrupted run had prepared
  int vocab = 0;
};

// What PREFIX.json says of the tokenizer; empty and 0 when there is no such file (data prepared elsewhere).
struct TokenOrigin {
  std::string fingerprint;
  std::string tokenizer;  // as it was given to prepare: "bytes", or a path from the folder where prepare ran
  int vocab = 0;
};
Result<TokenOrigin> prepared_with(const std::string& prefix);

// Every document is followed by the tokenizer's end-of-document token. The result depends neither on `threads` nor on
// interruptions. A run that is interrupted, or that ends with an error after its first document, leaves a state
// (PREFIX.json.part and the parts of the token files), from which the next run with the same options continues. Inputs
// that have changed since then are compared by their text: the run continues after the last saved point up to which
// nothing has changed, and is refused where there is none; kOverwrite then drops the state and starts over. Inputs may
// be packed by gzip or Zstandard. Errors, after which nothing is left under the final names: a bad document more than
// `skip_bad` allows (names file and line), an input that is no text (text_reader.h), output that is there already or
// has no name in its folder, a split without documents.
Result<PrepareSummary> prepare(const PrepareOptions& options);

}  // namespace tri
