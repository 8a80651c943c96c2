// Merge keys, environment variables, and tabs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "lib/config/config.h"
#include "lib/config/environment.h"

namespace tri {
namespace {

Result<Config> parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return parse_config(yaml, "a.yaml", overrides);
}

Config parsed(const std::string& yaml) { return value_or_throw(parse(yaml)); }

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const auto result = parse(yaml, overrides);
  return result ? "" : result.error().message.substr(0, result.error().message.rfind('\n'));
}

// Sets a variable for the duration of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;

 private:
  void set(const char* value) {
    if (value)
      ::setenv(name_, value, 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

TEST(MergeKeys, add_what_the_map_does_not_say) {
  const Config config = parsed(R"(
x-shapes:
  small: &small {layers: 2, hidden: 64, heads: 4}
  llama: &llama {norm: rmsnorm, hidden: 32}
model: {<<: [*small, *llama], heads: 8}
)");
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.model.hidden, 64);  // the first of two merged maps wins
  EXPECT_EQ(config.model.heads, 8);    // the map's own entries win over both
  EXPECT_EQ(config.model.norm, Norm::kRmsNorm);
}

TEST(MergeKeys, reach_sections_sources_and_maps_that_merge_themselves) {
  const Config config = parsed(R"(
x-a: &a {steps: 7, seed: 5}
x-b: &b {<<: *a, steps: 8}
x-s: &s {weight: 3}
run: {<<: *b, name: n}
data: {sources: [{<<: *s, path: p}, q]}
)");
  EXPECT_EQ(config.run.steps, 8);
  EXPECT_EQ(config.run.seed, 5u);
  EXPECT_EQ(config.run.name, "n");
  EXPECT_EQ(config.data.sources, (std::vector<Source>{{"p", 3.0}, {"q", 1.0}}));
}

TEST(MergeKeys, of_the_same_map_in_many_ways_cost_no_more) {
  // 2^40 paths lead to the first map.
  std::string yaml = "x-0: &m0 {steps: 7}\n";
  for (int i = 1; i <= 40; ++i) yaml += fmt::format("x-{}: &m{} {{<<: [*m{}, *m{}]}}\n", i, i, i - 1, i - 1);
  EXPECT_EQ(parsed(yaml + "run: {<<: *m40, name: n}\n").run.steps, 7);
}

TEST(MergeKeys, of_something_else_are_refused_where_they_stand) {
  EXPECT_EQ(error_of("run:\n  <<: 5"),
            "a.yaml:2: run.<<: merges only maps; write <<: *NAME, where &NAME marks a map further up");
  EXPECT_EQ(error_of("x-a: &a [1]\nrun: {<<: *a}"),
            "a.yaml:2: run.<<: merges only maps; write <<: *NAME, where &NAME marks a map further up");
  EXPECT_EQ(error_of("x-a: &a {stepz: 5}\nrun: {<<: *a}"), "a.yaml:1: run.stepz: unknown key; did you mean run.steps?");
  EXPECT_EQ(error_of("x-a: &a\n  steps: 5\n  steps: 6\nrun: {<<: *a}"),
            "a.yaml:3: run.steps: given twice, first on line 2; keep one");
  EXPECT_EQ(error_of("run: &r {<<: *r, steps: 5}").substr(0, 8), "a.yaml:1");  // an error, whatever yaml-cpp does
}

TEST(Environment, a_home_folder_in_a_variable_is_the_same_when_a_config_is_written_and_read) {
  const Variable folder("TRI_TEST_FOLDER", "~/data"), home("HOME", "/home/me");
  const Config config = parsed("data: {sources: [$TRI_TEST_FOLDER/x]}\n");
  EXPECT_EQ(config.data.sources.front().path, "/home/me/data/x");
  const Variable elsewhere("HOME", "/home/other");
  EXPECT_EQ(parsed(to_yaml(config)).data.sources.front().path, "/home/me/data/x");
}

TEST(Environment, stands_in_paths_and_names) {
  const Variable scratch("TRI_TEST_SCRATCH", "/scratch/me"), unset("TRI_TEST_UNSET", nullptr),
      empty("TRI_TEST_EMPTY", "");
  const Config config = parsed(R"(
run: {name: "a-${TRI_TEST_UNSET:-b}", dir: $TRI_TEST_SCRATCH/runs, sample_prompt: $TRI_TEST_SCRATCH}
data: {sources: ["${TRI_TEST_SCRATCH}/x", {path: $TRI_TEST_SCRATCH}], tokenizer: "${TRI_TEST_EMPTY:-bytes}"}
checkpoint: {dir: a$$b$}
)");
  EXPECT_EQ(config.run.name, "a-b");
  EXPECT_EQ(config.run.dir, "/scratch/me/runs");
  EXPECT_EQ(config.run.sample_prompt, "$TRI_TEST_SCRATCH");  // text is not a path
  EXPECT_EQ(config.data.sources, (std::vector<Source>{{"/scratch/me/x", 1.0}, {"/scratch/me", 1.0}}));
  EXPECT_EQ(config.data.tokenizer, "bytes");
  EXPECT_EQ(config.checkpoint.dir, "a$b$");
  // The output needs no environment, and reads back equal.
  EXPECT_EQ(to_yaml(config).find("${"), std::string::npos);
  EXPECT_EQ(parsed(to_yaml(config)), config);
  EXPECT_EQ(value_or_throw(config_value(config, "checkpoint.dir")), "a$b$");
}

TEST(Environment, takes_overrides_and_the_home_folder) {
  const Variable scratch("TRI_TEST_SCRATCH", "/s");
  const char* home = std::getenv("HOME");
  ASSERT_NE(home, nullptr);
  const Config config = value_or_throw(parse("run: {dir: ~/runs}", {"checkpoint.dir=$TRI_TEST_SCRATCH/c"}));
  EXPECT_EQ(config.run.dir, std::string(home) + "/runs");
  EXPECT_EQ(config.checkpoint.dir, "/s/c");
  EXPECT_EQ(parsed("run: {dir: a/~/b}").run.dir, "a/~/b");
}

TEST(Environment, that_lacks_a_variable_is_reported_with_the_remedy) {
  const Variable unset("TRI_TEST_UNSET", nullptr);
  EXPECT_EQ(error_of("run:\n  dir: $TRI_TEST_UNSET/x"),
            "a.yaml:2: run.dir: $TRI_TEST_UNSET/x: the environment variable TRI_TEST_UNSET is not set; export it, or "
            "write ${TRI_TEST_UNSET:-DEFAULT} ($$ stands for a plain $)");
  EXPECT_EQ(error_of("data:\n  sources:\n    - a\n    - ${TRI_TEST_UNSET}"),
            "a.yaml:4: data.sources[1]: ${TRI_TEST_UNSET}: the environment variable TRI_TEST_UNSET is not set; export "
            "it, or write ${TRI_TEST_UNSET:-DEFAULT} ($$ stands for a plain $)");
  EXPECT_EQ(error_of("", {"run.dir=${a"}),
            "--set run.dir=${a: run.dir: ${a: ${a has no closing brace; $$ stands for a plain $");
  EXPECT_EQ(error_of("run: {dir: '${1x}'}"),
            "a.yaml:1: run.dir: \"${1x}\": ${1x} is not a variable; write ${NAME} or ${NAME:-DEFAULT} ($$ stands for a "
            "plain $)");
}

TEST(Environment, escaped_text_expands_to_itself) {
  for (const char* text : {"", "$", "$$", "a$HOME", "${x", "${HOME:-y}$", "plain"})
    EXPECT_EQ(value_or_throw(expand_environment(escape_environment(text))), text);
}

TEST(Tabs, are_named_where_they_indent) {
  const std::string advice = ": a tab indents this line, but YAML allows only spaces; replace each tab with two spaces";
  EXPECT_EQ(error_of("run:\n\tsteps: 5"), "a.yaml:2" + advice);
  EXPECT_EQ(error_of("run:\n  steps: 5\n\tname: x"), "a.yaml:3" + advice);
  EXPECT_EQ(error_of("run:\n  steps: 5\n  \tname: x"), "a.yaml:3" + advice);
  EXPECT_EQ(parsed("run: {\n\tsteps:\t5}\t# ten").run.steps, 5);  // YAML allows tabs here
}

}  // namespace
}  // namespace tri
