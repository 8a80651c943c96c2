#include "io/base/json.h"

namespace tri {

void assign_json(nlohmann::json& value, const char* text) { value = std::string(text); }
void assign_json(nlohmann::ordered_json& value, const char* text) { value = std::string(text); }

}  // namespace tri

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
template class nlohmann::detail::parser<nlohmann::json,
                                        nlohmann::detail::iterator_input_adapter<std::string::const_iterator>>;
template class nlohmann::detail::parser<nlohmann::json, nlohmann::detail::iterator_input_adapter<const char*>>;
template class nlohmann::detail::parser<nlohmann::ordered_json,
                                        nlohmann::detail::iterator_input_adapter<std::string::const_iterator>>;
template class nlohmann::detail::parser<nlohmann::ordered_json, nlohmann::detail::iterator_input_adapter<const char*>>;
