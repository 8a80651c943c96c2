// Configs of small models on given axes, and the facts that their ranks might report.
#pragma once

#include <string>

#include "lib/engine/job_facts.h"

namespace tri::test {

struct Axes {
  int tp = 1, dp = 1, pp = 1, chunks = 1;
  int ranks() const { return tp * dp * pp; }
};

inline Config config_of(const Axes& axes) {
  Config c;
  c.model = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 16};
  c.data.global_batch = 24;
  c.parallel = {.tp = axes.tp, .pp = axes.pp, .dp = axes.dp, .chunks = axes.chunks};
  if (axes.chunks > 1) c.parallel.schedule = Schedule::kInterleaved;
  return value_or_throw(resolve_config(c, axes.ranks()));
}

// Ranks in blocks of `a_node` on consecutive machines, without GPUs.
inline JobFacts on_cpus(int ranks, int a_node) {
  JobFacts facts;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string node = fmt::format("node{}", rank / a_node);
    facts.push_back({.machine = node + " boot", .node = node, .node_size = a_node, .no_gpu_because = "no driver"});
  }
  return facts;
}

// Each rank sees all GPUs of its machine.
inline JobFacts all_see_all(int ranks, int a_node, int gpus) {
  JobFacts facts = on_cpus(ranks, a_node);
  for (RankFacts& rank : facts)
    for (int gpu = 0; gpu < gpus; ++gpu) rank.gpus.push_back(fmt::format("{} gpu{}", rank.node, gpu));
  return facts;
}

// As under --gpus-per-task=1: each rank sees one GPU, a different one.
inline JobFacts each_sees_its_own(int ranks, int a_node) {
  JobFacts facts = on_cpus(ranks, a_node);
  for (size_t rank = 0; rank < facts.size(); ++rank) facts[rank].gpus = {fmt::format("gpu{}", rank)};
  return facts;
}

}  // namespace tri::test
