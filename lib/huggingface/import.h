// A folder that transformers' save_pretrained wrote, as the beginning of a run.
#pragma once

#include <string>
#include <vector>

#include "lib/config/config.h"

namespace tri::huggingface {

struct ImportOptions {
  std::string folder;                  // config.json and safetensors
  std::string run_dir;                 // gets config.yaml and checkpoints/step_00000000
  std::vector<std::string> overrides;  // "section.key=value"
};

struct ImportSummary {
  std::string architecture, checkpoint, config;  // the checkpoint's folder, the config's path
  int64_t tensors = 0, bytes = 0;                // as written
  std::string tokenizer;                         // where it is, or why it is not
  std::vector<std::string> kept;                 // files that an export writes out again (companions.h)
  std::string head;                              // what the folder says of the output head, where it is odd; or ""
};

// Writes a checkpoint of weights alone, of step 0, and a config in which the model and, where this program knows it,
// the tokenizer stand. `trireme train` begins from it with zero moments. In memory is one tensor at a time.
// Error when something in config.json or a tensor has no place with us, when one is missing, or when the run has begun.
Result<ImportSummary> import_model(const ImportOptions& options);

}  // namespace tri::huggingface
