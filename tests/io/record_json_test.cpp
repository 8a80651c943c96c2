// A rank's record is unchanged after conversion to JSON and back.
#include "io/flight_recorder/record_json.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace tri {
namespace {

// Every member differs from its default.
RankRecord full_record() {
  RankRecord r;
  r.world_rank = 13, r.world_size = 32;
  r.grid = unnamed_grid(4, 2, 4);
  r.host = "node07", r.attempt = "20260131T235959-3f2a9c01", r.job = "4711", r.gpu = "0000:18:00.0";
  r.run_dir = "/runs/a \"b\"";
  r.process = 4242, r.process_namespace = 4026531836, r.process_start = 99887766;
  r.process_state = ProcessState::kStopped;
  r.uptime = 1234.5;
  r.taken = 1763812345.678901;
  r.phase = RunPhase::kEvaluation, r.host_state = HostState::kConnects;
  r.phase_seconds = 0.125, r.host_seconds = 1e-9, r.beat_seconds = 0.2, r.last_event_seconds = 3;
  r.step = 1LL << 40, r.steps = 1LL << 41, r.progress = std::numeric_limits<uint32_t>::max();
  r.ended = true, r.step_seconds = 0.1;
  r.connection = std::numeric_limits<uint64_t>::max() - 1;  // not representable as a double
  r.connection_name = "peers", r.connection_set = {3, -1, 2}, r.connection_members = {1, 5},
  r.connections_done = {1, ~0ULL};
  r.actions_enqueued = 9, r.action_entered = 8, r.action_running = 7;
  r.action = ActionRecord{
      .number = 8, .kind = ComputeKind::kBackward, .chunk = 1, .microbatch = 3, .waits = {{4, 17}, {5, 18}}};
  r.channels.push_back({.name = "tp copies",
                        .kind = ChannelKind::kCopies,
                        .members = {8, 2, 4},
                        .index = 3,
                        .enqueued = 8812,
                        .joined = 8811,
                        .sent = 8810,
                        .completed = 8809,
                        .whole = 8808,
                        .operation = ChannelOperation::kReduceScatter,
                        .bytes = 1LL << 50});
  r.loaders[0] = {
      .reader = 8, .wanted = 4, .reader_state = ReaderState::kAwaitsConsumers, .published = 5, .seconds = 0.5};
  r.loaders[1] = {.reader = 9, .wanted = 1, .reader_state = ReaderState::kReads, .published = 2, .seconds = 1.5};
  r.writer = {.state = WriterState::kPublishes, .progress = 77, .step = 100, .seconds = 2.5};
  r.failure = FailureRecord{.code = 4, .consequence = true, .realtime = 1790000000123456789, .text = "burnt\n"};
  r.streams = {{"compute", StreamActivity::kBusy}, {"tp", StreamActivity::kIdle}};
  r.stacks = {{.thread = 4243, .name = "trainer", .frames = {0x7fff12345678, ~0ULL}, .symbols = {"f()+0x1", "g"}}};
  r.log = {{1.5, "step 7 – done"}};
  r.events = {{0.25, FlightEventKind::kTransfer, 3, -1}, {0.125, FlightEventKind::kWriter, 1, 2}};
  return r;
}

TEST(RecordJson, comes_back_as_it_was) {
  for (const RankRecord& record : {full_record(), RankRecord{}}) {
    const std::string text = to_json(record);
    EXPECT_EQ(text.find('\n'), text.npos);
    const auto back = record_from_json(text, "test");
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(to_json(back.value()), text);
  }
  const RankRecord back = value_or_throw(record_from_json(to_json(full_record()), "test"));
  EXPECT_EQ(back.connection, std::numeric_limits<uint64_t>::max() - 1);
  EXPECT_EQ(back.stacks[0].frames, (std::vector<uint64_t>{0x7fff12345678, ~0ULL}));
  EXPECT_EQ(back.channels[0].members, (RankSet{8, 2, 4}));
  EXPECT_EQ(back.action->waits[1].sequence, 18u);
  EXPECT_EQ(back.loaders[1].published, 2u);
  EXPECT_EQ(back.failure->realtime, 1790000000123456789);
  EXPECT_EQ(back.process_state, ProcessState::kStopped);
  EXPECT_EQ(back.uptime, 1234.5);
  EXPECT_EQ(back.taken, 1763812345.678901);
  EXPECT_EQ(back.events[0].value, -1);
}

// The texts of a full record and of an empty one differ in every value: no member is missing.
TEST(RecordJson, holds_every_member) {
  const auto full = nlohmann::json::parse(to_json(full_record())), empty = nlohmann::json::parse(to_json(RankRecord{}));
  EXPECT_EQ(full.size(), empty.size());
  EXPECT_EQ(full.size(), 1 + 47u);  // the schema and the members of RankRecord
  for (const auto& [name, value] : full.items()) EXPECT_TRUE(name == "schema" || value != empty.at(name)) << name;
  EXPECT_EQ(full["phase"], "evaluation");
  EXPECT_EQ(full["channels"][0]["operation"], "reduce-scatter");
  EXPECT_EQ(full["stacks"][0]["frames"][0], "0x7fff12345678");
}

TEST(RecordJson, passes_over_what_it_does_not_know) {
  const auto record = record_from_json(R"({"world_rank": 3, "later": {"a": [1]}, "phase": "step"})", "test");
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record.value().world_rank, 3);
  EXPECT_EQ(record.value().phase, RunPhase::kStep);
  EXPECT_EQ(record.value().world_size, 1);
}

TEST(RecordJson, axes_are_pp_dp_and_tp_or_have_names) {
  const char* const old = R"({"world_rank": 5, "pp_rank": 1, "pp_size": 2, "dp_rank": 0, "dp_size": 1, "tp_rank": 1,
                              "tp_size": 4})";
  const auto of_old = record_from_json(old, "test");
  ASSERT_TRUE(of_old) << of_old.error().message;
  EXPECT_EQ(of_old.value().grid, unnamed_grid(2, 1, 4));
  RankRecord record;
  record.world_rank = 7;
  record.grid = RankGrid{{{"tp", 2}, {"x", 2}, {"dp", 1}, {"pp", 2}}};
  const auto back = record_from_json(to_json(record), "test");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back.value().grid, record.grid);
}

TEST(RecordJson, a_text_that_is_cut_in_a_character_or_an_unknown_enumerator_is_no_trouble) {
  RankRecord record;
  record.log = {{1, "caf\xc3"}};
  record.phase = static_cast<RunPhase>(1000);
  const auto back = record_from_json(to_json(record), "test");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back.value().phase, static_cast<RunPhase>(1000));
  EXPECT_EQ(back.value().log[0].text.rfind("caf", 0), 0u);
}

TEST(RecordJson, anything_else_is_an_error_that_names_its_source) {
  const std::string whole = to_json(full_record());
  for (const std::string& text : {std::string(), std::string("[]"), std::string("7"), whole.substr(0, whole.size() / 2),
                                  std::string(R"({"world_rank": "three"})"), std::string(R"({"feeds": [1]})"),
                                  std::string(R"({"connection": "wide"})"), std::string(R"({"schema": 2})")}) {
    const auto record = record_from_json(text, "rank_00013.json");
    ASSERT_FALSE(record) << text;
    EXPECT_EQ(record.error().code, ExitCode::kFile);
    EXPECT_EQ(record.error().message.rfind("rank_00013.json: ", 0), 0u) << record.error().message;
  }
}

}  // namespace
}  // namespace tri
