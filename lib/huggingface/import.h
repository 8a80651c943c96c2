// Imports a folder written by transformers' save_pretrained as the beginning of a run.
#pragma once

#include <string>
#include <vector>

#include "lib/config/config.h"

namespace tri::huggingface {

struct ImportOptions {
  std::string folder;                  // config.json and safetensors
  std::string run_dir;                 // receives config.yaml and checkpoints/step_00000000
  std::vector<std::string> overrides;  // "section.key=value"
};

struct ImportSummary {
  std::string architecture, checkpoint, config;  // the checkpoint's folder, the config's path
  int64_t tensors = 0, bytes = 0;                // as written
  std::string tokenizer;                         // its location, or why it is missing
  std::vector<std::string> kept;                 // files that an export writes again (companions.h)
  std::string head;                              // a note on an unusual output head; or ""
};

// Writes a checkpoint of weights only, at step 0, and a config with the model and, if this program supports it, the
// tokenizer. `trireme train` begins from it with zero moments. Holds one tensor in memory at a time. Fails if
// config.json or a tensor has no native counterpart, if a tensor is missing, if the run has begun, or if a path is not
// UTF-8.
Result<ImportSummary> import_model(const ImportOptions& options);

}  // namespace tri::huggingface
