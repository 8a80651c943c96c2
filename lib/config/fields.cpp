#include "lib/config/fields.h"

namespace tri {
namespace {

template <class T>
ValueRule make_rule(const Allowed& allowed, const T& default_value) {
  return {allowed, describe<T>(allowed), print_value(default_value)};
}

std::vector<Section> make_sections() {
  std::vector<Section> sections;
#define SECTION(type, member, title)           \
  {                                            \
    constexpr auto kSection = &Config::member; \
    using SectionType = type;                  \
    Section& section = sections.emplace_back(Section{#member, title, {}});
#define ROW(type, member, allowed, consequence, on_resume)                                                 \
  section.fields.push_back(                                                                                \
      {section.name, #member, make_rule<type>(allowed, SectionType{}.member), consequence, on_resume,      \
       field_kind<type>(),                                                                                 \
       [](const YAML::Node& node, const ValueRule& rule, Config& config, std::vector<Problem>& problems) { \
         read_value(node, rule, (config.*kSection).member, problems);                                      \
       },                                                                                                  \
       [](const Config& config) { return print_value((config.*kSection).member); }});
#define FIELD(type, member, default_value, allowed, consequence) \
  ROW(type, member, allowed, consequence, OnResume::kReported)
#define FIXED_FIELD(type, member, default_value, allowed, consequence) \
  ROW(type, member, allowed, consequence, OnResume::kFixed)
#define FREE_FIELD(type, member, default_value, allowed, consequence) \
  ROW(type, member, allowed, consequence, OnResume::kFree)
#define END_SECTION(type) }
#include "lib/config/fields.def"
#undef ROW
  return sections;
}

}  // namespace

const std::vector<Section>& config_sections() {
  static const std::vector<Section> sections = make_sections();
  return sections;
}

const Field* find_field(std::string_view name) {
  for (const Section& section : config_sections())
    for (const Field& field : section.fields)
      if (field.name() == name) return &field;
  return nullptr;
}

}  // namespace tri
