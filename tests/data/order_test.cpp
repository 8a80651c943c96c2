#include "lib/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "io/base/random.h"
#include "lib/data/dataset.h"
#include "tests/data/token_files.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr int kSeqLen = 8;

OrderFields two_sources() {
  return {.seed = 1234,
          .validation_fraction = 0.1,
          .seq_len = kSeqLen,
          .sources = {{"a", 1.0, 0xF00D, 0xA, 1001}, {"b", 0.3, 0xFEED, 0xB, 2001}}};
}

TEST(SampleOrder, is_the_one_that_a_dataset_reads_in) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  write_counting(folder / "b", 2001, 10'000);
  const Dataset data =
      value_or_throw(Dataset::open({{folder / "a", 1.0}, {folder / "b", 0.3}}, kSeqLen, 0.1, 1234, 1 << 30));
  const OrderFields fields = value_or_throw(order_fields_from_text(to_text(data.order_fields())));
  const SampleOrder order(fields);
  EXPECT_TRUE(order == data.order()) << "kept as text, something was lost";
  std::vector<int32_t> tokens(kSeqLen + 1);
  for (const Split split : {Split::kTrain, Split::kValidation}) {
    EXPECT_EQ(order.num_samples(split), data.num_samples(split));
    for (int64_t i = 0; i < 1000; ++i) {
      data.sample(split, i, tokens);
      const SampleOrder::Place place = order.at(split, i);
      EXPECT_EQ(tokens[0], place.source * 10'000 + place.sample * kSeqLen);
    }
  }
}

TEST(OrderFields, keep_every_bit_as_text) {
  OrderFields fields = two_sources();
  fields.seed = ~uint64_t{0};
  fields.validation_fraction = 0.1 + 0.2;
  fields.sources[0].weight = 1e-300;
  fields.sources[1].weight = 1.0 / 3;
  fields.sources[1].fingerprint = ~uint64_t{0};
  fields.sources[1].path = "odd \xFF\"name\n";
  const OrderFields back = value_or_throw(order_fields_from_text(to_text(fields)));
  EXPECT_EQ(back.seed, fields.seed);
  EXPECT_EQ(back.validation_fraction, fields.validation_fraction);
  EXPECT_EQ(back.seq_len, fields.seq_len);
  ASSERT_EQ(back.sources.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back.sources[i].weight, fields.sources[i].weight);
    EXPECT_EQ(back.sources[i].fingerprint, fields.sources[i].fingerprint);
    EXPECT_EQ(back.sources[i].shuffle_key, fields.sources[i].shuffle_key);
    EXPECT_EQ(back.sources[i].tokens, fields.sources[i].tokens);
  }
  EXPECT_TRUE(SampleOrder(back) == SampleOrder(fields));
}

TEST(OrderFields, text_that_is_none_is_refused) {
  const std::string good = to_text(two_sources());
  ASSERT_TRUE(order_fields_from_text(good));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), good.substr(1), changed("\"seed\"", "\"sed\""),
        changed("1001", "3"), changed("000000000000f00d", "f00d"), changed("\"seq_len\":8", "\"seq_len\":0"),
        changed("\"weight\":1.0", "\"weight\":0")})
    EXPECT_FALSE(order_fields_from_text(text)) << text;
}

OrderFields three_stages() {
  OrderFields fields = two_sources();
  fields.sources.push_back({"c", 1.0, 0xBEEF, 0xC, 3001});
  fields.stages = {{1500, {0, 1}, {1.0, 0.3}}, {3600, {2, 0}, {1.0, 3.0}}, {0, {1}, {1.0}}};
  return fields;
}

TEST(SampleOrder, stages_follow_each_other_without_gaps) {
  const OrderFields fields = three_stages();
  const SampleOrder order(fields), unstaged(two_sources());
  std::vector<std::vector<int>> seen;  // [source][sample]: how often
  for (int source = 0; source < 3; ++source)
    seen.emplace_back(static_cast<size_t>(order.num_samples(Split::kTrain, source)), 0);
  std::vector<int64_t> consumed(3, 0);
  for (int64_t i = 0; i < 5000; ++i) {
    // Ends of blocks and stages: until there, every sample of a source was seen equally often, up to one.
    const bool at_end = std::set<int64_t>{1024, 1500, 2524, 3548, 3600, 4000}.contains(i);
    for (size_t source = 0; source < 3 && (at_end || i % 97 == 0); ++source) {
      ASSERT_EQ(order.consumed(static_cast<int>(source), i), consumed[source]) << i << " " << source;
      const auto [least, most] = std::minmax_element(seen[source].begin(), seen[source].end());
      if (at_end) {
        ASSERT_LE(*most - *least, 1) << i << " " << source;
      }
    }
    const SampleOrder::Place place = order.at(Split::kTrain, i);
    const auto source = static_cast<size_t>(place.source);
    ++consumed[source];
    ++seen[source][static_cast<size_t>(place.sample)];
    if (i < 1024) {
      EXPECT_EQ(place, unstaged.at(Split::kTrain, i)) << "the first stage is mixed like a run without stages";
    }
    EXPECT_TRUE(i < 1500 ? place.source != 2 : i < 3600 ? place.source != 1 : place.source == 1) << i;
  }
  EXPECT_NEAR(static_cast<double>(consumed[2]), 2100 / 4.0, 5);  // the last block is not whole
}

TEST(OrderFields, keep_stages_and_packing_as_text) {
  OrderFields fields = three_stages();
  fields.packing = Packing::kBestFit;
  const OrderFields back = value_or_throw(order_fields_from_text(to_text(fields)));
  EXPECT_EQ(back.stages, fields.stages);
  EXPECT_EQ(back.packing, Packing::kBestFit);
  EXPECT_TRUE(SampleOrder(back) == SampleOrder(fields));
  EXPECT_EQ(to_text(two_sources()).find("stages"), std::string::npos);
  EXPECT_EQ(to_text(two_sources()).find("packing"), std::string::npos);
  for (const auto& [from, to] : {std::pair{"\"end\":1500", "\"end\":-1"},
                                 {"[0,1]", "[0,3]"},
                                 {"[0,1]", "[0,0]"},
                                 {"[2,0]", "[2]"},
                                 {"\"end\":0", "\"end\":5000"},
                                 {"best_fit", "fit"}}) {
    std::string text = to_text(fields);
    ASSERT_NE(text.find(from), std::string::npos) << from;
    EXPECT_FALSE(order_fields_from_text(text.replace(text.find(from), std::string(from).size(), to))) << to;
  }
}

TEST(OrderChange, names_stages_and_packing) {
  const OrderFields before = three_stages();
  OrderFields now = before;
  now.stages[1].weights[0] = 2;
  const auto change = order_change(before, now, 100);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->fields, std::vector<std::string>{"data.stages"});
  EXPECT_NE(change->text.find("with other sources or weights"), std::string::npos) << change->text;
  EXPECT_NE(change->text.find("differs from sample 1500 on"), std::string::npos) << change->text;
  now = before;
  now.sources[2].fingerprint ^= 1;
  EXPECT_NE(order_change(before, now, 100)->text.find("\n  data.stages: file 3: c with "), std::string::npos)
      << order_change(before, now, 100)->text;
  now = before;
  now.packing = Packing::kBestFit;
  EXPECT_EQ(order_change(before, now, 100)->fields, std::vector<std::string>{"data.packing"});
}

std::string text_of(const std::optional<OrderChange>& change) { return change ? change->text : ""; }

// Returns order_change's message for a change to two_sources() in a run that has consumed `consumed` samples; "": none.
template <class Change>
std::string said_of(Change change, int64_t consumed = 100) {
  OrderFields now = two_sources();
  change(now);
  return text_of(order_change(two_sources(), now, consumed));
}

TEST(OrderChange, is_none_where_the_samples_are_the_same_for_ever) {
  EXPECT_EQ(said_of([](OrderFields&) {}), "");
  EXPECT_EQ(said_of([](OrderFields& now) { now.sources[0].path = "elsewhere"; }), "");
  EXPECT_EQ(said_of([](OrderFields& now) {  // the same proportion
              now.sources[0].weight *= 4;
              now.sources[1].weight *= 4;
            }),
            "");
  EXPECT_EQ(said_of([](OrderFields& now) { now.validation_fraction = 0.1001; }), "") << "it cuts at the same samples";
}

TEST(OrderChange, names_what_has_changed) {
  struct Row {
    void (*change)(OrderFields&);
    std::string line;
  };
  const Row rows[] = {
      {[](OrderFields& now) { now.seed = 5; }, "data.seed: 1234, now 5"},
      {[](OrderFields& now) { now.validation_fraction = 0; }, "data.validation_fraction: 0.1, now 0"},
      {[](OrderFields& now) { now.seq_len = 4; }, "model.seq_len: 8, now 4"},
      {[](OrderFields& now) { now.sources[1].weight = 0.4; }, "data.sources[1].weight: 0.3, now 0.4"},
      {[](OrderFields& now) { now.sources[0].fingerprint = 7; }, "data.sources[0]: a with 1001 tokens, fingerprint"},
      {[](OrderFields& now) { now.sources.pop_back(); }, "data.sources: 2 listed, now 1"},
      {[](OrderFields& now) { now.sources.push_back(now.sources[0]); }, "data.sources: 2 listed, now 3"},
      {[](OrderFields& now) { std::swap(now.sources[0], now.sources[1]); },
       "now b with 2001 tokens, fingerprint 000000000000feed"},
  };
  for (const Row& row : rows) {
    const std::string said = said_of(row.change);
    EXPECT_NE(said.find(row.line), std::string::npos) << row.line << "\n" << said;
    EXPECT_NE(said.find("their order differs from sample"), std::string::npos) << said;
  }
}

TEST(OrderChange, lists_each_field_once) {
  OrderFields now = two_sources();
  now.seed = 5;
  now.sources[0].weight = 2;
  now.sources[1].fingerprint = 1;
  now.sources.push_back(now.sources[0]);
  const auto change = order_change(two_sources(), now, 0);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->fields, (std::vector<std::string>{"data.seed", "data.sources"}));
}

// Returns the first sample that changes, found by reading both orders.
int64_t first_changed(const OrderFields& a, const OrderFields& b, int64_t from) {
  const SampleOrder was(a), is(b);
  for (int64_t i = from;; ++i) {
    const auto x = was.at(Split::kTrain, i), y = is.at(Split::kTrain, i);
    if (a.sources[static_cast<size_t>(x.source)].path != b.sources[static_cast<size_t>(y.source)].path ||
        x.sample != y.sample)
      return i;
  }
}

TEST(OrderChange, says_from_which_sample_on) {
  // A source with almost no weight is sampled late: until then the other source's order is unchanged.
  OrderFields before = two_sources(), now = two_sources();
  before.sources[1].weight = 1e-4;
  now.sources[1].weight = 2e-4;
  int64_t last = -1;
  for (const int64_t consumed : {0, 4000, 20'000}) {
    const int64_t expected = first_changed(before, now, consumed);
    EXPECT_GE(expected, consumed);
    EXPECT_GE(expected, last);
    last = expected;
    const std::string said = text_of(order_change(before, now, consumed));
    EXPECT_EQ(
        said.find(fmt::format("{} samples were consumed; their order differs from sample {} on", consumed, expected)),
        0u)
        << said;
  }
  EXPECT_GT(first_changed(before, now, 0), 1000) << "the case shows nothing";
  // A change that affects none of a million samples is still a change.
  now.sources[1].weight = std::nextafter(before.sources[1].weight, 1);
  const std::string said = text_of(order_change(before, now, 0));
  EXPECT_EQ(said.find("the sample order differs, but not in the 1048576 samples"), 0u) << said;
}

}  // namespace
}  // namespace tri
