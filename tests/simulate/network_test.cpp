// Flows on switches: by hand, by their defining properties, and against published simulations and measurements.
#include "lib/simulate/network/network.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <limits>

#include "io/base/random.h"

namespace tri {
namespace {

constexpr double kGb = 1e9;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

Path path_of(std::initializer_list<int> links) {
  Path path;
  for (const int link : links) path.push(link);
  return path;
}

TEST(FairShare, a_collision_halves_both_and_leaves_the_rest) {
  // Links 0, 1, 2: adapters of 1; link 3: shared by the first two, 1; link 4: used only by the third.
  const std::vector<double> capacities{1, 1, 1, 1, 1};
  const std::vector<Path> flows{path_of({0, 3}), path_of({1, 3}), path_of({2, 4})};
  const FlowRates rates = fair_share(capacities, flows, kNoLimit);
  EXPECT_EQ(rates.rate, (std::vector<double>{0.5, 0.5, 1}));
  EXPECT_EQ(rates.bottleneck, (std::vector<int>{1, 1, 0}));
}

TEST(FairShare, what_a_slow_flow_leaves_goes_to_the_others) {
  // Three flows over link 0 of 10; link 1 limits the first to 1.
  const std::vector<double> capacities{10, 1};
  const std::vector<Path> flows{path_of({1, 0}), path_of({0}), path_of({0})};
  EXPECT_EQ(fair_share(capacities, flows, kNoLimit).rate, (std::vector<double>{1, 4.5, 4.5}));
}

TEST(FairShare, what_a_limit_leaves_goes_to_no_flow) {
  const std::vector<double> capacities{10, 3};
  const std::vector<Path> flows{path_of({0}), path_of({0}), path_of({0, 1}), path_of({0, 1})};
  const FlowRates rates = fair_share(capacities, flows, 2.5);
  EXPECT_EQ(rates.rate, (std::vector<double>{2.5, 2.5, 1.5, 1.5}));
  EXPECT_EQ(rates.bottleneck, (std::vector<int>{0, 0, 1, 1}));
}

// Adapters 0 and 1 send into link 4, which is full. The port before it, link 3, is paused, and with it the flow of
// adapter 2, which goes elsewhere.
TEST(FairShare, a_paused_port_delays_flows_that_only_pass_through) {
  const std::vector<double> capacities{1, 1, 1, 2, 0.5, 1};
  const std::vector<Path> flows{path_of({0, 3, 4}), path_of({1, 4}), path_of({2, 3, 5})};
  EXPECT_EQ(fair_share(capacities, flows, kNoLimit).rate, (std::vector<double>{0.25, 0.25, 1}));
  EXPECT_EQ(head_of_line(capacities, flows, kNoLimit).rate, (std::vector<double>{0.25, 0.25, 0.25}));
  // Without the collision no port is paused.
  const std::vector<double> wide{1, 1, 1, 2, 2, 1};
  EXPECT_EQ(head_of_line(wide, flows, kNoLimit).rate, (std::vector<double>{1, 1, 1}));
}

// On random networks: no link exceeds its capacity, and every flow has a full link on which no other gets more.
TEST(FairShare, is_max_min_on_any_network) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> capacities;
    for (uint64_t link = 0; link < 30; ++link) capacities.push_back(1 + 9 * random_uniform(seed, link));
    std::vector<Path> flows;
    for (uint64_t flow = 0; flow < 80; ++flow) {
      Path path;
      for (int link = static_cast<int>(random_u64(seed, 1000 + flow) % 5); link < 30 && path.size < 6;
           link += 1 + static_cast<int>(random_u64(seed, 2000 + 10 * flow + static_cast<uint64_t>(link)) % 12))
        path.push(link);
      flows.push_back(path);
    }
    for (const bool pauses : {false, true}) {
      const FlowRates rates =
          pauses ? head_of_line(capacities, flows, kNoLimit) : fair_share(capacities, flows, kNoLimit);
      std::vector<double> load(capacities.size(), 0.0), most(capacities.size(), 0.0);
      for (size_t flow = 0; flow < flows.size(); ++flow)
        for (const int link : flows[flow]) {
          load[static_cast<size_t>(link)] += rates.rate[flow];
          most[static_cast<size_t>(link)] = std::max(most[static_cast<size_t>(link)], rates.rate[flow]);
        }
      for (size_t link = 0; link < load.size(); ++link) EXPECT_LE(load[link], capacities[link] * (1 + 1e-9));
      if (pauses) continue;
      for (size_t flow = 0; flow < flows.size(); ++flow) {
        bool held = false;
        for (const int link : flows[flow]) {
          const auto l = static_cast<size_t>(link);
          held |= load[l] >= capacities[l] * (1 - 1e-9) && rates.rate[flow] >= most[l] * (1 - 1e-9);
        }
        EXPECT_TRUE(held) << "flow " << flow << " of seed " << seed << " could get more";
      }
    }
  }
}

Cluster megascale() {
  return read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/a100_megascale.yaml").value();
}

// A path goes up and down over the links of its own switches, in every layer.
TEST(Clos, a_way_is_as_long_as_it_must_be) {
  const Cluster c = megascale();
  const Clos clos(c, 1536);
  const auto adapter = [](int machine, int index) { return static_cast<uint32_t>(machine * 8 + index); };
  const auto names = [&](uint32_t from, uint32_t to) {
    std::vector<std::string> list;
    for (const int link : clos.route(7, {.from = from, .to = to, .source_port = 50000}))
      list.push_back(clos.link_name(link));
    return list;
  };
  const auto same = names(adapter(0, 3), adapter(63, 3));  // 64 machines share a block of 8 switches, one per rail
  EXPECT_EQ(same, (std::vector<std::string>{"adapter 3 out", "adapter 507 in"}));
  const auto rail = names(adapter(0, 3), adapter(0, 4));
  ASSERT_EQ(rail.size(), 4u);
  EXPECT_TRUE(rail[1].starts_with("switch 3 up ") && rail[2].starts_with("switch 4 down ")) << rail[1] << rail[2];
  EXPECT_EQ(rail[1].substr(rail[1].rfind(' ')), rail[2].substr(rail[2].rfind(' '))) << "through one spine switch";
  const auto far = names(adapter(0, 0), adapter(1535, 0));
  ASSERT_EQ(far.size(), 6u);
  EXPECT_TRUE(far[2].starts_with("pod 0 spine ") && far[3].starts_with("pod 5 spine ")) << far[2] << far[3];
  EXPECT_EQ(clos.capacities().size(), 2u * 12288 + 2u * 192 * 32 + 2u * 6 * 32 * 32);
}

TEST(Clos, says_what_does_not_fit) {
  Cluster c = megascale();
  EXPECT_EQ(Clos::problem_of(c, 1536), "");
  c.fabric.layers = 2;
  EXPECT_EQ(Clos::problem_of(c, 256), "");
  EXPECT_NE(Clos::problem_of(c, 257).find("set fabric.layers to 3"), std::string::npos);
  c.fabric.rails = false;
  c.fabric.down_ports = 4;
  EXPECT_NE(Clos::problem_of(c, 1).find("fabric.down_ports 4"), std::string::npos);
  const auto bad = parse_cluster("fabric:\n  layer: 3\n  retry_count: 9\n", "x.yaml", {});
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("did you mean fabric.layers"), std::string::npos) << bad.error().message;
  EXPECT_NE(bad.error().message.find("x.yaml:3"), std::string::npos) << bad.error().message;
}

// One switch: `crossing` of its 64 adapters of 25 GB/s send upwards, each with `pairs` queue pairs.
struct SwitchTimes {
  double mean = 0, slowest = 0, overloaded = 0;
};
SwitchTimes one_switch(int crossing, int pairs, int uplinks, double up_gb) {
  constexpr int kTrials = 2000;
  SwitchTimes sums;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> capacities(static_cast<size_t>(crossing), 25 * kGb);
    capacities.resize(capacities.size() + static_cast<size_t>(uplinks), up_gb * kGb);
    std::vector<Path> flows;
    std::vector<int> used(static_cast<size_t>(uplinks), 0);
    for (int adapter = 0; adapter < crossing; ++adapter)
      for (int pair = 0; pair < pairs; ++pair) {
        const auto number = static_cast<uint64_t>(adapter * pairs + pair);
        const FiveTuple flow{static_cast<uint32_t>(adapter), static_cast<uint32_t>(1000 + adapter),
                             source_port(static_cast<uint64_t>(trial), number)};
        const int up = ecmp_link(static_cast<uint64_t>(trial), 0, flow, uplinks);
        ++used[static_cast<size_t>(up)];
        flows.push_back(path_of({adapter, crossing + up}));
      }
    const FlowRates rates = fair_share(capacities, flows, 25 * kGb / pairs);
    double slowest = 1, sum = 0;
    for (int adapter = 0; adapter < crossing; ++adapter) {
      double rate = 0;
      for (int pair = 0; pair < pairs; ++pair) rate += rates.rate[static_cast<size_t>(adapter * pairs + pair)];
      slowest = std::min(slowest, rate / (25 * kGb));
      sum += rate / (25 * kGb);
    }
    sums.mean += sum / crossing / kTrials;
    sums.slowest += slowest / kTrials;
    sums.overloaded += *std::ranges::max_element(used) * 25.0 / pairs > up_gb ? 1.0 / kTrials : 0;
  }
  return sums;
}

// Independent simulations of MegaScale's switch, with and without its split of 400G ports into two of 200G.
TEST(Ecmp, collisions_are_as_rare_as_others_find_them) {
  struct Row {
    int crossing, pairs, uplinks;
    double up_gb, mean, slowest;
  };
  for (const Row& row : {Row{16, 1, 32, 50, .97, .88}, Row{16, 4, 32, 50, 1, 1}, Row{64, 1, 32, 50, .73, .38},
                         Row{64, 4, 32, 50, .86, .67}, Row{64, 16, 32, 50, .93, .88}, Row{16, 1, 64, 25, .88, .54},
                         Row{64, 1, 64, 25, .64, .27}}) {
    const SwitchTimes times = one_switch(row.crossing, row.pairs, row.uplinks, row.up_gb);
    EXPECT_NEAR(times.mean, row.mean, 0.02) << row.crossing << " flows x " << row.pairs;
    EXPECT_NEAR(times.slowest, row.slowest, 0.03) << row.crossing << " flows x " << row.pairs;
  }
  struct Odds {
    int crossing;
    double split, whole;
  };
  for (const Odds& row : {Odds{4, .004, .09}, Odds{8, .05, .36}, Odds{16, .36, .88}}) {
    EXPECT_NEAR(one_switch(row.crossing, 1, 32, 50).overloaded, row.split, 0.03) << row.crossing;
    EXPECT_NEAR(one_switch(row.crossing, 1, 64, 25).overloaded, row.whole, 0.03) << row.crossing;
  }
}

double bus_gb(const Cluster& c, double bytes, int ranks, int on_node) {
  const double seconds = NetworkTimes(c, {}).seconds({Collective::kAllReduce, bytes, ranks, on_node});
  return 2 * bytes * (ranks - 1) / ranks / seconds / kGb;
}

// nccl-tests on A100 machines: all-reduces of 8 GPUs over NVLink, and of 16 on two machines.
TEST(Algorithms, all_reduces_take_as_long_as_measured) {
  const Cluster c = megascale();
  struct Row {
    double mib, bus_gb;
    int ranks;
    double within;
  };
  for (const Row& row : {Row{4, 53, 16, .1}, Row{16, 95, 16, .2}, Row{64, 133, 16, .12}, Row{256, 169, 16, .03},
                         Row{1024, 182, 16, .03}, Row{8192, 188, 16, .03}, Row{4, 77, 8, .1}, Row{16, 126, 8, .3},
                         Row{48, 200, 8, .03}, Row{1024, 229, 8, .03}}) {
    const double predicted = bus_gb(c, row.mib * 1048576, row.ranks, 8);
    EXPECT_NEAR(predicted / row.bus_gb, 1, row.within) << row.mib << " MiB on " << row.ranks << ": " << predicted;
  }
}

// NCCL's formulas by hand, for one group with one rank per machine, with NCCL's constants.
TEST(Algorithms, follow_nccls_formulas) {
  Cluster c;
  c.node = {.ranks = 8, .gb_per_s = 200, .latency_us = 3.4, .start_us = 8.4};
  c.network.gb_per_s = 25;
  c.network.share = 1;
  c.network.latency_us = 14;
  c.fabric.pat = c.fabric.quick_protocols = true;
  c.fabric.hierarchical = true;
  const auto time_of = [&](const Transfer& transfer, CollectiveAlgorithm algorithm, Protocol protocol) {
    for (const AlgorithmTime& time : algorithm_times(c, transfer, 1))
      if (time.algorithm == algorithm && time.protocol == protocol) return time.total();
    return -1.0;
  };
  const Transfer gather{Collective::kAllGather, 1e9, 64, 1};
  EXPECT_NEAR(time_of(gather, CollectiveAlgorithm::kRing, Protocol::kSimple), 8.4e-6 + 63 * 14e-6 + 63.0 / 64 / 25,
              1e-9);
  EXPECT_NEAR(time_of(gather, CollectiveAlgorithm::kRing, Protocol::kLL128), 14e-6 + 63 * 4e-6 + 63.0 / 64 / 25 / .92,
              1e-9);
  EXPECT_NEAR(time_of(gather, CollectiveAlgorithm::kPat, Protocol::kSimple),
              8.4e-6 + 6 * 4e-6 + 64 * 2.8e-6 + 63.0 / 64 / 25 / .75, 1e-9);
  EXPECT_EQ(time_of(gather, CollectiveAlgorithm::kTree, Protocol::kSimple), -1) << "a tree reduces all or nothing";
  const Transfer reduce{Collective::kAllReduce, 1e6, 64, 8};
  EXPECT_NEAR(time_of(reduce, CollectiveAlgorithm::kTree, Protocol::kLL128),
              14e-6 + 2 * (7 * 1.25e-6 + 3 * 8.5e-6) + 2e6 / (200e9 * .92 * 120 / 128), 1e-9);
  EXPECT_NEAR(time_of(reduce, CollectiveAlgorithm::kHierarchical, Protocol::kSimple),
              2 * (8.4e-6 + 7 * 3.4e-6 + 7 * 14e-6 + 7.0 / 8 * 1e6 / 200e9 + 7.0 / 8 * 1e6 / 8 / 25e9), 1e-9);
  // Small ones use few steps, large ones bandwidth.
  EXPECT_EQ(algorithm_times(c, gather, 1).front().algorithm, CollectiveAlgorithm::kRing);
  Transfer small = gather;
  small.bytes = 1e5;
  EXPECT_EQ(algorithm_times(c, small, 1).front().protocol, Protocol::kLL);
  Transfer wide = {Collective::kAllGather, 1e7, 1536, 1};
  EXPECT_EQ(algorithm_times(c, wide, 1).front().algorithm, CollectiveAlgorithm::kPat);
}

// nccl-tests on 1,024 H100: the share of the adapters' bandwidth that ring collectives reach, limited by the latency of
// a thousand steps.
TEST(Algorithms, a_thousand_ranks_are_as_slow_as_measured) {
  const Cluster c = read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/h100_nemo.yaml").value();
  const NetworkTimes times(c, {});
  for (const auto& [mib, share] : {std::pair{16.0, .0087}, std::pair{1024.0, .31}, std::pair{8192.0, .76}}) {
    const double bytes = mib * 1048576;
    const double bus = bytes * 1023 / 1024 / times.seconds({Collective::kReduceScatter, bytes, 1024, 8});
    EXPECT_NEAR(bus / (8 * 50 * kGb * c.network.share) / share, 1, .25) << mib << " MiB";
  }
}

Workload small_job() {
  Workload w;
  w.model.layers = 32;
  w.model.hidden = 4096;
  w.model.heads = w.model.kv_heads = 32;
  w.model.head_dim = 128;
  w.model.ffn_hidden = 16384;
  w.model.vocab = 51200;
  w.model.seq_len = 2048;
  w.tp = 8;
  w.pp = 4;
  w.dp = 16;
  w.global_batch = 256;
  return w;
}

TEST(Network, traffic_is_what_groups_send) {
  const Workload w = small_job();  // 512 ranks, 64 machines
  const Cluster c = megascale();
  const auto places = place_machines(64, Placement::kPacked, 1);
  const auto traffic = traffic_of(w, c, places);
  ASSERT_EQ(traffic.size(), 4u);
  EXPECT_TRUE(traffic[0].connections.empty()) << "tp stays inside machines";
  EXPECT_EQ(traffic[1].connections.size(), 128u * 3);
  EXPECT_EQ(traffic[2].connections.size(), 128u * 3);
  EXPECT_EQ(traffic[3].connections.size(), 32u * 16);
  // Every adapter sends one flow into each ring and receives one: conservation.
  std::vector<int> out(512, 0), in(512, 0);
  for (const Connection& connection : traffic[3].connections) {
    ++out[static_cast<size_t>(connection.from)];
    ++in[static_cast<size_t>(connection.to)];
    EXPECT_EQ(connection.from % 8, connection.to % 8) << "on its rail";
  }
  EXPECT_EQ(std::ranges::count(out, 1), 512);
  EXPECT_EQ(std::ranges::count(in, 1), 512);
  Workload halves = w;  // tp 4: two members of a dp group share a machine, which needs half as many flows
  halves.tp = 4;
  halves.dp = 32;
  const auto rings = traffic_of(halves, c, places).back();
  EXPECT_EQ(rings.on_node, 2);
  EXPECT_EQ(rings.connections.size(), 16u * 16 * 2);
}

// Whatever the axes and their order: with one rank per machine, adapters are ranks.
TEST(Network, connections_are_those_of_the_mesh) {
  Workload w = small_job();
  w.tp = 2, w.cp = 2, w.dp = 3, w.pp = 4;
  std::vector<AxisSize> sizes{{"tp", 2}, {"cp", 2}, {"dp", 3}, {"pp", 4}};
  for (size_t i = 0; i < kAxes.size(); ++i)
    if (const AxisName axis = AxisName::at(i); kOtherAxes.contains(axis)) {
      w.others.push_back({axis, 2});
      sizes.push_back({axis, 2});
    }
  const Mesh mesh = make_mesh(0, sizes);
  EXPECT_EQ(w.grid(), mesh.grid);
  EXPECT_EQ(w.ranks(), mesh.world_size());
  EXPECT_EQ(w.reducing(), mesh.joint_axis(kBucketAxes).size);
  Cluster c = megascale();
  c.node.ranks = 1;
  const auto traffic = traffic_of(w, c, place_machines(w.ranks(), Placement::kPacked, 1));
  ASSERT_EQ(traffic.size(), 5u);
  const auto along = [&](const AxisTraffic& of_axis, AxisSet axes, int per_group) {
    EXPECT_EQ(of_axis.groups * of_axis.ranks, w.ranks()) << of_axis.name;
    EXPECT_EQ(std::ssize(of_axis.connections), int64_t{of_axis.groups} * per_group) << of_axis.name;
    for (const Connection& connection : of_axis.connections) {
      const std::vector<int> group = Mesh{mesh.grid, connection.from}.group(axes);
      EXPECT_NE(std::ranges::find(group, connection.to), group.end()) << of_axis.name << connection.from;
    }
  };
  along(traffic[0], {"tp"}, w.tp);
  along(traffic[1], {"cp"}, w.cp);
  along(traffic[2], {"pp"}, w.pp - 1);
  along(traffic[3], {"pp"}, w.pp - 1);
  along(traffic[4], kBucketAxes, w.reducing());
}

TEST(Network, answers_repeat_and_depend_on_the_seed) {
  const Workload w = small_job();
  const Cluster c = megascale();
  const NetworkOptions scattered{.seed = 3, .placement = Placement::kScattered};
  const auto a = analyse_network(w, c, scattered), b = analyse_network(w, c, scattered);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(to_json(a.value(), c), to_json(b.value(), c));
  EXPECT_TRUE(nlohmann::json::accept(to_json(a.value(), c)));
  EXPECT_NE(place_machines(64, Placement::kScattered, 3), place_machines(64, Placement::kScattered, 4));
}

// One block of switches holds 64 machines: whether packed or not, nothing crosses. Over four blocks a randomly placed
// job crosses, collides, and is slower; more queue pairs spread the traffic; the bound is below the fair share.
TEST(Network, placement_and_queue_pairs_matter_where_switches_are_crossed) {
  Workload w = small_job();
  Cluster c = megascale();
  c.fabric.queue_pairs = 1;
  const auto share = [&](Placement placement) {
    const auto network = analyse_network(w, c, {.seed = 1, .placement = placement}).value();
    return network.axes.back();
  };
  EXPECT_EQ(share(Placement::kScattered).fair.alone.slowest, 1) << "one block";
  w.dp = 64;
  w.global_batch = 1024;  // 256 machines
  const AxisNetwork packed = share(Placement::kPacked), scattered = share(Placement::kScattered);
  EXPECT_LT(packed.other_switch, 0.05);
  EXPECT_GT(scattered.other_switch, 0.6);
  EXPECT_LT(scattered.fair.alone.slowest, 0.7);
  EXPECT_LE(scattered.head_of_line.alone.slowest, scattered.fair.alone.slowest);
  EXPECT_FALSE(scattered.why_alone.name.empty());
  EXPECT_GT(scattered.why_alone.wanted_gb_per_s, scattered.why_alone.gb_per_s);
  c.fabric.queue_pairs = 16;
  EXPECT_GT(share(Placement::kScattered).fair.alone.slowest, scattered.fair.alone.slowest + 0.1);
}

// With unlimited cables only compute remains, whatever the rest of the network is like.
TEST(Network, without_limits_only_compute_is_left) {
  const Workload w = small_job();
  Cluster c = megascale();
  c.node.gb_per_s = c.network.gb_per_s = c.fabric.up_gb_per_s = 1e15;
  c.node.latency_us = c.network.latency_us = c.node.start_us = c.software.skew_us = 0;
  const auto network = analyse_network(w, c, {.placement = Placement::kScattered});
  ASSERT_TRUE(network);
  const StepPrediction step = predict_step(w, c, NetworkTimes(c, {}));
  EXPECT_NEAR(step.parts.tp + step.parts.pp + step.parts.dp, 0, 1e-9);
  EXPECT_NEAR(network.value().head_of_line_s, step.seconds, 1e-9);
}

// The program's model of a ring and NCCL's model agree if both use only rings of whole chunks.
TEST(Network, a_ring_of_whole_chunks_is_that_of_the_step_model) {
  const Cluster c = megascale();
  const Transfer transfer{Collective::kReduceScatter, 1e9, 192, 1};
  double ring = 0;
  for (const AlgorithmTime& time : algorithm_times(c, transfer, 1))
    if (time.algorithm == CollectiveAlgorithm::kRing && time.protocol == Protocol::kSimple) ring = time.total();
  EXPECT_DOUBLE_EQ(ring, RingTimes(c).seconds(transfer));
}

// Simulates single flaps, retransmission by retransmission.
TEST(Flaps, odds_are_those_of_simulated_flaps) {
  ClusterFabric f;
  f.timeout_exponent = 18;
  f.retry_count = 4;
  f.flap_s = 3;
  f.flaps_per_link_day = 0.01;
  constexpr int kTrials = 200000;
  const double timeout = 4.096e-6 * 262144;
  EXPECT_NEAR(retransmit_seconds(f), timeout, 1e-12);
  double dies = 0, stall = 0;
  for (int i = 0; i < kTrials; ++i) {
    const double away = -f.flap_s * std::log(1 - random_uniform(1, static_cast<uint64_t>(i)));
    int sent = 1;  // retransmissions
    while (sent <= f.retry_count && sent * timeout < away) ++sent;
    if (sent > f.retry_count)
      dies += 1;
    else
      stall += sent * timeout;
  }
  const FlapOdds odds = flap_odds(f, 1000);
  EXPECT_NEAR(odds.dies, dies / kTrials, 0.005);
  EXPECT_NEAR(odds.stall_s, stall / (kTrials - dies), 0.02);
  EXPECT_NEAR(odds.deaths_a_day, 10 * odds.dies, 1e-9);
}

TEST(Network, says_that_a_million_ranks_take_minutes) {
  EXPECT_EQ(duration_note(12288), "");
  EXPECT_NE(duration_note(1 << 20).find("1048576 ranks, which takes about 6 min"), std::string::npos);
}

}  // namespace
}  // namespace tri
