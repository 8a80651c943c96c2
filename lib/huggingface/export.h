// A checkpoint's weights as a folder that transformers' from_pretrained loads.
#pragma once

#include <string>
#include <vector>

#include "lib/config/config.h"

namespace tri::huggingface {

struct ExportOptions {
  std::string checkpoint, folder;
  Dtype dtype = Dtype::kF32;
  int64_t max_shard_bytes = 5'000'000'000;  // a file holds more only for a single tensor
};

struct ExportSummary {
  std::string architecture;
  int64_t tensors = 0, bytes = 0, files = 0;
  std::string tokenizer;          // which one the model was trained with, and what of it is in the folder
  std::vector<std::string> kept;  // files that an import of the model had kept
};

// Writes config.json, model.safetensors (several with an index, where they would get too large), what there is of the
// tokenizer, and of an imported model what companions.h says.
// In memory is one tensor at a time. Error, and nothing is written, when no format expresses the model
// or the folder holds a model already. config.json comes last: without it the folder is unfinished.
Result<ExportSummary> export_checkpoint(const ExportOptions& options);

}  // namespace tri::huggingface
