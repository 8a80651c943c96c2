// Exports a checkpoint's weights as a folder that transformers' from_pretrained loads.
#pragma once

#include <string>
#include <vector>

#include "lib/checkpoint/weights.h"
#include "lib/config/config.h"

namespace tri::huggingface {

struct ExportOptions {
  std::string checkpoint, folder;
  WeightSet weights = WeightSet::kLast;
  Dtype dtype = Dtype::kF32;
  int64_t max_shard_bytes = 5'000'000'000;  // only a single larger tensor exceeds it
};

struct ExportSummary {
  std::string architecture;
  int64_t tensors = 0, bytes = 0, files = 0;
  std::string tokenizer;          // the tokenizer used in training, and which of its files are in the folder
  std::vector<std::string> kept;  // files that an import of the model had kept
};

// Writes config.json, model.safetensors (several with an index if they would be too large), the tokenizer's files as
// far as they exist, and the companions of an imported model (companions.h). Holds one tensor in memory at a time.
// Fails without writing if no format can express the model or the folder already holds a model. config.json is written
// last: without it the folder is incomplete.
Result<ExportSummary> export_checkpoint(const ExportOptions& options);

}  // namespace tri::huggingface
