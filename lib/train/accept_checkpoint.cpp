#include "lib/train/accept_checkpoint.h"

#include "io/base/log.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/changes.h"

namespace tri {

Result<void> accept_checkpoint(const Config& config, const std::string& folder, const Manifest& manifest) {
  const auto saved = checkpoint_config(folder, manifest);
  if (!saved && config.checkpoint.accept_changes == "true") {
    log_warn("{}; what changed since is not known, and checkpoint.accept_changes is true: the run goes on",
             saved.error().message);
    return {};
  }
  if (!saved)
    return usage_error("{}\nso it is not known what changed since; set checkpoint.accept_changes to true to go on",
                       saved.error().message);

  std::string told, refused, names;
  for (const FieldChange& change : changed_fields(saved.value(), config)) {
    const bool fixed = change.on_resume == OnResume::kFixed, accepted = fixed && accepts_change(config, change.name);
    const std::string line = fmt::format("\n  {}: {}, now {}", change.name, change.before, change.after);
    if (fixed && !accepted) {
      refused += line;
      names += (names.empty() ? "" : ",") + change.name;
    } else if (fixed || !holds_weights_alone(manifest)) {  // weights alone come from no run with a config of its own
      told += line + (accepted ? " (accepted by checkpoint.accept_changes)" : "");
    }
  }
  if (!refused.empty())
    return usage_error(
        "{} was saved with another model:{}\nset it back; or, where the change is meant, checkpoint.accept_changes to "
        "{}",
        folder, refused, names);
  if (!told.empty()) log_info("the config has changed since {} was saved:{}", folder, told);
  return {};
}

}  // namespace tri
