#include "io/base/json.h"

#include <string>

namespace tri {

template <class Json>
Json parse_json(std::string_view text, const typename Json::parser_callback_t& keep) {
  return Json::parse(text, keep);
}
template <class Json>
Json try_parse_json(std::string_view text, const typename Json::parser_callback_t& keep) {
  return Json::parse(text, keep, false);
}
template nlohmann::json parse_json(std::string_view, const nlohmann::json::parser_callback_t&);
template nlohmann::json try_parse_json(std::string_view, const nlohmann::json::parser_callback_t&);
template nlohmann::ordered_json parse_json(std::string_view, const nlohmann::ordered_json::parser_callback_t&);
template nlohmann::ordered_json try_parse_json(std::string_view, const nlohmann::ordered_json::parser_callback_t&);

void assign_json(nlohmann::json& value, const char* text) { value = std::string(text); }
void assign_json(nlohmann::ordered_json& value, const char* text) { value = std::string(text); }

}  // namespace tri

template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
