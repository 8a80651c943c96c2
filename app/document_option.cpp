#include "app/document_option.h"

#include "lib/train/inputs.h"

namespace tri {

void add_document_option(Command& command, double& mean_tokens) {
  command
      .add_option("--document-tokens", mean_tokens,
                  "Mean length of documents, for data.document_mask; lengths are distributed exponentially. Without it "
                  "they are those of the config's token files, if this machine has them")
      ->check(in_range(1, 1 << 30));
}

Result<std::shared_ptr<const DocumentSamples>> documents_of(const Config& config, double mean_tokens) {
  using Documents = std::shared_ptr<const DocumentSamples>;
  if (mean_tokens > 0 && !config.data.document_mask)
    return usage_error(
        "--document-tokens {:g}: attention crosses documents unless data.document_mask is on; add --set "
        "data.document_mask=true",
        mean_tokens);
  if (!config.data.document_mask) return Documents();
  if (mean_tokens > 0) return Documents(std::make_shared<DocumentSamples>(exponential_documents(config, mean_tokens)));
  Inputs inputs;
  if (!open_inputs(config, inputs)) return Documents();
  return Documents(std::make_shared<DocumentSamples>(documents_of_run(config, *inputs.dataset)));
}

}  // namespace tri
