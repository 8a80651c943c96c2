#include "io/flight_recorder/flight_recorder.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "io/base/log.h"
#include "io/flight_recorder/record.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

class FlightRecords : public testing::Test {
 protected:
  FlightRecords() { setenv("TRIREME_BLACK_BOXES", folder_.path().c_str(), 1); }
  ~FlightRecords() override { unsetenv("TRIREME_BLACK_BOXES"); }

  static std::unique_ptr<FlightRecorder> make(int world_rank) {
    return std::move(FlightRecorder::create({.world_rank = world_rank,
                                             .world_size = 8,
                                             .grid = unnamed_grid(2, 2, 2),
                                             .attempt = "attempt",
                                             .job = "77",
                                             .run_dir = "/runs/mine",
                                             .gpu = "0000:18:00.0",
                                             .max_actions = 100}))
        .value();
  }
  static RankRecord read(const FlightRecorder& recorder) { return read_flight_record(recorder.path()).value(); }

  TemporaryFolder folder_;
};

TEST_F(FlightRecords, what_is_written_can_be_read) {
  const auto recorder = make(5);
  recorder->begin_step(12, 100);
  flight::Channel& tp = *recorder->add_channel("tp", ChannelKind::kCollectives, rank_set({4, 5}), 1);
  flight::Channel& edge = *recorder->add_channel("pp forward", ChannelKind::kReceive, rank_set({1, 5}), 1);
  EXPECT_EQ(recorder->enqueue(tp, ChannelOperation::kAllGather, 100), 1u);
  EXPECT_EQ(recorder->enqueue(tp, ChannelOperation::kReduceScatter, 50), 2u);
  tp.joined = 2;
  tp.completed = 1;
  recorder->enqueue(edge, ChannelOperation::kReceive, 10);
  const uint32_t action = recorder->enqueue_action(ComputeKind::kBackward, 1, 3);
  recorder->action_awaits(edge, 1);
  recorder->image().action_entered = action;
  recorder->enter(HostState::kAwaitsDevice);
  recorder->image().loaders[0].reader = 4;
  recorder->enter(WriterState::kWrites, 10);
  recorder->log_line("a line");
  recorder->failure(5, true, "rank 3 on node02 is gone");
  recorder->failure(4, false, "another");

  const RankRecord record = read(*recorder);
  EXPECT_EQ(to_string_place(record), fmt::format("rank 5 [pp1 dp0 tp1] on {} (GPU 0000:18:00.0)", record.host));
  EXPECT_EQ(record.run_dir, "/runs/mine");
  EXPECT_EQ(record.job, "77");
  EXPECT_EQ(record.phase, RunPhase::kStep);
  EXPECT_EQ(record.step, 12);
  EXPECT_EQ(record.steps, 100);
  EXPECT_EQ(record.host_state, HostState::kAwaitsDevice);
  ASSERT_EQ(record.channels.size(), 2u);
  EXPECT_EQ(record.channels[0].name, "tp");
  EXPECT_EQ(record.channels[0].members, (RankSet{4, 1, 2}));
  EXPECT_EQ(record.channels[0].operation, ChannelOperation::kReduceScatter);
  EXPECT_EQ(record.channels[0].enqueued, 2u);
  EXPECT_EQ(record.channels[0].joined, 2u);
  EXPECT_EQ(record.channels[0].sent, 2u) << "of collectives: the same as joined";
  EXPECT_EQ(record.channels[0].completed, 1u);
  EXPECT_EQ(record.channels[0].bytes, 150);
  EXPECT_EQ(record.channels[1].members, (RankSet{1, 4, 2}));
  ASSERT_TRUE(record.action);
  EXPECT_EQ(record.action->kind, ComputeKind::kBackward);
  EXPECT_EQ(record.action->microbatch, 3);
  EXPECT_EQ(record.action->chunk, 1);
  ASSERT_EQ(record.action->waits.size(), 1u);
  EXPECT_EQ(record.action->waits[0].channel, 1);
  EXPECT_EQ(record.action->waits[0].sequence, 1u);
  EXPECT_EQ(record.loaders[0].reader, 4);
  EXPECT_EQ(record.loaders[1].reader, -1);
  EXPECT_EQ(record.writer.state, WriterState::kWrites);
  EXPECT_EQ(record.writer.step, 10);
  ASSERT_EQ(record.log.size(), 1u);
  EXPECT_EQ(record.log[0].text, "a line");
  ASSERT_TRUE(record.failure);
  EXPECT_EQ(record.failure->text, "rank 3 on node02 is gone") << "the first failure counts";
  EXPECT_TRUE(record.failure->consequence);
  EXPECT_EQ(process_state_of(record), ProcessState::kRuns);
}

// Version 6 had the ranks and sizes on three axes instead of a list of axes, and actions directly after the events.
TEST_F(FlightRecords, a_file_of_version_6_is_read) {
  const auto recorder = make(5);
  recorder->begin_step(12, 100);
  recorder->image().action_entered = recorder->enqueue_action(ComputeKind::kForward, 1, 3);
  std::ifstream file(recorder->path(), std::ios::binary);
  const std::string now((std::istreambuf_iterator<char>(file)), {});
  std::string old = now.substr(0, flight::kActionsOffset6) + now.substr(flight::kActionsOffset);
  const uint32_t version = flight::kVersionWithoutAxes;
  const int32_t place[] = {1, 2, 0, 2, 1, 2};
  old.replace(offsetof(flight::Image, version), sizeof version, reinterpret_cast<const char*>(&version),
              sizeof version);
  old.replace(offsetof(flight::Image, place), sizeof place, reinterpret_cast<const char*>(place), sizeof place);
  std::ofstream(recorder->path() + ".old", std::ios::binary) << old;
  const auto record = read_flight_record(recorder->path() + ".old");
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record.value().grid, unnamed_grid(2, 2, 2));
  EXPECT_EQ(record.value().grid.place(5), "pp1 dp0 tp1");
  EXPECT_EQ(record.value().step, 12);
  ASSERT_TRUE(record.value().action);
  EXPECT_EQ(record.value().action->microbatch, 3);
}

TEST_F(FlightRecords, any_axes_are_named) {
  const RankGrid grid{{{"tp", 2}, {"x", 2}, {"dp", 1}, {"pp", 2}}};
  const auto recorder =
      value_or_throw(FlightRecorder::create({.world_rank = 7, .world_size = 8, .grid = grid, .attempt = "axes"}));
  EXPECT_EQ(read(*recorder).grid, grid);
  EXPECT_EQ(to_string_place(read(*recorder)).find("rank 7 [pp1 dp0 x1 tp1] on "), 0u);
}

// A debugger that holds a rank has not stopped it.
TEST_F(FlightRecords, a_process_in_a_debugger_is_not_stopped) {
  const auto recorder = make(0);
  RankRecord record = read(*recorder);
  int ready[2], status = 0;
  char byte = 0;
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto own = FlightRecorder::create({.world_rank = 1, .attempt = "child"});
    ::_exit(own && ::write(ready[1], "1", 1) == 1 ? ::pause() : 1);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  for (const std::string& path : list_flight_records())
    if (const auto read = read_flight_record(path); read && read.value().process == child) record = read.value();
  ASSERT_EQ(record.process, child);
  EXPECT_EQ(process_state_of(record), ProcessState::kRuns);
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state_of(record), ProcessState::kStopped);
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, WCONTINUED), child);
  if (::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0) {  // otherwise tracing is not allowed here
    ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, child, nullptr, nullptr), 0);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(process_state_of(record), ProcessState::kTraced);
  }
  EXPECT_EQ(process_state_from('t'), ProcessState::kTraced);
  ::kill(child, SIGKILL);
  while (::waitpid(child, &status, 0) == child && !WIFSIGNALED(status)) {
  }
  EXPECT_EQ(process_state_of(record), ProcessState::kGone);
  ::close(ready[0]), ::close(ready[1]);
}

// Rings keep the newest entries; an action whose entry was reused is not confused with another.
TEST_F(FlightRecords, rings_keep_the_newest) {
  const auto recorder = make(0);
  for (int i = 0; i < 3 * flight::kEvents; ++i) recorder->event(FlightEventKind::kAction, 0, i);
  for (int i = 0; i < 100; ++i) recorder->log_line(fmt::format("line {}", i));
  for (int i = 0; i < 1000; ++i) recorder->enqueue_action(ComputeKind::kForward, 0, i);
  recorder->image().action_entered = 1;
  RankRecord record = read(*recorder);
  ASSERT_EQ(record.events.size(), size_t{flight::kEvents});
  EXPECT_EQ(record.log.front().text, "line 68");
  EXPECT_EQ(record.log.back().text, "line 99");
  EXPECT_FALSE(record.action);
  recorder->image().action_entered = 990;
  record = read(*recorder);
  ASSERT_TRUE(record.action);
  EXPECT_EQ(record.action->microbatch, 989);
}

TEST_F(FlightRecords, a_flight_record_is_private_and_is_removed_only_after_success) {
  std::string path;
  {
    const auto recorder = make(0);
    path = recorder->path();
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_EQ(list_flight_records(), std::vector{path}) << "without a good end it stays";
  EXPECT_FALSE(FlightRecorder::create({.attempt = "attempt"}).ok() && list_flight_records().size() > 1)
      << "of one name there is one flight recorder";
  unlink(path.c_str());
  const auto recorder = make(0);
  recorder->end_well();
}

TEST_F(FlightRecords, other_files_are_not_flight_records) {
  const auto recorder = make(0);
  const std::string path = folder_ / (std::string(kFlightRecordPrefix) + "broken");
  EXPECT_FALSE(read_flight_record(path).ok());
  for (const size_t bytes : {size_t{0}, size_t{100}, flight::kActionsOffset}) {
    std::ifstream from(recorder->path(), std::ios::binary);
    std::string text(bytes, '\0');
    from.read(text.data(), static_cast<std::streamsize>(bytes));
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_FALSE(read_flight_record(path).ok()) << bytes << " bytes";
  }
  std::ofstream(path, std::ios::binary) << std::string(recorder->bytes(), 'x');
  const auto garbage = read_flight_record(path);
  ASSERT_FALSE(garbage.ok());
  EXPECT_NE(garbage.error().message.find("not a flight record"), std::string::npos);
}

// All users may write to the folder: no file with a flight recorder's name may block a search.
TEST_F(FlightRecords, a_fifo_and_a_link_are_refused) {
  const auto recorder = make(0);
  const std::string fifo = folder_ / (std::string(kFlightRecordPrefix) + "fifo"),
                    link = folder_ / (std::string(kFlightRecordPrefix) + "link");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_EQ(symlink(recorder->path().c_str(), link.c_str()), 0);
  EXPECT_FALSE(read_flight_record(fifo).ok());
  EXPECT_FALSE(read_flight_record(link).ok());
  EXPECT_EQ(list_flight_records(), std::vector{recorder->path()});
}

TEST_F(FlightRecords, scopes_count_on_the_thread_that_trains_alone) {
  const auto recorder = make(0);
  const ProcessFlightRecorder process(recorder.get());
  {
    const PhaseScope phase(RunPhase::kCheckpoint);
    const HostScope waits(HostState::kAwaitsJob);
    log_line_info("said");
    RankRecord record = read(*recorder);
    EXPECT_EQ(record.phase, RunPhase::kCheckpoint);
    EXPECT_EQ(record.host_state, HostState::kAwaitsJob);
    ASSERT_FALSE(record.log.empty());
    EXPECT_EQ(record.log.back().text, "said");
    std::thread([] { const HostScope other(HostState::kAwaitsData); }).join();
    EXPECT_EQ(read(*recorder).host_state, HostState::kAwaitsJob);
  }
  const RankRecord record = read(*recorder);
  EXPECT_EQ(record.phase, RunPhase::kSetup);
  EXPECT_EQ(record.host_state, HostState::kWorks);
}

TEST_F(FlightRecords, a_connection_names_its_members_or_none) {
  const auto recorder = make(0);
  const ProcessFlightRecorder process(recorder.get());
  std::vector<int> many(1000), scattered{0, 1, 3};
  for (int i = 0; i < 1000; ++i) many[static_cast<size_t>(i)] = 2 * i;
  {
    const ConnectionScope connection("group dp", many);
    const RankRecord record = read(*recorder);
    EXPECT_EQ(record.host_state, HostState::kConnects);
    EXPECT_EQ(record.connection, connection_id("group dp", many));
    EXPECT_EQ(record.connection_name, "group dp");
    EXPECT_EQ(record.connection_set, (RankSet{0, 2, 1000}));
    EXPECT_TRUE(record.connection_members.empty());
  }
  RankRecord record = read(*recorder);
  EXPECT_EQ(record.host_state, HostState::kWorks);
  EXPECT_EQ(record.connection, 0u);
  EXPECT_EQ(record.connections_done, std::vector<uint64_t>{connection_id("group dp", many)});
  {
    const ConnectionScope connection("memory for data", scattered);
    record = read(*recorder);
    EXPECT_EQ(record.connection_set, RankSet{});
    EXPECT_EQ(record.connection_members, scattered);
  }
  many.back() = 5000;  // more than can be named, and not a progression
  const ConnectionScope connection("group dp", many);
  record = read(*recorder);
  EXPECT_EQ(record.connection_set, RankSet{});
  EXPECT_TRUE(record.connection_members.empty());
}

TEST(FlightRecorder, groups_are_progressions_of_ranks) {
  EXPECT_EQ(rank_set({3, 7, 11}), (RankSet{3, 4, 3}));
  EXPECT_EQ(rank_set({5, 1}), (RankSet{5, -4, 2}));
  EXPECT_EQ(rank_set({5}), (RankSet{5, 1, 1}));
  EXPECT_EQ(rank_set({0, 1, 3}), RankSet{});
  EXPECT_NE(connection_id("tp", {0, 1}), connection_id("tp", {2, 3}));
  EXPECT_NE(connection_id("tp", {0, 1}), connection_id("dp", {0, 1}));
}

// Paths have up to 4095 bytes and host names 64: comparisons must see all of them.
TEST_F(FlightRecords, long_names_are_whole) {
  std::string deep = "/runs";
  while (deep.size() < 4000) deep += "/" + std::string(150, 'd');
  const std::string attempt(64, 'a');
  const auto recorder =
      value_or_throw(FlightRecorder::create({.attempt = attempt, .job = "supervised-" + attempt, .run_dir = deep}));
  EXPECT_EQ(read(*recorder).run_dir, deep);
  EXPECT_EQ(read(*recorder).attempt, attempt);
  EXPECT_EQ(read(*recorder).job, "supervised-" + attempt);
  const auto refused = FlightRecorder::create({.attempt = "b", .run_dir = std::string(4096, 'd')});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("run.dir has 4096 bytes, but at most 4095"), std::string::npos)
      << refused.error().message;
}

TEST_F(FlightRecords, the_newest_connections_are_known_however_many_there_were) {
  const auto recorder = make(0);
  const ProcessFlightRecorder process(recorder.get());
  std::vector<uint64_t> done;
  for (int i = 0; i < flight::kMaxConnections + 40; ++i) {
    const std::string name = fmt::format("group {}", i);
    const ConnectionScope connection(name, {0, 1});
    done.push_back(connection_id(name, {0, 1}));
  }
  done.erase(done.begin(), done.begin() + 40);
  EXPECT_EQ(read(*recorder).connections_done, done);
}

TEST_F(FlightRecords, a_channel_too_many_is_said) {
  const auto recorder = make(0);
  for (int i = 0; i < flight::kMaxChannels; ++i)
    ASSERT_NE(recorder->add_channel(fmt::format("c{}", i), ChannelKind::kCollectives, rank_set({0, 1}), 0), nullptr);
  testing::internal::CaptureStderr();
  EXPECT_EQ(recorder->add_channel("one more", ChannelKind::kCollectives, rank_set({0, 1}), 0), nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("a hang in \"one more\" may be attributed to another place"), std::string::npos) << log;
}

// A flight recorder of the previous or the next version begins with the same fields.
TEST_F(FlightRecords, whose_process_a_file_is_of_is_known_of_any_version) {
  const auto recorder = make(0);
  recorder->image().version = flight::kVersion + 1;
  EXPECT_FALSE(read_flight_record(recorder->path()));
  EXPECT_EQ(state_of_recorded_process(recorder->path()), ProcessState::kRuns);
  recorder->image().process_start -= 1;
  EXPECT_EQ(state_of_recorded_process(recorder->path()), ProcessState::kGone);
  recorder->image().process_namespace += 1;
  EXPECT_EQ(state_of_recorded_process(recorder->path()), ProcessState::kUnknown);
  recorder->image().magic = 0;
  EXPECT_EQ(state_of_recorded_process(recorder->path()), ProcessState::kUnknown);
  EXPECT_EQ(state_of_recorded_process(folder_ / "none"), ProcessState::kUnknown);
}

}  // namespace
}  // namespace tri
