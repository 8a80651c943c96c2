// Names of an enum's values: one table, from which parsing, printing and the "allowed" lists of messages derive.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tri {

// Specialised next to each enum: `static constexpr std::array table{std::pair{E::kA, std::string_view("a")}, ...};`
template <class E>
struct EnumNames;

template <class E>
constexpr std::string_view enum_name(E value) {
  for (const auto& [candidate, name] : EnumNames<E>::table)
    if (candidate == value) return name;
  return "?";
}

template <class E>
constexpr std::optional<E> enum_from_name(std::string_view text) {
  for (const auto& [candidate, name] : EnumNames<E>::table)
    if (name == text) return candidate;
  return std::nullopt;
}

// Returns "a|b|c".
template <class E>
std::string enum_choices() {
  std::string joined;
  for (const auto& entry : EnumNames<E>::table) {
    if (!joined.empty()) joined += '|';
    joined += entry.second;
  }
  return joined;
}

}  // namespace tri
