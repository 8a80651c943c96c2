// --document-tokens: the documents that `simulate` and `plan` predict with data.document_mask.
#pragma once

#include <memory>

#include "app/command_line.h"
#include "lib/simulate/document_samples.h"

namespace tri {

void add_document_option(Command& command, double& mean_tokens);

// Returns documents of `mean_tokens` tokens on average; for 0 those of the config's token files, or null if these
// cannot be opened here; null without data.document_mask. Fails with kUsage for a mean without data.document_mask.
Result<std::shared_ptr<const DocumentSamples>> documents_of(const Config& config, double mean_tokens);

}  // namespace tri
