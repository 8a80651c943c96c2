// The answers of `trireme simulate` in addition to the time: memory for features that this program lacks, shares of the
// peak, notes.
#include "lib/simulate/simulation.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <set>

namespace tri {
namespace {

Cluster h100() {
  return value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/h100_nemo.yaml"));
}

Simulation simulated(const std::string& preset, int ranks, const std::vector<std::string>& settings,
                     const WorkloadOptions& options = {}, const Cluster& cluster = h100()) {
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/" + preset + ".yaml";
  const Config parsed = value_or_throw(parse_config(value_or_throw(read_config_text(path)), path, settings));
  return value_or_throw(simulate(value_or_throw(resolve_for(options.program, parsed, ranks)), cluster, options));
}

TEST(Simulation, memory_is_that_of_sharded_weights_and_split_sequences) {
  const std::vector<std::string> flat{"parallel.tp=1", "parallel.pp=1", "parallel.chunks=1", "parallel.schedule=1f1b",
                                      "parallel.recompute=full"};
  const Simulation own = simulated("llama_70b", 512, flat);
  const Simulation fsdp = simulated("llama_70b", 512, flat, {.program = Program::kFsdp});
  EXPECT_GT(static_cast<double>(own.memory_bytes), own.room_bytes);
  EXPECT_LT(static_cast<double>(fsdp.memory_bytes), 0.2 * static_cast<double>(own.memory_bytes));
  EXPECT_FALSE(own.memory_estimated);
  EXPECT_TRUE(fsdp.memory_estimated);
  int64_t before = simulated("llama_8b", 64, {}).memory_bytes;
  for (const int cp : {2, 8}) {
    const Simulation split = simulated("llama_8b", 64, {}, {.cp = cp});
    EXPECT_TRUE(split.memory_estimated);
    EXPECT_LT(split.memory_bytes, before) << cp;
    before = split.memory_bytes;
  }
}

// zb_h1 would be faster, but takes 86 GiB.
TEST(Simulation, schedule_auto_fits_into_the_memory_of_the_cluster_file) {
  const auto of = [](double gib, const std::string& chunks) {
    Cluster cluster = h100();
    cluster.device.memory_gib = gib;
    return simulated(
        "llama_8b", 8,
        {"parallel.tp=1", "parallel.pp=4", "parallel.schedule=auto", "parallel.recompute=selective", chunks}, {},
        cluster);
  };
  for (const char* chunks : {"parallel.chunks=1", "parallel.chunks=2"}) {
    const Simulation small = of(78.6, chunks), large = of(141, chunks), none = of(40, chunks);
    EXPECT_LE(static_cast<double>(small.memory_bytes), small.room_bytes) << chunks;
    EXPECT_FALSE(splits_backward(small.workload.schedule)) << chunks;
    EXPECT_LE(static_cast<double>(large.memory_bytes), large.room_bytes) << chunks;
    EXPECT_EQ(none.workload.schedule, small.workload.schedule) << "none fits: the one that needs the least";
    const auto says = [](const Simulation& s) {
      return to_text(s).find("auto: no schedule fits") != std::string::npos;
    };
    EXPECT_TRUE(says(none)) << to_text(none);
    EXPECT_FALSE(says(small)) << to_text(small);
  }
  EXPECT_EQ(of(141, "parallel.chunks=1").workload.schedule, Schedule::kZbH1);
}

TEST(Simulation, says_that_tp_groups_span_nodes) {
  Cluster cluster = h100();
  cluster.node.ranks = 6;
  const auto noted = [&](const std::string& tp) {
    const Simulation s = simulated("llama_8b", 16, {"parallel.tp=" + tp}, {}, cluster);
    return to_text(s).find("does not divide the 6 ranks of a node") != std::string::npos;
  };
  EXPECT_TRUE(noted("4"));
  EXPECT_FALSE(noted("2"));
}

TEST(Simulation, names_the_program_whose_step_it_is) {
  EXPECT_NE(to_text(simulated("llama_8b", 16, {}, {.program = Program::kFsdp})).find(" as fsdp, 8 per node"),
            std::string::npos);
}

// Between machines the transfer of a group of heads overlaps attention over another; with a window hardly anything is
// sent.
TEST(Simulation, exposes_less_of_the_keys_that_overlap_attention) {
  const auto exposed = [](const std::vector<std::string>& settings) {
    std::vector<std::string> all{"parallel.tp=1", "parallel.cp=16", "parallel.recompute=full",
                                 "data.document_mask=false"};
    all.insert(all.end(), settings.begin(), settings.end());
    return simulated("llama_3_8b_131k", 16, all).step.parts.tp;
  };
  const double apart = exposed({"parallel.overlap_cp=false"});
  EXPECT_LT(exposed({}), 0.4 * apart);
  EXPECT_LT(exposed({"parallel.overlap_cp=false", "model.window=4096"}), 0.2 * apart);
}

TEST(Simulation, says_if_larger_buckets_would_be_faster) {
  const auto notes = [](int ranks, const std::string& elements) {
    std::string all;
    for (const std::string& note : simulated("gpt_1b3", ranks,
                                             {"parallel.tp=1", "parallel.pp=1", "data.global_batch=16384",
                                              "data.micro_batch=4", "parallel.bucket_elements=" + elements})
                                       .notes)
      all += note + "\n";
    return all;
  };
  const std::string many = notes(2048, "40000000");
  EXPECT_NE(many.find(" instead of 40000000 a step would take "), many.npos) << many;
  const size_t at = many.find("parallel.bucket_elements ") + 25;
  const std::string better = many.substr(at, many.find(' ', at) - at);
  EXPECT_EQ(notes(2048, better).find("bucket_elements"), std::string::npos) << better;
  EXPECT_EQ(notes(8, "40000000").find("bucket_elements"), std::string::npos) << "few ranks";
}

TEST(Simulation, recompute_that_is_left_open_is_the_least_that_fits_by_the_estimate_too) {
  const Simulation split =
      simulated("llama_8b", 64, {"parallel.recompute=auto", "parallel.tp=1", "data.micro_batch=4"}, {.cp = 2});
  EXPECT_LE(static_cast<double>(split.memory_bytes), split.room_bytes);
  EXPECT_GT(split.workload.recompute, Recompute::kNone);
}

// The last stage, which has the logits of a large vocabulary, may need more memory than the first.
TEST(Simulation, recompute_that_is_left_open_suits_every_stage) {
  const std::vector<std::string> settings{"model.layers=4", "parallel.tp=1", "parallel.pp=2",
                                          "parallel.recompute=auto"};
  std::set<Recompute> chosen;
  for (double gib = 11; gib < 13; gib += 0.125) {
    Cluster cluster = h100();
    cluster.device.memory_gib = gib;
    const Simulation simulation = simulated("llama_1b", 8, settings, {}, cluster);
    chosen.insert(simulation.workload.recompute);
    if (simulation.workload.recompute != Recompute::kFull) {
      EXPECT_LE(static_cast<double>(simulation.memory_bytes), simulation.room_bytes) << gib;
    }
  }
  EXPECT_GT(chosen.size(), 2u);
}

// Counted without the mask, attention of long sequences exceeds the peak.
TEST(Simulation, shares_of_the_peak_count_attention_both_ways) {
  const Simulation bf16 = simulated("llama_8b", 64, {});
  EXPECT_NEAR(bf16.step.mfu_causal / bf16.step.mfu,
              model_flops_per_token(bf16.workload, AttentionWork::kCausal) / model_flops_per_token(bf16.workload),
              1e-12);
  EXPECT_LT(bf16.step.mfu_causal, bf16.step.mfu);
  EXPECT_EQ(bf16.step.mfu_fp8, 0);
  const Simulation fp8 = simulated("llama_8b", 64, {"precision.gemm=fp8"});
  EXPECT_NEAR(fp8.step.mfu_fp8 / fp8.step.mfu, 989.0 / 1979, 1e-9);
  const auto json = nlohmann::json::parse(to_json(fp8));
  EXPECT_EQ(json["mfu_causal"], fp8.step.mfu_causal);
  EXPECT_EQ(json["mfu_fp8"], fp8.step.mfu_fp8);
  EXPECT_NE(to_text(fp8).find(" of the FP8 peak"), std::string::npos);
  const Simulation longest = simulated("llama_8b", 64, {"model.seq_len=131072", "data.micro_batch=1"});
  EXPECT_LT(longest.step.mfu_causal, 0.7);
}

TEST(Simulation, says_what_to_know_of_the_answer) {
  const auto says = [](const Simulation& s, const std::string& what) {
    return to_text(s).find(what) != std::string::npos;
  };
  const Simulation plain = simulated("gpt2_124m", 8, {});
  EXPECT_TRUE(plain.notes.empty());
  EXPECT_TRUE(says(plain, "the speeds are those of NeMo 2025 on H100-80GB, the memory is Trireme's own plan"));
  EXPECT_TRUE(says(plain, "the memory is Trireme's own plan"));
  EXPECT_TRUE(says(plain, " % of 989 TFLOP/s"));
  EXPECT_TRUE(says(plain, " ± "));
  const Simulation fsdp = simulated("llama_8b", 64, {}, {.program = Program::kFsdp});
  EXPECT_TRUE(says(fsdp, "--as fsdp: for published steps of PyTorch's FSDP"));
  EXPECT_FALSE(nlohmann::json::parse(to_json(fsdp))["notes"].empty());
}

}  // namespace
}  // namespace tri
