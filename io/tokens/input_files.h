// Finds the files that the inputs of `data prepare` name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/tokens/text_reader.h"

namespace tri {

struct TextInput {
  std::string path;
  TextFormat format = TextFormat::kText;
  int64_t file_bytes = 0;  // as stored
  int64_t modified = 0;    // time stamp, for comparisons only

  bool operator==(const TextInput&) const = default;
};

struct TextInputs {
  std::vector<TextInput> files;
  int64_t passed_over = 0;  // files of folders skipped because their names indicate no format
};

// Each input is a file; a folder, for all files below it in the order of their paths (without hidden ones and, if no
// `format` is given, without those whose names indicate none); or a pattern of glob(7), if no file has that name.
// Fails, naming the input, if a file cannot be opened.
Result<TextInputs> find_inputs(const std::vector<std::string>& inputs, std::optional<TextFormat> format);

}  // namespace tri
