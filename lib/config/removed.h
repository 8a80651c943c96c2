// Settings of earlier versions that no longer exist: how a config with one is rejected, and what happens if a saved run
// has one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tri {

struct RemovedSetting {
  std::string_view section, key;
  std::string_view value;    // the removed value; "": the whole field was removed
  std::string_view neutral;  // of a removed field: the value for what every run does now
  std::string_view reason;   // continues "was removed: "
  std::string_view now;      // what happens instead
  std::string_view remedy;   // what to do about a config that has the setting

  // Returns "was removed: REASON; NOW; REMEDY".
  std::string text() const;
};

std::span<const RemovedSetting> removed_settings();

// Returns the removed setting that `value` of section.key requests, including neutral values; null if the field accepts
// the value, or never existed.
const RemovedSetting* removed_setting(std::string_view section, std::string_view key, std::string_view value);

}  // namespace tri
