// JSON by nlohmann/json. Files include this header in place of its own: they use the instances of its templates that
// json.cpp has, because instances of their own take a second of each file's compilation.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace tri {

// Assigns a copy of `text`.
void assign_json(nlohmann::json& value, const char* text);
void assign_json(nlohmann::ordered_json& value, const char* text);

}  // namespace tri

// Converts string literals of every length by one function, since nlohmann/json has one for each length.
template <size_t N>
struct nlohmann::adl_serializer<char[N]> {
  template <class Json>
  static void to_json(Json& value, const char* text) {
    tri::assign_json(value, text);
  }
};

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
extern template class nlohmann::detail::parser<nlohmann::json,
                                               nlohmann::detail::iterator_input_adapter<std::string::const_iterator>>;
extern template class nlohmann::detail::parser<nlohmann::json, nlohmann::detail::iterator_input_adapter<const char*>>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json,
                                               nlohmann::detail::iterator_input_adapter<std::string::const_iterator>>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json,
                                               nlohmann::detail::iterator_input_adapter<const char*>>;
