// JSON by nlohmann/json. Files include this header in place of its own: they use the instances of its templates that
// json.cpp has, because instances of their own take a second or two of each file's compilation.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tri {

// Parse `text` as Json, which is nlohmann::json or nlohmann::ordered_json. Use them in place of Json::parse, which each
// file would compile. parse_json throws nlohmann::json::exception if `text` is not JSON; the result of try_parse_json
// is discarded then. `keep` is called for each part. Safe for concurrent use.
template <class Json>
Json parse_json(std::string_view text, const typename Json::parser_callback_t& keep = nullptr);
template <class Json>
Json try_parse_json(std::string_view text, const typename Json::parser_callback_t& keep = nullptr);

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

extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
