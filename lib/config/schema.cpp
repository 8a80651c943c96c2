#include "lib/config/schema.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "io/base/json.h"
#include "lib/config/fields.h"
#include "lib/config/removed.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCountPattern = R"(^[0-9]+(\.[0-9]+)?[kMBT]?$)";

// Prints a whole number without a decimal point.
Json number(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  return std::abs(value) <= kExact && value == std::floor(value) ? Json(static_cast<int64_t>(value)) : Json(value);
}

void add_range(const Allowed& allowed, Json& schema) {
  if (std::isfinite(allowed.low)) schema[allowed.includes_low ? "minimum" : "exclusiveMinimum"] = number(allowed.low);
  if (std::isfinite(allowed.high))
    schema[allowed.includes_high ? "maximum" : "exclusiveMaximum"] = number(allowed.high);
}

// Patterns apply to strings only, but YAML may parse a name as a number.
Json text_schema(const Allowed& allowed) {
  Json schema = {{"type", {"string", "number", "boolean"}}};
  switch (allowed.text) {
    case TextRule::kAny:
      break;
    case TextRule::kNotEmpty:
      schema["minLength"] = 1;
      break;
    case TextRule::kFileName:  // may contain environment variables
      schema["pattern"] = R"(^([A-Za-z0-9._-]|\$[A-Za-z0-9_$]|\$\{[^}]*\})+$)";
      break;
    case TextRule::kHostAndPort:
      schema["pattern"] = "^(.+:[0-9]+)?$";
      break;
    case TextRule::kStepRange:
      schema["pattern"] = "^([0-9]+(:[0-9]+)?)?$";
      break;
    case TextRule::kBatchRamp:
      schema["pattern"] = R"(^([ ,]*[0-9.]+[kMBT]?:[0-9.]+[kMBT]?)*$)";
      break;
    case TextRule::kLayerCounts:
      schema["type"].push_back("array");
      schema["pattern"] = "^(even|auto|[0-9x ,]+)$";
      break;
  }
  return schema;
}

Json sources_schema() {
  const Json path = text_schema(some_path());
  Json weight = {{"type", "number"}};
  add_range(above(0), weight);
  const Json source = {{"type", "object"},
                       {"properties", {{"path", path}, {"weight", weight}}},
                       {"required", {"path"}},
                       {"additionalProperties", false}};
  return {{"type", "array"}, {"items", {{"anyOf", {path, source}}}}};
}

Json list_of(Json item) { return {{"type", "array"}, {"items", std::move(item)}}; }

Json count_schema() { return {{"type", {"integer", "string"}}, {"minimum", 0}, {"pattern", kCountPattern}}; }

Json stages_schema() {
  Json weight = {{"type", "number"}};
  add_range(above(0), weight);
  return list_of({{"type", "object"},
                  {"properties",
                   {{"until_tokens", count_schema()},
                    {"sources", list_of(text_schema(some_path()))},
                    {"weights", list_of(weight)}}},
                  {"required", {"sources"}},
                  {"additionalProperties", false}});
}

Json named_sources_schema() {
  return list_of({{"type", "object"},
                  {"properties", {{"name", text_schema(file_name())}, {"path", text_schema(some_path())}}},
                  {"required", {"name", "path"}},
                  {"additionalProperties", false}});
}

// YAML reads an unquoted true as a boolean.
Json choices_schema(std::string_view names) {
  Json choices = Json::array();
  for (const std::string& name : choices_of(names)) {
    choices.push_back(name);
    if (name == "true" || name == "false") choices.push_back(name == "true");
  }
  return choices;
}

Json value_schema(const Field& field) {
  const Allowed& allowed = field.rule.allowed;
  switch (field.kind) {
    case FieldKind::kInteger:
    case FieldKind::kNumber: {
      Json schema = {{"type", field.kind == FieldKind::kInteger ? "integer" : "number"}};
      add_range(allowed, schema);
      if (!allowed.suffixes) return schema;
      schema["type"] = {"integer", "string"};
      schema["pattern"] = kCountPattern;
      return schema;
    }
    case FieldKind::kBoolean:
      return {{"type", "boolean"}};
    case FieldKind::kChoice:
      return {{"enum", choices_schema(field.rule.allowed_text)}};
    case FieldKind::kChoices:
      return {{"type", "array"},
              {"items", {{"enum", choices_schema(std::string_view(field.rule.allowed_text).substr(kListOf.size()))}}}};
    case FieldKind::kText:
      return text_schema(allowed);
    case FieldKind::kSources:
      return sources_schema();
    case FieldKind::kStages:
      return stages_schema();
    case FieldKind::kNamedSources:
      return named_sources_schema();
  }
  return {};
}

// A choice's default is plain text; any other default is valid JSON: the only default of a list of choices is [].
Json default_of(const Field& field) {
  return field.kind == FieldKind::kChoice ? Json(field.rule.default_text) : parse_json<Json>(field.rule.default_text);
}

std::string field_line(const Field& field) {
  Json schema = {{"description", field.consequence}};
  schema.update(value_schema(field));
  schema["default"] = default_of(field);
  return fmt::format("        {}: {}", Json(field.key).dump(), schema.dump());
}

// Files of earlier versions contain removed fields with their neutral values.
std::string removed_line(const RemovedSetting& removed) {
  const Json schema = {{"description", removed.text()}, {"enum", Json::array({removed.neutral})}, {"deprecated", true}};
  return fmt::format("        {}: {}", Json(removed.key).dump(), schema.dump());
}

// "integer in [1, 9]" as "integer 1..9", "number >= 0" as "number >=0".
std::string short_range(std::string allowed) {
  for (const auto& [wide, narrow] : {std::pair{" >= ", " >="}, {" > ", " >"}})
    if (const size_t at = allowed.find(wide); at != allowed.npos) allowed.replace(at, std::strlen(wide), narrow);
  const size_t begin = allowed.find(" in ["), middle = allowed.find(", ", begin), end = allowed.find(']', begin);
  if (begin == allowed.npos || middle == allowed.npos || end == allowed.npos || middle > end) return allowed;
  return allowed.substr(0, begin + 1) + allowed.substr(begin + 5, middle - begin - 5) + ".." +
         allowed.substr(middle + 2, end - middle - 2) + allowed.substr(end + 1);
}

}  // namespace

std::string config_schema() {
  std::string sections;
  for (const Section& section : config_sections()) {
    std::string fields;
    for (const Field& field : section.fields) fields += (fields.empty() ? "" : ",\n") + field_line(field);
    for (const RemovedSetting& removed : removed_settings())
      if (removed.section == section.name && removed.value.empty()) fields += ",\n" + removed_line(removed);
    sections += fmt::format(
        "{}    {}: {{\n      \"description\": {},\n      \"type\": [\"object\", \"null\"],\n"
        "      \"additionalProperties\": false,\n      \"properties\": {{\n{}\n      }}\n    }}",
        sections.empty() ? "" : ",\n", Json(section.name).dump(), Json(section.title).dump(), fields);
  }
  return fmt::format(
      "{{\n  \"$schema\": \"http://json-schema.org/draft-07/schema#\",\n  \"title\": \"Trireme run config\",\n"
      "  \"type\": [\"object\", \"null\"],\n  \"additionalProperties\": false,\n"
      "  \"patternProperties\": {{\"^x-\": {{\"description\": \"values to merge; otherwise ignored\"}}}},\n"
      "  \"properties\": {{\n{}\n  }}\n}}\n",
      sections);
}

std::string config_reference() {
  std::string reference =
      "# Config reference\n\nGenerated by `trireme check --reference` from lib/config/fields.def; a test checks it.\n"
      "Each line is `field=default` (allowed values): meaning. A resume refuses to change a field marked *fixed*,\n"
      "unless `checkpoint.accept_changes` names it.\n";
  for (const Section& section : config_sections()) {
    reference += fmt::format("\n## {}: {}\n\n", section.name, section.title);
    for (const Field& field : section.fields) {
      std::string meaning;
      for (const char c : field.consequence) {
        if (c == '<') meaning += '\\';  // otherwise it would be an HTML tag
        meaning += c;
      }
      reference += fmt::format("- `{}={}` ({}){}: {}\n", field.key, field.rule.default_text,
                               short_range(field.rule.allowed_text),
                               field.on_resume == OnResume::kFixed ? " *fixed*" : "", meaning);
    }
  }
  return reference;
}

}  // namespace tri
