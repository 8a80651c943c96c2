// The driver's port with real sockets: agents are served, and other peers cost them nothing. The clock is simulated;
// messages, bytes and connections are counted.
#include "lib/supervise/agent_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "lib/comm/host/message_layout.h"
#include "lib/supervise/agent.h"
#include "tests/io/temporary_folder.h"
#include "tests/supervise/simulated_agent.h"

namespace tri {
namespace {

constexpr int kMostTurns = 2000;  // of ten milliseconds: what has not arrived by then counts as lost

class AgentServerTest : public ::testing::Test {
 protected:
  void open(const AgentServer::Limits& limits = {}) {
    server = value_or_throw(AgentServer::open(token, 0, limits, [this] { return now; }));
  }
  void turn() {
    for (const AgentReport& report : server->poll(1)) ++handled[report.node];
  }
  // Returns whether `holds` becomes true; meanwhile serves all ends.
  bool until(const std::function<bool()>& holds) {
    for (int i = 0; i < kMostTurns; ++i) {
      if (holds()) return true;
      for (const AgentReport& report : server->poll(10)) ++handled[report.node];
      for (const auto& agent : agents)
        if (agent.get() != deaf) agent->pump();
    }
    return holds();
  }
  // Adds an agent that has reported once.
  SimulatedAgent& known_agent(const std::string& node, int64_t start = 1) {
    agents.push_back(std::make_unique<SimulatedAgent>(server->port(), token, node, start));
    SimulatedAgent& agent = *agents.back();
    EXPECT_TRUE(until([&] { return agent.is_greeted(); }));
    expect_served(agent);
    return agent;
  }
  // Checks that as many reports as were sent are handled.
  void expect_served(SimulatedAgent& agent, int reports = 1) {
    const int before = handled[agent.report.node];
    for (int i = 0; i < reports; ++i) agent.send_report();
    EXPECT_TRUE(until([&] { return handled[agent.report.node] == before + reports; })) << agent.report.node;
  }
  static bool is_closed(int fd) {
    bool open = true;
    while (open && !take_bytes(fd, 4096, open).empty()) continue;
    return !open;
  }
  bool until_closed(int fd) {
    return until([&] { return is_closed(fd); });
  }

  double now = 1000;
  const JobToken token = new_token();
  std::unique_ptr<AgentServer> server;
  std::map<std::string, int> handled;  // reports, by node
  std::vector<std::unique_ptr<SimulatedAgent>> agents;
  const SimulatedAgent* deaf = nullptr;  // reads nothing
};

// From the largest possible node.
TEST(AgentReports, fit_into_a_frame_and_a_hello_into_what_unauthenticated_peers_may_send) {
  AgentReport report{.node = std::string(60, 'n'), .host = std::string(60, 'h'), .start = 1};
  EXPECT_LT(to_bytes(AgentHello{.node = report.node, .host = report.host}).size(),
            AgentServer::Limits{}.hello_bytes / 8);
  report.attempt = std::string(60, 'a');
  report.ranks.resize(1000);
  report.ports.resize(1000, {.name = std::string(15, 'p')});
  report.gpus.resize(100, {.pci = "0000:18:00.0", .xids = std::vector<int>(16)});
  report.lines.resize(1000, std::string(5000, 'x'));
  keep_within_a_frame(report);
  EXPECT_EQ(report.ranks.size(), 256u);
  EXPECT_GT(to_bytes(report).size(), AgentServer::Limits{}.hello_bytes) << "why there is a hello";
  EXPECT_LT(to_bytes(report).size(), kMaxPayload);
}

TEST_F(AgentServerTest, a_real_agent_that_connects_again_reports_its_attempt) {
  open();
  const TemporaryFolder folder;
  std::thread thread([&] {
    run_agent({.run_dir = folder.path(),
               .node = "node1",
               .program = "/nonexistent",
               .token = token,
               .port = server->port(),
               .addresses = {"127.0.0.1"},
               .start = 3});
  });
  std::vector<AgentReport> reports;
  const auto comes = [&](const std::string& attempt) {
    for (int i = 0; i < kMostTurns && (reports.empty() || reports.back().attempt != attempt); ++i)
      for (AgentReport& report : server->poll(10)) reports.push_back(std::move(report));
    return !reports.empty() && reports.back().attempt == attempt;
  };
  EXPECT_TRUE(comes(""));
  ASSERT_TRUE(server->send("node1", {.kind = OrderKind::kWatch, .number = 7, .attempt = "attempt"}));
  EXPECT_TRUE(comes("attempt"));
  server->drop("node1");
  reports.clear();
  EXPECT_TRUE(comes("attempt"));
  EXPECT_EQ(reports.back().order, 7u);
  EXPECT_EQ(reports.back().start, 3);
  EXPECT_TRUE(server->take_foreign().empty());
  server->send("node1", {.kind = OrderKind::kLeave, .number = 8});
  thread.join();
}

TEST_F(AgentServerTest, reports_and_orders_arrive_whole_and_in_order) {
  open();
  auto& agent = known_agent("node1");
  auto& other = known_agent("node2");
  for (uint64_t number = 1; number <= 20; ++number)
    ASSERT_TRUE(server->send("node1", {.kind = OrderKind::kWatch, .number = number, .attempt = "attempt"}));
  ASSERT_TRUE(until([&] { return agent.orders.size() == 20; }));
  for (uint64_t number = 1; number <= 20; ++number) EXPECT_EQ(agent.orders[number - 1].number, number);
  EXPECT_EQ(agent.orders[3].attempt, "attempt");
  EXPECT_TRUE(other.orders.empty());
  EXPECT_FALSE(server->send("node3", {}));
  EXPECT_EQ(handled, (std::map<std::string, int>{{"node1", 1}, {"node2", 1}}));
}

TEST_F(AgentServerTest, garbage_is_refused_and_agents_are_served_meanwhile) {
  open();
  auto& agent = known_agent("node1");
  std::mt19937 random(16);
  std::vector<Descriptor> others;
  for (int i = 0; i < 200; ++i) {
    const Descriptor& other = others.emplace_back(connect_to_port(server->port()));
    std::string garbage(1 + random() % 60000, '\0');
    for (char& byte : garbage) byte = static_cast<char>(random());
    ::send(other.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    expect_served(agent);
    now += 0.1;  // an agent may send 50 reports per second
  }
  now += AgentServer::Limits{}.handshake_seconds + 1;  // for peers whose garbage is too short to be a frame
  for (const Descriptor& other : others) EXPECT_TRUE(until_closed(other.get()));
  EXPECT_TRUE(agent.is_open());
}

TEST_F(AgentServerTest, a_huge_length_is_refused_before_its_bytes_come) {
  open();
  auto& agent = known_agent("node1");
  const Descriptor other = connect_to_port(server->port());
  std::string bytes(sizeof(Nonce), 'n');
  bytes += std::string(kFrameHeader, '\xff');
  ASSERT_EQ(::send(other.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(until_closed(other.get()));
  expect_served(agent);
}

TEST_F(AgentServerTest, the_first_frame_is_small_and_later_ones_may_be_larger) {
  open();
  auto& agent = known_agent("node1");
  agent.report.lines.assign(60, std::string(1000, 'x'));
  expect_served(agent);
  SimulatedAgent eager(server->port(), token, "node2");
  eager.report.lines.assign(20, std::string(1000, 'x'));
  ASSERT_TRUE(until([&] { return eager.pump(), eager.is_greeted(); }));
  eager.send_bytes(eager.frame());
  EXPECT_TRUE(until([&] { return eager.pump(), !eager.is_open(); }));
  EXPECT_EQ(handled["node2"], 0);
  EXPECT_TRUE(server->take_foreign().empty()) << "it was not read";
}

TEST_F(AgentServerTest, slow_ones_are_dropped_when_their_time_is_over) {
  open();
  auto& agent = known_agent("node1");
  std::vector<Descriptor> slow;
  for (int i = 0; i < 100; ++i) slow.push_back(connect_to_port(server->port()));
  ASSERT_TRUE(until([&] { return std::all_of(slow.begin(), slow.end(), is_taken); }));
  for (int second = 0; second < 5; ++second) {
    for (const Descriptor& socket : slow) ::send(socket.get(), "x", 1, MSG_NOSIGNAL);
    expect_served(agent);
    for (const Descriptor& socket : slow) EXPECT_FALSE(is_closed(socket.get()));
    now += 1;
  }
  now += 1;
  turn();
  for (const Descriptor& socket : slow) EXPECT_TRUE(is_closed(socket.get()));
  expect_served(agent);
}

TEST_F(AgentServerTest, unauthenticated_peers_crowd_out_each_other_and_no_agent) {
  open({.unauthenticated = 20});
  auto& agent = known_agent("node1");
  std::vector<Descriptor> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(connect_to_port(server->port()));
  const auto closed = [&] {
    return std::count_if(crowd.begin(), crowd.end(), [](const Descriptor& socket) { return is_closed(socket.get()); });
  };
  ASSERT_TRUE(until([&] { return closed() == 280; }));
  expect_served(agent);
  EXPECT_EQ(closed(), 280);
  known_agent("node2");  // joins as the newest of them
}

TEST_F(AgentServerTest, what_was_recorded_is_refused_on_another_connection_and_on_its_own) {
  open();
  SimulatedAgent agent(server->port(), token, "node1");
  ASSERT_TRUE(until([&] { return agent.pump(), agent.is_greeted(); }));
  const std::string frame = agent.hello();
  agent.send_bytes(frame);
  agent.send_report();
  ASSERT_TRUE(until([&] { return handled["node1"] == 1; }));
  auto& other = known_agent("node2");
  // On another connection: the driver's own random number differs, whatever the agent's is.
  const Descriptor replay = connect_to_port(server->port());
  const std::string bytes = std::string(sizeof(Nonce), 'n') + frame;
  ::send(replay.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(until_closed(replay.get()));
  EXPECT_EQ(handled["node1"], 1);
  expect_served(other);
  // On its own connection: it is the first frame, but the third one is expected.
  agent.send_bytes(frame);
  EXPECT_TRUE(until([&] { return agent.pump(), !agent.is_open(); }));
  EXPECT_EQ(handled["node1"], 1);
  EXPECT_FALSE(server->connected("node1"));
  expect_served(other);
}

TEST_F(AgentServerTest, another_token_is_refused) {
  open();
  auto& agent = known_agent("node1");
  SimulatedAgent impostor(server->port(), new_token(), "node1", 2);
  ASSERT_TRUE(until([&] { return impostor.pump(), impostor.is_greeted(); }));
  impostor.send_report();
  EXPECT_TRUE(until([&] { return impostor.pump(), !impostor.is_open(); }));
  EXPECT_EQ(handled["node1"], 1);
  expect_served(agent);
}

TEST_F(AgentServerTest, connections_that_have_fallen_silent_are_dropped) {
  open();
  auto &silent = known_agent("node1"), &agent = known_agent("node2");
  for (int i = 0; i < 12; ++i) {
    now += 10;
    expect_served(agent);
    EXPECT_TRUE(server->connected("node1"));
  }
  now += 1;
  expect_served(agent);
  EXPECT_FALSE(server->connected("node1"));
  EXPECT_TRUE(until([&] { return !silent.is_open(); }));
  EXPECT_FALSE(server->send("node1", {}));
}

TEST_F(AgentServerTest, an_agent_that_floods_is_dropped_and_others_are_served) {
  open();
  auto &flood = known_agent("node1"), &agent = known_agent("node2");
  for (int i = 0; i < 200 && flood.is_open(); ++i) flood.send_report();
  EXPECT_TRUE(until([&] { return !flood.is_open(); }));
  EXPECT_EQ(handled["node1"], 50) << "of a second";
  expect_served(agent, 20);
  now += 1;
  known_agent("node1");  // it may connect again
}

TEST_F(AgentServerTest, no_more_connections_are_taken_than_a_second_may_bring) {
  open({.connections_a_second = 40});
  auto& agent = known_agent("node1");
  std::vector<Descriptor> flood;
  for (int i = 0; i < 500; ++i) flood.push_back(connect_to_port(server->port()));
  const auto taken = [&] { return std::count_if(flood.begin(), flood.end(), is_taken); };
  for (int i = 0; i < 40; ++i) {
    expect_served(agent);
    EXPECT_LE(taken(), 39) << "and the agent";
  }
  EXPECT_TRUE(until([&] { return taken() == 39; }));
  now += 1;
  EXPECT_TRUE(until([&] { return taken() == 79; }));
  expect_served(agent);
}

TEST_F(AgentServerTest, a_restarted_agent_replaces_the_one_before) {
  open();
  auto& first = known_agent("node1", 10);
  auto& second = known_agent("node1", 20);
  EXPECT_TRUE(until([&] { return !first.is_open(); }));
  SimulatedAgent late(server->port(), token, "node1", 15);  // woke up after its successor had started
  ASSERT_TRUE(until([&] { return late.pump(), late.is_greeted(); }));
  late.send_report();
  EXPECT_TRUE(until([&] { return late.pump(), !late.is_open(); }));
  expect_served(second);
  ASSERT_TRUE(server->send("node1", {.kind = OrderKind::kEnd, .number = 1}));
  EXPECT_TRUE(until([&] { return second.orders.size() == 1; }));
}

TEST_F(AgentServerTest, an_agent_that_does_not_fetch_its_orders_is_dropped) {
  open({.backlog_bytes = 10000});
  auto &deaf_one = known_agent("node1"), &agent = known_agent("node2");
  deaf = &deaf_one;
  const AgentOrder order{.kind = OrderKind::kWatch, .number = 1, .attempt = std::string(1000, 'a')};
  int sent = 0;
  while (sent < 100000 && server->send("node1", order)) ++sent;
  EXPECT_LT(sent, 100000);
  EXPECT_FALSE(server->connected("node1"));
  expect_served(agent);
}

TEST_F(AgentServerTest, invalid_messages_and_another_name_end_the_connection) {
  open();
  auto &agent = known_agent("node1"), &renamed = known_agent("node2");
  renamed.report.node = "node3";
  renamed.send_report();
  EXPECT_TRUE(until([&] { return !renamed.is_open(); }));
  EXPECT_EQ(handled["node3"], 0);
  // A holder of the token whose frame contains no report.
  const Descriptor raw = connect_to_port(server->port());
  std::string greeting;
  bool is_open = true;
  ASSERT_TRUE(
      until([&] { return greeting += take_bytes(raw.get(), 24 - greeting.size(), is_open), greeting.size() == 24; }));
  Nonce of_driver, own{1, 2};
  std::memcpy(of_driver.data(), greeting.data() + kGreeting.size(), sizeof of_driver);
  FrameWriter writer(session_key(token, of_driver, own), Direction::kToDriver);
  const std::string bytes =
      std::string(reinterpret_cast<const char*>(own.data()), sizeof own) + writer.frame("nonsense");
  ::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(until_closed(raw.get()));
  EXPECT_EQ(server->take_foreign(), std::vector<std::string>{""});
  expect_served(agent);
}

TEST_F(AgentServerTest, an_agent_of_another_build_is_named_and_not_served) {
  open();
  auto& agent = known_agent("node1");
  SimulatedAgent other(server->port(), token, "node2");
  other.layout ^= 1;
  ASSERT_TRUE(until([&] { return other.pump(), other.is_greeted(); }));
  other.send_report();
  EXPECT_TRUE(until([&] { return other.pump(), !other.is_open(); }));
  EXPECT_EQ(server->take_foreign(), std::vector<std::string>{"node2"});
  EXPECT_TRUE(server->take_foreign().empty());
  EXPECT_FALSE(server->connected("node2"));
  // An agent of a build that began with its whole report.
  SimulatedAgent old(server->port(), token, "node3");
  ASSERT_TRUE(until([&] { return old.pump(), old.is_greeted(); }));
  old.send_bytes(old.frame());
  EXPECT_TRUE(until([&] { return old.pump(), !old.is_open(); }));
  EXPECT_EQ(server->take_foreign(), std::vector<std::string>{"node3"});
  expect_served(agent);
}

TEST_F(AgentServerTest, one_for_this_machine_alone_listens_on_the_loopback) {
  const auto address_of = [&](AgentServer::Reach reach) {
    server = value_or_throw(AgentServer::open(
        token, 0, {}, [this] { return now; }, reach));
    std::ifstream in("/proc/net/tcp");
    const std::string wanted = fmt::format(":{:04X} 00000000:0000", server->port());
    for (std::string line; std::getline(in, line);)
      if (const size_t at = line.find(wanted); at != line.npos) return line.substr(at - 8, 8);
    return std::string();
  };
  EXPECT_EQ(address_of(AgentServer::Reach::kThisMachine), "0100007F");
  known_agent("node1");
  EXPECT_NE(address_of(AgentServer::Reach::kAnyMachine), "0100007F");
}

// The driver may be a program of another build: the agent closes the connection and connects again.
TEST(AgentOrders, that_make_no_sense_are_none) {
  const AgentOrder good{.kind = OrderKind::kWatch, .number = 3, .attempt = "a-1", .timeout = 5};
  ASSERT_TRUE(order_from(to_bytes(good)));
  EXPECT_EQ(order_from(to_bytes(good))->attempt, "a-1");
  const auto refuses = [&](const std::function<void(AgentOrder&)>& change) {
    AgentOrder order = good;
    change(order);
    return !order_from(to_bytes(order));
  };
  EXPECT_TRUE(refuses([](AgentOrder& o) { o.kind = static_cast<OrderKind>(77); }));
  EXPECT_TRUE(refuses([](AgentOrder& o) { o.attempt = "../etc"; }));
  EXPECT_TRUE(refuses([](AgentOrder& o) { o.timeout = -1; }));
  EXPECT_TRUE(refuses([](AgentOrder& o) { o.timeout = NAN; }));
  EXPECT_TRUE(refuses([](AgentOrder& o) { o.timeout = INFINITY; }));
  const std::string bytes = to_bytes(good);
  for (size_t length = 0; length < bytes.size(); ++length) EXPECT_FALSE(order_from(bytes.substr(0, length)));
  EXPECT_FALSE(order_from(bytes + "x"));
  std::mt19937 random(36);
  for (int i = 0; i < 2000; ++i) {
    std::string mutated = bytes;
    mutated[random() % mutated.size()] = static_cast<char>(random());
    order_from(mutated);
  }
}

TEST(AgentMessages, name_their_layout) {
  EXPECT_EQ(messages::layout_of<AgentOrder>(), "{e4(pulse|watch|end|doctor|leave|finish),u8,t,f8,}");
  EXPECT_EQ(messages::layout_of<std::vector<RankSight>>(),
            "v{i4,i4,b1,e4(" + enum_choices<ProcessState>() + "),e4(" + enum_choices<RunPhase>() + "),i8,u4,b1,f8,}");
  EXPECT_EQ(messages::layout_of<std::optional<int>>(), "oi4,");
}

}  // namespace
}  // namespace tri
