#pragma once

#include "io/base/enum_names.h"

namespace tri {

// Each level includes the lines of those before it.
enum class LogLevel { kError, kWarn, kInfo, kDebug };

template <>
struct EnumNames<LogLevel> {
  static constexpr std::array table{
      std::pair{LogLevel::kError, std::string_view("error")}, std::pair{LogLevel::kWarn, std::string_view("warn")},
      std::pair{LogLevel::kInfo, std::string_view("info")}, std::pair{LogLevel::kDebug, std::string_view("debug")}};
};

}  // namespace tri
