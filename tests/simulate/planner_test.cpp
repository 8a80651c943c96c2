// What a search may change and what it keeps, such as precision; and configs that are too large to search.
#include "lib/simulate/planner.h"

#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"
#include "lib/simulate/simulation.h"
#include "lib/simulate/step_model.h"

namespace tri {
namespace {

Config config_of(const std::vector<std::string>& overrides) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/gpt_13b.yaml";
  return value_or_throw(
      without_layout(value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, overrides))));
}
Config config_with(const std::string& gemm) { return config_of({"precision.gemm=" + gemm}); }

Cluster cluster_of(const std::string& name) {
  auto cluster = read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/" + name + ".yaml");
  EXPECT_TRUE(cluster) << cluster.error().message;
  return cluster.value();
}

std::set<Numbers> found(const std::string& gemm, const std::string& cluster) {
  std::set<Numbers> numbers;
  const auto search = search_layouts(config_with(gemm), cluster_of(cluster), {.ranks = 16, .keep = 1000});
  EXPECT_TRUE(search) << search.error().message;
  for (const PlannedLayout& layout : search.value().best) numbers.insert(layout.workload.numbers);
  return numbers;
}

TEST(Planner, searches_the_precision_of_the_config_alone) {
  EXPECT_EQ(found("compute", "h200"), std::set{Numbers::kBf16});
  EXPECT_EQ(found("fp8", "h200"), std::set{Numbers::kFp8});
  const auto refused = search_layouts(config_with("fp8"), cluster_of("a100_megascale"), {.ranks = 16});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("device.fp8_tflops is 0"), std::string::npos) << refused.error().message;
}

TEST(Planner, layouts_divide_every_size_of_a_ramp) {
  const Config config = config_of({"data.batch_ramp=0:48 1M:96", "data.micro_batch=24", "data.global_batch=96"});
  EXPECT_EQ(config.data.global_batch, 96);
  EXPECT_EQ(config.data.micro_batch, 24) << "it divides the sizes";
  const PlanSearch search =
      value_or_throw(search_layouts(config, cluster_of("h200"), {.ranks = 16, .keep = 100, .max_micro_batch = 4}));
  for (const PlannedLayout& layout : search.best) {
    EXPECT_EQ(layout.workload.global_batch, 96);
    EXPECT_EQ(48 % (layout.workload.micro_batch * layout.workload.dp), 0);
  }
  const auto refused = search_layouts(config, cluster_of("h200"), {.ranks = 32, .pinned = {.dp = 32}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("parallel.dp 32 does not divide"), std::string::npos)
      << refused.error().message;
}

TEST(Planner, searches_the_requested_microbatches) {
  const auto all = search_layouts(config_with("compute"), cluster_of("h200"), {.ranks = 16, .keep = 200});
  std::set<int> sizes;
  for (const PlannedLayout& layout : value_or_throw(all).best) sizes.insert(layout.workload.micro_batch);
  EXPECT_GT(sizes.size(), 2u);
  const auto requested =
      search_layouts(config_with("compute"), cluster_of("h200"), {.ranks = 16, .keep = 200, .micro_batch = 2});
  for (const PlannedLayout& layout : value_or_throw(requested).best) EXPECT_EQ(layout.workload.micro_batch, 2);
  const auto none = search_layouts(config_with("compute"), cluster_of("h200"), {.ranks = 16, .micro_batch = 7});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "data.micro_batch 7 does not divide data.global_batch 1024");
}

TEST(Planner, asks_nothing_of_the_layout_that_the_config_has) {
  const Config config = config_of({"parallel.tp=7", "parallel.pp=3", "parallel.dp=11", "parallel.chunks=13",
                                   "parallel.schedule=interleaved", "data.micro_batch=5"});
  const auto search = search_layouts(config, cluster_of("h200"), {.ranks = 16, .keep = 1});
  const auto plain = search_layouts(config_of({}), cluster_of("h200"), {.ranks = 16, .keep = 1});
  EXPECT_EQ(value_or_throw(search).best[0].step.seconds, value_or_throw(plain).best[0].step.seconds);
}

// Layouts whose steps equal the best one's within the uncertainty are marked, and so is memory that is nearly full.
TEST(Planner, marks_equal_layouts_and_tight_memory) {
  Cluster cluster = cluster_of("h200");
  cluster.uncertainty = 0.03;
  PlanSearch search = value_or_throw(search_layouts(config_of({}), cluster, {.ranks = 16, .keep = 200}));
  size_t equal = 0;
  for (const PlannedLayout& layout : search.best) equal += equals_best(layout, search.best[0], cluster) ? 1 : 0;
  EXPECT_GT(equal, 1u);
  EXPECT_LT(equal, search.best.size());
  search.best.resize(equal + 1);
  search.best[1].memory_bytes = static_cast<int64_t>(0.97 * room_of(cluster));
  const std::string text = to_text(search, cluster);
  for (const char* part : {"\n    1   tp", "\n    2=  tp", " GiB!", "=: as fast as the first layout within ± 3.0 %",
                           "!: a tight fit into", "MFU is relative to 989 TFLOP/s", " longer than the first: +"})
    EXPECT_NE(text.find(part), text.npos) << part << "\n" << text;
  EXPECT_NE(text.find(fmt::format("\n  {:>3}   tp", equal + 1)), text.npos) << text;
  cluster.uncertainty = 0;
  EXPECT_NE(to_text(search, cluster).find("steps are uncertain by an unknown share"), text.npos);
}

// The latency of a bucket's ring grows with dp, so buckets grow too, unless they are pinned.
TEST(Planner, chooses_larger_buckets_for_many_replicas) {
  const Cluster cluster = cluster_of("h200");
  const auto found = [&](int ranks, bool pinned) {
    const Config config = config_of({"data.global_batch=4096", "data.micro_batch=1"});
    PlanOptions options{.ranks = ranks, .keep = 1};
    options.pinned.tp = options.pinned.pp = 1;
    options.pinned.buckets = pinned;
    PlanSearch search = value_or_throw(search_layouts(config, cluster, options));
    search.notes = plan_notes(config, cluster, options, search);
    return search;
  };
  const PlanSearch few = found(8, false), many = found(2048, false), pinned = found(2048, true);
  EXPECT_EQ(few.best[0].workload.bucket_elements, 40'000'000);
  EXPECT_GT(many.best[0].workload.bucket_elements, 40'000'000);
  EXPECT_EQ(pinned.best[0].workload.bucket_elements, 40'000'000);
  EXPECT_LT(many.best[0].step.seconds, 0.9 * pinned.best[0].step.seconds);
  EXPECT_EQ(many.notes.front().find("parallel.bucket_elements is "), 0u);
  // The prediction is that of the config that `plan --output` writes, memory included.
  const Config written =
      with_planned(config_of({"data.global_batch=4096", "data.micro_batch=1"}), many.best[0].workload);
  const Simulation again = value_or_throw(simulate(value_or_throw(resolve_config(written, 2048)), cluster));
  EXPECT_DOUBLE_EQ(again.step.seconds, many.best[0].step.seconds);
  EXPECT_EQ(again.memory_bytes, many.best[0].memory_bytes);
}

// Larger buckets take more memory with zero 2: where they do not fit, smaller ones are found.
TEST(Planner, larger_buckets_never_displace_a_layout_that_fits) {
  const Config config = config_of({"data.global_batch=4096", "data.micro_batch=1"});
  Cluster cluster = cluster_of("h200");
  int fitting = 0;
  for (double gib = 18; gib < 60; gib += 3) {
    cluster.device.memory_gib = gib;
    PlanOptions options{.ranks = 2048, .keep = 1};
    options.pinned.tp = options.pinned.pp = 1;
    options.pinned.zero = 2;
    const auto chosen = search_layouts(config, cluster, options);
    options.pinned.buckets = true;
    const auto pinned = search_layouts(config, cluster, options);
    ASSERT_EQ(static_cast<bool>(chosen), static_cast<bool>(pinned)) << gib;
    if (!chosen) continue;
    ++fitting;
    EXPECT_LE(static_cast<double>(chosen.value().best[0].memory_bytes), room_of(cluster)) << gib;
    EXPECT_LE(chosen.value().best[0].step.seconds, pinned.value().best[0].step.seconds) << gib;
  }
  EXPECT_GT(fitting, 3);
}

// 126 layers divide by few numbers of stages, but uneven stages need not divide them.
TEST(Planner, plans_stages_of_uneven_layers) {
  Cluster cluster = cluster_of("h100_nemo");
  cluster.uncertainty = 0.01;
  const auto config_with_layers = [](int layers) {
    return config_of({fmt::format("model.layers={}", layers), "model.hidden=16384", "model.heads=128",
                      "data.global_batch=2048", "data.micro_batch=1"});
  };
  const PlanOptions options{.ranks = 1024, .keep = 1};
  const auto search = value_or_throw(search_layouts(config_with_layers(126), cluster, options));
  const auto even = value_or_throw(search_layouts(config_with_layers(128), cluster, options));
  EXPECT_GT(search.best[0].step.mfu, 0.98 * even.best[0].step.mfu);
  for (const int layers : {126, 128})
    for (const std::string& note :
         plan_notes(config_with_layers(layers), cluster, options, layers == 126 ? search : even))
      EXPECT_EQ(note.find("model.layers"), note.npos) << note;
  // Without any layout the error has the same advice.
  const PlanOptions prime{.ranks = 1024 + 9, .keep = 1};
  EXPECT_FALSE(search_layouts(config_with_layers(126), cluster, prime));
  EXPECT_NE(without_layout_note(config_with_layers(126), cluster, prime).find(" ranks instead of 1033 would reach"),
            std::string::npos);
  PlanOptions stages{.ranks = 1024, .keep = 1};
  stages.pinned.pp = 16;
  const Workload uneven = value_or_throw(search_layouts(config_with_layers(126), cluster, stages)).best[0].workload;
  EXPECT_EQ(std::ssize(uneven.layers_per_chunk), 16 * uneven.chunks);
  EXPECT_EQ(std::accumulate(uneven.layers_per_chunk.begin(), uneven.layers_per_chunk.end(), 0), 126);
  EXPECT_LT(uneven.layers_per_chunk.back(), uneven.layers_per_chunk[1]) << "the head is work too";
  // The prediction is that of the config that `plan --output` writes.
  const Config written = value_or_throw(resolve_config(with_planned(config_with_layers(126), uneven), 1024));
  EXPECT_EQ(workload_of(value_or_throw(planned_for(written, cluster))).layers_per_chunk, uneven.layers_per_chunk);
}

// A batch of 32 samples cannot use 512 ranks: half of them are hardly slower.
TEST(Planner, warns_of_ranks_that_hardly_help) {
  const Cluster cluster = cluster_of("h200");
  const auto notes = [&](int batch, int ranks) {
    const Config config = config_of({fmt::format("data.global_batch={}", batch), "data.micro_batch=1"});
    const PlanOptions options{.ranks = ranks, .keep = 1};
    return plan_notes(config, cluster, options, value_or_throw(search_layouts(config, cluster, options)));
  };
  ASSERT_EQ(notes(32, 512).size(), 1u);
  EXPECT_NE(notes(32, 512)[0].find("512 ranks are too many for this batch and model: "), std::string::npos);
  EXPECT_TRUE(notes(4096, 64).empty());
}

TEST(Planner, keeps_the_precision_of_the_config) {
  for (const auto& [gemm, numbers] : {std::pair{"fp8", Numbers::kFp8}, {"compute", Numbers::kBf16}}) {
    const Config config = config_with(gemm);
    const auto search = search_layouts(config, cluster_of("h200"), {.ranks = 16, .keep = 1});
    ASSERT_TRUE(search) << search.error().message;
    EXPECT_EQ(search.value().best.front().workload.numbers, numbers) << gemm;
  }
  Config config = config_with("fp8");
  const auto best = [&] {
    return value_or_throw(search_layouts(config, cluster_of("h200"), {.ranks = 16, .keep = 1})).best.front();
  };
  const double fp8 = best().step.seconds;
  config.precision.fp8_first_layers = config.model.layers / 2;
  const double half = best().step.seconds;
  config.precision.gemm = GemmFormat::kCompute;
  EXPECT_LT(fp8, half);
  EXPECT_LT(half, best().step.seconds);
}

// A Plan lists every microbatch: this many caused bad_alloc in `plan`, and minutes and gigabytes in `simulate`.
TEST(Planner, steps_of_millions_of_microbatches_are_refused) {
  Config config = config_with("compute");
  config.data.micro_batch = 1;
  config.data.global_batch = 1 << 30;
  const Cluster cluster = cluster_of("h100_nemo");
  const auto search = search_layouts(config, cluster, {.ranks = 16});
  ASSERT_FALSE(search);
  EXPECT_NE(search.error().message.find("at most 100000 microbatches"), std::string::npos) << search.error().message;
  const auto simulation = simulate(config, cluster, {});
  ASSERT_FALSE(simulation);
  EXPECT_NE(simulation.error().message.find("1073741824 microbatches, more than 100000"), std::string::npos)
      << simulation.error().message;
}

Config preset(const std::string& name, const std::vector<std::string>& overrides = {}) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/" + name + ".yaml";
  return value_or_throw(
      without_layout(value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, overrides))));
}

constexpr std::array kMachines{"h100_nemo", "a100_megascale", "h200"};
// The machines for case number `i`: each in turn; with TRIREME_ALL_CASES all.
std::vector<const char*> machines_for(size_t i) {
  if (std::getenv("TRIREME_ALL_CASES") == nullptr) return {kMachines[i % kMachines.size()]};
  return {kMachines.begin(), kMachines.end()};
}

// --keep is the number of layouts shown: the first one shown is the best of all.
TEST(Planner, the_winner_does_not_depend_on_how_many_are_kept) {
  int searched = 0;
  size_t number = 0;
  for (const char* name : {"gpt2_124m", "gpt_13b", "llama_8b", "llama_70b", "megascale_175b"}) {
    ++number;  // so that each machine has each number of ranks
    for (const int ranks : {8, 1024, 12288})
      for (const char* machines : machines_for(number++)) {
        const Config config = preset(name);
        const Cluster cluster = cluster_of(machines);
        const auto one = search_layouts(config, cluster, {.ranks = ranks, .keep = 1});
        const auto all = search_layouts(config, cluster, {.ranks = ranks, .keep = 100});
        ASSERT_EQ(one.ok(), all.ok());
        if (!one) continue;
        ++searched;
        EXPECT_EQ(one.value().best[0].step.seconds, all.value().best[0].step.seconds)
            << name << " " << ranks << " " << machines;
        for (const PlannedLayout& layout : all.value().best) {
          const Workload& w = layout.workload;
          EXPECT_GE(layout.step.seconds, 0.98 * bound_step(w, cluster, RingTimes(cluster)))
              << name << " " << ranks << " " << machines << " tp " << w.tp << " pp " << w.pp << " chunks " << w.chunks
              << " micro-batch " << w.micro_batch << " zero " << w.zero;
        }
      }
  }
  EXPECT_GT(searched, 6);
}

// The results equal those of `simulate` for the config that is written: time, memory, and that it fits.
TEST(Planner, layouts_fit_by_the_programs_own_plan) {
  for (const char* name : {"llama_1b", "llama_8b", "gpt_13b"})
    for (const char* machines : {"h100_nemo", "a100_megascale"}) {
      const Config config = preset(name);
      const Cluster cluster = cluster_of(machines);
      const auto search = search_layouts(config, cluster, {.ranks = 8, .keep = 10});
      for (const PlannedLayout& layout : value_or_throw(search).best) {
        const auto written = value_or_throw(resolve_config(with_layout(config, layout_of(layout.workload)), 8));
        const Simulation simulation = value_or_throw(simulate(written, cluster));
        EXPECT_EQ(simulation.memory_bytes, layout.memory_bytes);
        EXPECT_LE(static_cast<double>(layout.memory_bytes), room_of(cluster));
        EXPECT_DOUBLE_EQ(simulation.step.seconds, layout.step.seconds);
      }
    }
}

// The same with experts, whose rows are copied if each ep group is on one node: ep 16 has groups on two nodes of eight
// ranks, and ep 3 some.
TEST(Planner, experts_have_the_transfers_of_simulate) {
  const Cluster cluster = cluster_of("h200");
  for (const auto& [ranks, ep, experts] :
       {std::tuple{4, 4, 128}, {8, 2, 128}, {16, 8, 128}, {32, 16, 128}, {24, 3, 96}}) {
    const Config config =
        preset("qwen3_30b_a3b", {"model.layers=8", "data.global_batch=96", fmt::format("model.experts={}", experts)});
    const auto search = search_layouts(config, cluster, {.ranks = ranks, .keep = 10, .pinned = {.ep = ep}});
    for (const PlannedLayout& layout : value_or_throw(search).best) {
      const auto written = value_or_throw(resolve_config(with_planned(config, layout.workload), ranks));
      const Simulation simulation = value_or_throw(simulate(written, cluster));
      EXPECT_EQ(simulation.memory_bytes, layout.memory_bytes) << ranks << " ranks, ep " << ep;
      EXPECT_DOUBLE_EQ(simulation.step.seconds, layout.step.seconds) << ranks << " ranks, ep " << ep;
    }
  }
}

// A preset's own layout is among those tried, so the winner is no slower.
TEST(Planner, winners_are_no_slower_than_the_presets_own_layouts) {
  size_t number = 0;
  int compared = 0;
  for (const auto& [name, ranks] : {std::pair{"gpt2_124m", 8},
                                    {"gpt2_1558m", 8},
                                    {"gpt_1b3", 8},
                                    {"gpt_13b", 64},
                                    {"llama_1b", 8},
                                    {"llama_8b", 64},
                                    {"llama_70b", 512},
                                    {"megascale_175b", 256}})
    for (const char* machines : machines_for(number++)) {
      const Cluster cluster = cluster_of(machines);
      const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/" + name + ".yaml";
      const Config own = value_or_throw(
          resolve_config(value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, {})), ranks));
      const Simulation simulation = value_or_throw(simulate(own, cluster));
      if (static_cast<double>(simulation.memory_bytes) > room_of(cluster)) continue;
      ++compared;
      const auto search = search_layouts(preset(name), cluster, {.ranks = ranks, .keep = 1});
      EXPECT_LE(value_or_throw(search).best[0].step.seconds, simulation.step.seconds * (1 + 1e-9))
          << name << " on " << machines;
    }
  EXPECT_GT(compared, 3);
}

// If there are fewer samples than ranks, or no rank has memory for a whole one.
TEST(Planner, chooses_cp_for_long_samples_only) {
  const Cluster cluster = cluster_of("h100_nemo");
  const auto best = [&](const std::string& name, int ranks, const std::vector<std::string>& overrides) {
    return value_or_throw(search_layouts(preset(name, overrides), cluster, {.ranks = ranks, .keep = 20})).best;
  };
  const auto divided = best("llama_3_8b_131k", 64, {"data.global_batch=1"});
  EXPECT_GT(divided.front().workload.cp, 1) << "64 ranks have one sample";
  const std::string text = to_text({.best = divided}, cluster);
  EXPECT_NE(text.find(fmt::format(" cp {:>3} pp", divided.front().workload.cp)), text.npos) << text;
  const auto samples = best("llama_3_8b_131k", 64, {"data.global_batch=64"});
  EXPECT_GT(samples.front().workload.cp * samples.front().workload.tp, 1) << "a sample fits on no rank";
  for (const PlannedLayout& layout : best("gpt_13b", 64, {})) EXPECT_EQ(layout.workload.cp, 1);
}

TEST(Planner, keeps_what_is_set) {
  const auto found = [](const std::vector<std::string>& overrides) {
    const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/gpt_13b.yaml";
    const Config parsed = value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, overrides));
    return search_layouts(value_or_throw(without_layout(parsed)), cluster_of("h100_nemo"),
                          {.ranks = 64, .keep = 100, .pinned = pinned_by(overrides, parsed)});
  };
  const auto all = [&](const std::string& setting, auto has) {
    const auto search = found({setting});
    ASSERT_TRUE(search) << setting << ": " << search.error().message;
    for (const PlannedLayout& layout : search.value().best) EXPECT_TRUE(has(layout.workload)) << setting;
  };
  all("parallel.tp=4", [](const Workload& w) { return w.tp == 4; });
  all("parallel.cp=2", [](const Workload& w) { return w.cp == 2; });
  all("parallel.pp=8", [](const Workload& w) { return w.pp == 8; });
  all("parallel.dp=16", [](const Workload& w) { return w.dp == 16; });
  all("parallel.chunks=2", [](const Workload& w) { return w.chunks == 2; });
  all("parallel.zero=0", [](const Workload& w) { return w.zero == 0; });
  all("parallel.recompute=full", [](const Workload& w) { return w.recompute == Recompute::kFull; });
  all("parallel.schedule=zb_h1", [](const Workload& w) { return w.schedule == Schedule::kZbH1; });
  all("parallel.schedule=zb_v", [](const Workload& w) { return w.schedule == Schedule::kZbV && w.chunks == 2; });
  all("parallel.layers_per_chunk=even", [](const Workload& w) { return w.layers_per_chunk.empty(); });
  all("parallel.schedule=gpipe", [](const Workload& w) { return w.schedule == Schedule::kGpipe; });
  all("parallel.layers_per_chunk=9,10,10,11", [](const Workload& w) { return w.pp * w.chunks == 4; });
  const auto uneven = found({"parallel.pp=4", "parallel.chunks=3", "parallel.layers_per_chunk=auto"});
  ASSERT_TRUE(uneven) << uneven.error().message;
  EXPECT_EQ(uneven.value().best[0].workload.layers_per_chunk.size(), 12U);
  EXPECT_TRUE(found({"parallel.pp=1", "parallel.layers_per_chunk=auto"})) << "one stage has all layers";
  for (const auto& [setting, problem] : {std::pair{"parallel.tp=3", "parallel.tp 3 does not divide model.heads 40"},
                                         {"parallel.cp=3", "parallel.cp: 2 x 3 does not divide model.seq_len"},
                                         {"parallel.pp=3", "is 3, which does not match 64 ranks"},
                                         {"parallel.dp=3", "parallel.dp 3 does not divide data.global_batch 1024"},
                                         {"parallel.dp=128", "is 128, which does not match 64 ranks"},
                                         {"parallel.ep=2", "parallel.ep 2 divides experts, but model.experts is 0"},
                                         {"parallel.layers_per_chunk=20,19", "has the sum 39, but model.layers is 40"},
                                         {"parallel.layers_per_chunk=13,13,14", "64 ranks allow no parallel.pp x"}}) {
    const auto search = found({setting});
    ASSERT_FALSE(search) << setting;
    EXPECT_NE(search.error().message.find(problem), std::string::npos) << search.error().message;
  }
  // The number of ranks is not the reason.
  for (const char* setting : {"parallel.pp=1", "parallel.chunks=1"}) {
    const auto search = found({"parallel.schedule=interleaved", setting});
    ASSERT_FALSE(search) << setting;
    EXPECT_EQ(search.error().message,
              "no layout of 64 ranks agrees with all fields of parallel that --set names; omit one of them");
  }
}

}  // namespace
}  // namespace tri
