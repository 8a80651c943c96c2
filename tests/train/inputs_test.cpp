#include "lib/train/inputs.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

OrderFields one_source() {
  return {.seed = 1,
          .validation_fraction = 0.1,
          .seq_len = 8,
          .sources = {{"a", 1.0, /* fingerprint */ 7, /* shuffle key */ 7, 1001}}};
}

TEST(CheckOrder, a_change_is_accepted_by_the_names_of_all_its_fields) {
  OrderFields now = one_source();
  now.seed = 2;
  now.sources[0].fingerprint = 8;
  const std::optional<std::string> stored = to_text(one_source());
  Config config;
  for (const auto& [accepts, well] : {std::pair{"", false},
                                      {"data.seed", false},
                                      {"data.sources", false},
                                      {"data.seed,data.sources", true},
                                      {"true", true}}) {
    config.checkpoint.accept_changes = accepts;
    const auto checked = check_order(config, now, stored, "runs/a/checkpoints/step_00000004", 32);
    ASSERT_EQ(checked.ok(), well) << accepts;
    if (well) continue;
    EXPECT_EQ(checked.error().code, ExitCode::kUsage);
    for (const std::string part :
         {"runs/a/checkpoints/step_00000004: 32 samples were consumed; their order differs from sample 32 on",
          "data.seed: 1, now 2", "data.sources[0]: a with 1001 tokens, fingerprint 0000000000000007",
          "checkpoint.accept_changes to data.seed,data.sources"})
      EXPECT_NE(checked.error().message.find(part), std::string::npos) << part << "\n" << checked.error().message;
  }
}

// It may have been written by a program that mixed sources differently.
TEST(CheckOrder, a_checkpoint_that_says_none_is_refused_unless_that_is_accepted) {
  Config config;
  const auto refused = check_order(config, one_source(), std::nullopt, "runs/a/checkpoints/step_00000004", 32);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  for (const std::string part :
       {"runs/a/checkpoints/step_00000004 does not contain", "from sample 32 on", "accept_changes to data.sources"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << part << "\n" << refused.error().message;
  for (const auto& [accepts, well] : {std::pair{"data.seed", false}, {"data.sources", true}, {"true", true}}) {
    config.checkpoint.accept_changes = accepts;
    EXPECT_EQ(check_order(config, one_source(), std::nullopt, "step", 32).ok(), well) << accepts;
  }
}

TEST(CheckOrder, the_same_order_is_accepted) {
  const Config config;
  EXPECT_TRUE(check_order(config, one_source(), to_text(one_source()), "step", 32));
  const auto damaged = check_order(config, one_source(), "{}", "step", 32);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ExitCode::kFile);
}

}  // namespace
}  // namespace tri
