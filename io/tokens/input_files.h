// The files that the inputs of `data prepare` mean.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/tokens/text_reader.h"

namespace tri {

struct TextInput {
  std::string path;
  TextFormat format = TextFormat::kText;
  int64_t file_bytes = 0;  // as it is stored
  int64_t modified = 0;    // time stamp; only to be compared

  bool operator==(const TextInput&) const = default;
};

struct TextInputs {
  std::vector<TextInput> files;
  int64_t passed_over = 0;  // files of folders whose names say no format
};

// Each input is a file; a folder, for all files below it in the order of their paths (without hidden ones and, where
// no `format` is given, without those whose names say none); or a pattern of glob(7), where no file has that name. All
// can be opened. Error naming the input.
Result<TextInputs> find_inputs(const std::vector<std::string>& inputs, std::optional<TextFormat> format);

}  // namespace tri
