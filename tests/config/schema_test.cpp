#include "lib/config/schema.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "lib/config/fields.h"
#include "lib/config/removed.h"

namespace tri {
namespace {

TEST(ConfigSchema, has_every_field_with_its_default_and_consequence) {
  const auto schema = nlohmann::json::parse(config_schema());
  for (const Section& section : config_sections()) {
    const auto& properties = schema.at("properties").at(section.name).at("properties");
    size_t removed_fields = 0;
    for (const RemovedSetting& removed : removed_settings()) {
      if (removed.section != section.name || !removed.value.empty()) continue;
      ++removed_fields;
      EXPECT_EQ(properties.at(std::string(removed.key)).at("enum"), nlohmann::json::array({removed.neutral}));
    }
    EXPECT_EQ(properties.size(), section.fields.size() + removed_fields) << section.name;
    for (const Field& field : section.fields) {
      const auto& property = properties.at(field.key);
      EXPECT_EQ(property.at("description"), field.consequence);
      EXPECT_EQ(property.contains("enum"), field.kind == FieldKind::kChoice) << field.name();
      if (field.kind == FieldKind::kChoice) {
        const auto& names = property.at("enum");
        EXPECT_NE(std::find(names.begin(), names.end(), property.at("default")), names.end()) << field.name();
      }
    }
  }
  const auto& steps = schema.at("properties").at("run").at("properties").at("steps");
  EXPECT_EQ(steps.dump(), R"({"default":100,"description":"optimizer steps; the run ends after the last","minimum":1,)"
                          R"("type":"integer"})");
}

std::string file_text(const std::string& name) {
  std::ifstream file(std::string(TRI_SOURCE_DIR) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ConfigSchema, next_to_the_presets_is_this_one) {
  EXPECT_EQ(file_text("configs/trireme.schema.json"), config_schema())
      << "run: build/bin/trireme check --schema >configs/trireme.schema.json";
}

TEST(ConfigReference, next_to_the_presets_is_this_one) {
  EXPECT_EQ(file_text("configs/REFERENCE.md"), config_reference())
      << "run: build/bin/trireme check --reference >configs/REFERENCE.md";
}

TEST(ConfigReference, has_every_field) {
  const std::string reference = config_reference();
  for (const Section& section : config_sections()) {
    const size_t begin = reference.find("\n## " + section.name + ": "), end = reference.find("\n## ", begin + 1);
    ASSERT_NE(begin, std::string::npos) << section.name;
    for (const Field& field : section.fields)
      EXPECT_LT(reference.find("\n- `" + field.key + "=", begin), end) << field.name();
  }
}

}  // namespace
}  // namespace tri
