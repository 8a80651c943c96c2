#include "lib/config/changes.h"

#include <gtest/gtest.h>

#include <set>

namespace tri {
namespace {

Config parse(const std::string& yaml) { return value_or_throw(parse_config(yaml, "test.yaml", {})); }

// All fields of the model except those that do not change the meaning of stored weights: the attention kernel, the
// standard deviation of the initial weights, and how the load of experts is balanced.
TEST(Changes, the_model_is_fixed_for_the_life_of_a_checkpoint) {
  const std::set<std::string> not_fixed = {"model.attention", "model.init_std", "model.router_bias_rate",
                                           "model.aux_loss", "model.router_z_loss"};
  for (const Section& section : config_sections())
    for (const Field& field : section.fields)
      EXPECT_EQ(field.on_resume == OnResume::kFixed, section.name == "model" && !not_fixed.contains(field.name()))
          << field.name();
}

TEST(Changes, are_named_with_both_values_in_the_order_of_the_table) {
  const Config before = parse("model: {window: 16}\nlr: {peak: 1e-3}");
  const Config after = parse("model: {norm_eps: 1e-3}\nrun: {steps: 7}\ndata: {sources: [{path: a, weight: 2}]}");
  std::vector<std::string> lines;
  for (const FieldChange& change : changed_fields(before, after))
    lines.push_back(change.name + " " + change.before + " " + change.after +
                    (change.on_resume == OnResume::kFixed ? " fixed" : ""));
  const std::vector<std::string> expected = {"run.steps 100 7", "model.window 16 0 fixed",
                                             "model.norm_eps 1e-05 0.001 fixed",
                                             "data.sources [] [{path: \"a\", weight: 2}]", "lr.peak 0.001 0.0003"};
  EXPECT_EQ(lines, expected);
}

TEST(Changes, names_and_places_do_not_count) {
  const Config moved = parse("run: {name: b, dir: elsewhere}\ncheckpoint: {dir: /far, accept_changes: true}");
  EXPECT_TRUE(changed_fields(Config{}, moved).empty());
}

TEST(Changes, are_accepted_by_whole_names) {
  const Config some = parse("checkpoint: {accept_changes: \"model.window, data.seed\"}");
  EXPECT_TRUE(accepts_change(some, "model.window"));
  EXPECT_TRUE(accepts_change(some, "data.seed"));
  EXPECT_FALSE(accepts_change(some, "model.heads"));
  EXPECT_FALSE(accepts_change(some, "seed"));
  EXPECT_FALSE(accepts_change(Config{}, "model.window"));
  EXPECT_TRUE(accepts_change(parse("checkpoint: {accept_changes: true}"), "model.window"));
}

}  // namespace
}  // namespace tri
