// The config of a run as eval and generate change it.
#include <gtest/gtest.h>

#include "lib/infer/loaded_model.h"

namespace tri::test {
namespace {

// Batches of another size, or samples of another length, would take other steps to run.tokens.
TEST(ForwardConfig, resolves_for_a_run_that_ends_by_tokens) {
  for (const char* ramp : {"", ", batch_ramp: '0:4 512:8'"}) {
    const std::string yaml = fmt::format(
        "run: {{tokens: 2560}}\n"
        "model: {{layers: 2, hidden: 32, heads: 4, vocab: 257, seq_len: 32}}\n"
        "data: {{global_batch: 8{}}}\n"
        "lr: {{by: tokens, warmup_tokens: 600}}\n",
        ramp);
    const Config trained = value_or_throw(resolve_config(value_or_throw(parse_config(yaml, "yaml", {})), 1));
    const Config whole = value_or_throw(resolve_config(forward_config(trained, 1), 1));
    EXPECT_EQ(whole.run.steps, trained.run.steps);
    Config cached = forward_config(trained, 1);
    value_or_throw(use_cache(cached, 8, 1));
    EXPECT_TRUE(resolve_config(cached, 1));
    Config other = forward_config(trained, 1);
    other.data.global_batch = 3;
    EXPECT_TRUE(resolve_config(other, 1));
  }
}

}  // namespace
}  // namespace tri::test
