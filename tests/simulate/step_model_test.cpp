// The model of a step at its limits, and the directions in which it must change.
#include "lib/simulate/step_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lib/optim/muon_plan.h"
#include "lib/simulate/gemm_times.h"
#include "lib/simulate/step_memory.h"

namespace tri {
namespace {

Workload gpt_13b() {
  Workload w;
  w.model.layers = 40;
  w.model.hidden = 5120;
  w.model.heads = w.model.kv_heads = 40;
  w.model.head_dim = 128;
  w.model.ffn_hidden = 20480;
  w.model.vocab = 50304;
  w.model.seq_len = 2048;
  w.global_batch = 64;
  return w;
}

// Returns a cluster whose network and nodes cost nothing.
Cluster without_transfers(Cluster c = {}) {
  c.node.gb_per_s = c.network.gb_per_s = 1e15;
  c.node.latency_us = c.node.start_us = c.network.latency_us = c.software.skew_us = 0;
  return c;
}

double step(const Workload& w, const Cluster& c = {}, Stragglers stragglers = Stragglers::kOff) {
  return predict_step(w, c, RingTimes(c), stragglers).seconds;
}

LayerTimes times_of_layer(const Workload& w, const Cluster& c) {
  return layer_times(w, w.layers()[0], c, RingTimes(c));
}

TEST(StepModel, parts_add_up_to_the_step) {
  for (const int pp : {1, 4})
    for (const int tp : {1, 2})
      for (const int dp : {1, 8}) {
        Workload w = gpt_13b();
        w.pp = pp;
        w.tp = tp;
        w.dp = dp;
        const StepPrediction p = predict_step(w, Cluster{});
        double sum = 0;
        for (const auto& [name, seconds] : named_parts(p.parts)) {
          EXPECT_GE(seconds, -1e-12) << name;
          sum += seconds;
        }
        EXPECT_NEAR(sum, p.seconds, 1e-9 * p.seconds);
      }
}

TEST(StepModel, without_a_network_only_compute_is_left) {
  Workload w = gpt_13b();
  const StepPrediction alone = predict_step(w, Cluster{}, RingTimes(Cluster{}), Stragglers::kOff);
  EXPECT_EQ(alone.parts.tp + alone.parts.pp + alone.parts.dp + alone.parts.bubble + alone.parts.stragglers, 0);
  w.dp = 8;
  w.global_batch *= 8;
  const Cluster free = without_transfers();
  const StepPrediction many = predict_step(w, free, RingTimes(free), Stragglers::kOff);
  const auto compute = [](const StepParts& p) { return p.gemm + p.attention + p.memory; };
  EXPECT_NEAR(compute(many.parts), compute(alone.parts), 1e-9 * alone.seconds);
  EXPECT_LT(many.parts.dp, 1e-6 * many.seconds);
}

TEST(StepModel, bubble_follows_its_formula) {
  Workload w = gpt_13b();
  w.model.vocab = 128;  // a negligible head, so that stages are equal
  const Cluster free = without_transfers();
  for (const int pp : {2, 4, 8})
    for (const int chunks : {1, 5}) {
      w.pp = pp;
      w.chunks = chunks;
      w.schedule = chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
      const StepPrediction p = predict_step(w, free, RingTimes(free), Stragglers::kOff);
      const double busy = p.parts.gemm + p.parts.attention + p.parts.memory;
      EXPECT_NEAR(p.parts.bubble / busy, ideal_bubble(pp, w.num_microbatches(), chunks), 0.01) << pp << " " << chunks;
    }
}

// A search omits layouts whose bound, times 0.97, is above the time of others.
TEST(StepModel, the_bound_of_split_backward_passes_is_hardly_longer_than_the_step) {
  const Cluster cluster = without_transfers();
  for (const int pp : {2, 4, 8})
    for (const int microbatches : {pp, 2 * pp, 8 * pp})
      for (const int tp : {1, 8}) {
        Workload w = gpt_13b();
        w.pp = pp;
        w.tp = tp;
        w.schedule = Schedule::kZbH1;
        w.global_batch = microbatches;
        EXPECT_LE(0.99 * bound_step(w, cluster, RingTimes(cluster)), step(w, cluster))
            << "pp " << pp << ", " << microbatches << " microbatches, tp " << tp;
      }
}

TEST(StepModel, more_of_anything_never_hurts_or_helps_against_its_nature) {
  Workload w = gpt_13b();
  w.tp = 2;
  w.pp = 4;
  w.dp = 4;
  const double base = step(w);
  Cluster c;
  c.network.gb_per_s *= 2;
  EXPECT_LE(step(w, c), base);
  c = {};
  c.node.gb_per_s /= 2;
  EXPECT_GT(step(w, c), base);
  c = {};
  c.device.memory_gb_per_s *= 2;
  EXPECT_LT(step(w, c), base);
  c = {};
  c.software.gemm_share *= 0.9;
  EXPECT_GT(step(w, c), base);
  EXPECT_GT(step(w, {}, Stragglers::kOn), base);
  for (const auto member : {&Workload::overlap_tp, &Workload::overlap_dp, &Workload::overlap_pp}) {
    Workload without = w;
    without.*member = false;
    EXPECT_GT(step(without), base);
  }
  for (int layers = 44; layers <= 80; layers += 4) {
    Workload deeper = w;
    deeper.model.layers = layers;
    EXPECT_GT(step(deeper), base);
  }
  double before = 0;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
    Workload more = w;
    more.recompute = recompute;
    EXPECT_GE(step(more), before);
    before = step(more);
  }
  double tokens = 0;
  for (const int batch : {64, 128, 256, 1024}) {  // the bubble's share and the fixed costs fall
    Workload larger = w;
    larger.global_batch = batch;
    const double rate = predict_step(larger, Cluster{}).tokens_per_second;
    EXPECT_GT(rate, tokens);
    tokens = rate;
  }
}

TEST(StepModel, parallel_block_halves_tp_transfers_and_a_window_attention) {
  Workload w = gpt_13b();
  w.tp = 8;
  w.overlap_tp = false;
  const double sequential = predict_step(w, Cluster{}).parts.tp;
  w.model.block = Block::kParallel;
  const double parallel = predict_step(w, Cluster{}).parts.tp;
  EXPECT_NEAR(parallel / sequential, 0.5, 0.02);  // embedding and head also have transfers
  const double full = predict_step(w, Cluster{}).parts.attention;
  w.model.window = 512;
  EXPECT_LT(predict_step(w, Cluster{}).parts.attention, 0.75 * full);
  w.model.window = w.model.seq_len;
  EXPECT_DOUBLE_EQ(predict_step(w, Cluster{}).parts.attention, full);
}

TEST(StepModel, layers_that_keep_bf16_count_as_such) {
  Cluster c;
  c.device.fp8_tflops = 1979;
  const GpuProperties gpu = gpu_of(c);
  for (const bool fp8_weights : {true, false})
    for (const int pp : {1, 4}) {
      Workload bf16 = gpt_13b();
      bf16.tp = 2;
      bf16.dp = 2;
      bf16.pp = pp;
      bf16.fp8_weights = fp8_weights;
      Workload fp8 = bf16, most = bf16, half = bf16, few = bf16;
      for (Workload* w : {&fp8, &most, &half, &few}) w->numbers = Numbers::kFp8;
      most.fp8_first_layers = most.fp8_last_layers = 1;
      half.fp8_last_layers = 20;
      few.fp8_first_layers = 39;
      const auto ascends = [&](const auto& number) {
        const std::vector<double> numbers{number(fp8), number(most), number(half), number(few), number(bf16)};
        EXPECT_TRUE(std::ranges::is_sorted(numbers)) << fmt::format("{}", fmt::join(numbers, ", "));
        EXPECT_LT(numbers[0], numbers[1]) << pp;
        EXPECT_LT(numbers[3], numbers[4]) << pp;
      };
      if (pp == 1) {
        ascends([&](const Workload& w) { return step(w, c); });
        ascends([&](const Workload& w) { return bound_step(w, c, RingTimes(c)); });
        ascends([&](const Workload& w) { return predict_step(w, c).parts.gemm; });
        ascends([&](const Workload& w) { return estimate_memory(w, gpu).activations; });
      }
      EXPECT_LT(step(fp8, c), step(half, c)) << pp;
      EXPECT_LE(step(half, c), step(bf16, c)) << pp;
      // The bytes that dp gathers: a stage whose layers are all bf16 gathers as many as without FP8.
      const auto gather = [&](const Workload& w) { return step_costs(w, c, RingTimes(c)).traffic.front().gather; };
      EXPECT_EQ(gather(few) == gather(bf16), pp > 1 || !fp8_weights);
      EXPECT_EQ(gather(fp8) < gather(bf16), fp8_weights);
    }
}

TEST(StepModel, gemms_pay_for_waves_and_crooked_rows) {
  Cluster c;
  c.software.launch_us = 0;
  c.device.multiprocessors = 100;
  const auto seconds = [&](double m, double n, double k) {
    return gemm_seconds(c, Numbers::kBf16, m, n, k, kWritesBf16);
  };
  const double one_wave = seconds(10 * 256, 10 * 128, 4096);
  EXPECT_NEAR(2.0 * 2560 * 1280 * 4096 / one_wave / 1e12, c.device.bf16_tflops * c.software.gemm_share, 1);
  EXPECT_GT(seconds(10 * 256 + 1, 10 * 128, 4096), 1.3 * one_wave);  // a second wave, whatever the tile
  EXPECT_NEAR(seconds(2560, 1280, 8192) / one_wave, 2, 0.01);
  EXPECT_NEAR(seconds(2560, 1280, 4096 + 8) / one_wave, 1 / c.software.misaligned_share, 0.01);
}

TEST(StepModel, measured_gemms_are_exact_at_their_sizes) {
  Cluster c;
  c.software.launch_us = 0;
  c.gemms = {{1024, 1024, 1024, 100, 0}, {4096, 4096, 4096, 400, 0}};
  const auto tflops = [&](double size) {
    return 2 * size * size * size / gemm_seconds(c, Numbers::kBf16, size, size, size, kWritesBf16) / 1e12;
  };
  EXPECT_NEAR(tflops(1024), 100, 0.1);
  EXPECT_NEAR(tflops(4096), 400, 0.4);
  EXPECT_GT(tflops(2048), 100);
  EXPECT_LT(tflops(2048), 400);
}

// No GEMM shape exceeds the rate that the device's power sustains; a slower shape is not changed.
TEST(StepModel, gemms_stay_below_what_power_sustains) {
  Cluster c;
  c.software.launch_us = 0;
  c.software.gemm_share = 0.9;
  c.device.multiprocessors = 100;
  const auto seconds = [&](double rows, Numbers numbers) {
    return gemm_seconds(c, numbers, rows, 1280, 4096, kWritesBf16);
  };
  const double free = seconds(2560, Numbers::kBf16), two_waves = seconds(2561, Numbers::kBf16);
  const double fp8 = seconds(2560, Numbers::kFp8);
  c.device.sustained_share = 0.75;
  EXPECT_NEAR(seconds(2560, Numbers::kBf16), 2.0 * 2560 * 1280 * 4096 / (0.75 * c.device.bf16_tflops * 1e12), 1e-9);
  EXPECT_NEAR(seconds(2560, Numbers::kBf16) / free, 0.9 / 0.75, 0.01);
  EXPECT_EQ(seconds(2561, Numbers::kBf16), two_waves);
  EXPECT_EQ(seconds(2560, Numbers::kFp8), fp8);
}

// A late host delays short work but not long work; one that waits for every kernel always adds its time.
TEST(StepModel, a_late_host_is_a_floor_and_a_blocking_one_comes_on_top) {
  Workload small = gpt_13b(), large = gpt_13b();
  small.model.hidden = 512;
  small.model.heads = small.model.kv_heads = 4;
  small.model.ffn_hidden = 2048;
  small.model.seq_len = 64;
  const Cluster quick;
  Cluster late, blocking;
  late.software.host_us = blocking.software.host_us = 100;
  blocking.software.blocking_launches = true;
  const auto forward = [](const Workload& w, const Cluster& c) { return times_of_layer(w, c).forward.total(); };
  Workload shorter = small;
  shorter.model.seq_len = 32;
  EXPECT_LT(forward(shorter, quick), forward(small, quick));
  EXPECT_DOUBLE_EQ(forward(shorter, late), forward(small, late));
  EXPECT_NEAR(forward(small, late), 7 * 100e-6, 1e-9);  // four GEMMs, attention, two norms
  EXPECT_EQ(forward(large, late), forward(large, quick));
  EXPECT_NEAR(forward(large, blocking) - forward(large, quick), 7 * 100e-6, 1e-9);
}

TEST(StepModel, sums_of_gradients_cost_their_bytes) {
  const Workload w = gpt_13b();
  Cluster c;
  c.software.launch_us = 0;
  c.software.memory_share = 1;
  const auto backward = [&] { return times_of_layer(w, c).backward.memory; };
  const double before = backward();
  c.software.accumulate_bytes = 12;
  EXPECT_NEAR(backward() - before, 12 * largest_layer_parameters(w.layers()) / (c.device.memory_gb_per_s * 1e9), 1e-9);
}

// The iterations are divided among the ranks of a stage, and their FLOPs cannot run faster than the peak.
TEST(StepModel, muon_pays_for_its_iterations) {
  const Cluster c = without_transfers();
  Workload w = gpt_13b();
  double flops = 0;
  for (const LinearSpec& linear : w.layers()[0].linears())
    for (const MatrixShape& matrix : linear.matrices()) flops += w.model.layers * iteration_flops(matrix);
  double before = 0;
  for (const int dp : {1, 8, 64}) {
    w.dp = dp;
    w.muon = false;
    w.matrix_bytes = 8;
    const double adamw = predict_step(w, c).parts.optimizer;
    w.muon = true;
    w.matrix_bytes = 4;
    const double more = predict_step(w, c).parts.optimizer - adamw, least = flops / peak_flops(c, w.numbers) / dp;
    EXPECT_GT(more, 0.9 * least) << dp;  // the memory traffic of the second moment is gone
    EXPECT_LT(more, 2.5 * least) << dp;
    if (before > 0) {
      EXPECT_LT(more, before) << dp;
    }
    before = more;
  }
}

// An activation in a GEMM's epilogue takes a share of its own kernel's time: two tensors of the MLP's width in forward,
// three in backward. FP8's casts and SwiGLU's kernel take their time without it.
TEST(StepModel, epilogues_cost_their_share_of_a_kernel) {
  Workload gpt = gpt_13b(), fp8 = gpt, swiglu = gpt;
  fp8.numbers = Numbers::kFp8;
  swiglu.model.activation = Activation::kSwiglu;
  Cluster free, exposed;
  exposed.software.epilogue_exposed = 0.5;
  const double tensor = 2.0 * gpt.model.seq_len * gpt.model.ffn_hidden / memory_bytes_per_second(free);
  const LayerTimes before = times_of_layer(gpt, free), after = times_of_layer(gpt, exposed);
  EXPECT_NEAR(after.forward.gemm - before.forward.gemm, 0.5 * 2 * tensor, 1e-9);
  EXPECT_NEAR(after.backward.gemm - before.backward.gemm, 0.5 * 3 * tensor, 1e-9);
  for (const Workload& w : {fp8, swiglu}) EXPECT_EQ(step(w, free), step(w, exposed));
}

TEST(StepModel, names_heads_that_have_no_kernel_on_tensor_cores) {
  Workload w = gpt_13b();
  Cluster c;
  c.software.name = "Trireme";
  EXPECT_EQ(attention_note(w, c), "");
  w.model.head_dim = 256;
  EXPECT_EQ(attention_note(w, c), "");
  w.model.head_dim = 264;
  EXPECT_NE(attention_note(w, c).find("head size 264"), std::string::npos);
  c.software.name = "NeMo";
  EXPECT_EQ(attention_note(w, c), "");
}

// Trireme's backward pass has slower kernels for heads above 128.
TEST(StepModel, wide_heads_have_a_slower_backward_pass) {
  Workload w = gpt_13b();
  Cluster c;
  c.software.name = "Trireme";
  const LayerTimes narrow = times_of_layer(w, c);
  w.model.head_dim = 256;
  w.model.heads /= 2;
  w.model.kv_heads /= 2;
  const LayerTimes wide = times_of_layer(w, c);
  EXPECT_GT(wide.backward.attention, 1.6 * narrow.backward.attention);
  EXPECT_LT(wide.forward.attention, 1.1 * narrow.forward.attention);
}

// Heads of 64 have an exponential per half as many FLOPs.
TEST(StepModel, exponentials_cost_small_heads_more) {
  Workload wide = gpt_13b(), narrow = gpt_13b();
  narrow.model.heads = narrow.model.kv_heads = 2 * wide.model.heads;
  narrow.model.head_dim = wide.model.head_dim / 2;
  Cluster c;
  const auto ratio = [&] {
    return times_of_layer(narrow, c).forward.attention / times_of_layer(wide, c).forward.attention;
  };
  c.device.exponential_flops = 0;
  EXPECT_NEAR(ratio(), 1, 1e-9);
  c.device.exponential_flops = 128;
  EXPECT_NEAR(ratio(), 1.2, 1e-9);
  c.device.exponential_flops = 256;
  EXPECT_NEAR(ratio(), 4.0 / 3, 1e-9);
}

// Sums over tp that run concurrently with weight GEMMs: with sequence parallelism half of backward's transfers,
// otherwise all.
TEST(StepModel, async_sums_hide_backward_transfers_alone) {
  Workload w = gpt_13b();
  w.tp = 8;
  w.overlap_tp = false;
  Cluster c;
  c.software.hidden_share = 1;
  c.software.beside_slowdown = 0;
  c.node.gb_per_s = 1e4;  // any GEMM takes longer than a transfer
  const LayerTimes open = times_of_layer(w, c);
  w.async_sums = true;
  LayerTimes hidden = times_of_layer(w, c);
  EXPECT_EQ(hidden.forward.tp, open.forward.tp);
  EXPECT_NEAR(hidden.backward.tp / open.backward.tp, 0.5, 1e-9);
  w.sequence_parallel = false;
  EXPECT_NEAR(times_of_layer(w, c).backward.tp, 0, 1e-9);
}

// A forward pass waits for its first bucket, and for the last one if gathers are slower than the pass.
TEST(StepModel, parameters_are_waited_for_bucket_by_bucket) {
  Workload w = gpt_13b();
  ColumnCosts column{.forward = {0.010}};
  const auto wait = [&](double gather, double first_forward = 0) {
    return gather_wait(w, column, {{.buckets = 5, .gather = gather}}, {first_forward}, 1);
  };
  EXPECT_NEAR(wait(0.001), 0.001, 1e-12);
  EXPECT_NEAR(wait(0.004), 5 * 0.004 - 0.008, 1e-12);  // the last bucket is used after four fifths of the pass
  EXPECT_NEAR(wait(0.004, 0.005), 5 * 0.004 - 0.008 - 0.005, 1e-12);
  EXPECT_EQ(wait(0.001, 0.005), 0);
  w.overlap_dp = false;
  EXPECT_NEAR(wait(0.001, 0.005), 0.005, 1e-12);
}

TEST(StepModel, rings_match_their_formula) {
  Cluster c;
  c.node = {.ranks = 8, .gb_per_s = 200, .latency_us = 3, .start_us = 10};
  c.network = {.gb_per_s = 25, .share = 1, .latency_us = 14};
  const RingTimes times(c);
  EXPECT_DOUBLE_EQ(times.seconds({Collective::kAllGather, 8e9, 8, 8}), 10e-6 + 7 * 3e-6 + 7e9 / 200e9);
  EXPECT_DOUBLE_EQ(times.seconds({Collective::kReduceScatter, 16e9, 16, 1}), 10e-6 + 15 * 14e-6 + 15e9 / 25e9);
  EXPECT_EQ(times.seconds({Collective::kAllReduce, 8e9, 1, 1}), 0);
  // 1,536 replicas, one per node: 21 ms of latency per collective (NCCL's constants).
  EXPECT_NEAR(times.seconds({Collective::kAllGather, 1, 1536, 1}), 21.5e-3, 0.1e-3);
}

// A machine's ranks share its adapters. One ring of a group with several ranks on a machine uses one of them, together
// with the rings of the other groups.
TEST(StepModel, shared_adapters_divide_their_rate) {
  Cluster c;
  c.node = {.ranks = 8, .adapters = 4, .gb_per_s = 200, .latency_us = 0, .start_us = 0};
  c.network = {.gb_per_s = 25, .share = 1, .latency_us = 0};
  EXPECT_EQ(rank_gb_per_s(c), 12.5);
  const RingTimes times(c);
  const auto seconds = [&](int on_node) { return times.seconds({Collective::kAllGather, 16e9, 16, on_node}); };
  EXPECT_DOUBLE_EQ(seconds(1), 15e9 / 12.5e9);
  EXPECT_DOUBLE_EQ(seconds(8), 15e9 / 25e9);
  EXPECT_DOUBLE_EQ(seconds(2), 15e9 / 6.25e9);
  EXPECT_DOUBLE_EQ(seconds(16), 15e9 / 200e9);
  EXPECT_DOUBLE_EQ(times.seconds({Collective::kMessage, 25e9, 2, 1}), 2);
  c.node.adapters = 8;
  EXPECT_EQ(rank_gb_per_s(c), 25);
  EXPECT_DOUBLE_EQ(seconds(2), 15e9 / 50e9);
}

// software.layer_us counts per layer and microbatch, on each rank for its own layers.
TEST(StepModel, layers_take_constant_time_per_microbatch) {
  Workload w = gpt_13b();
  Cluster slower;
  slower.software.layer_us = 300;
  EXPECT_NEAR(step(w, slower) - step(w), 300e-6 * 40 * w.num_microbatches(), 1e-9);
  w.pp = 4;
  const StepPrediction split = predict_step(w, slower, RingTimes(slower), Stragglers::kOff);
  EXPECT_NEAR(split.parts.fixed, 300e-6 * 10 * w.num_microbatches(), 1e-9);
}

// However long compute lasts, overlap hides no more than hidden_share of dp's transfers.
TEST(StepModel, a_share_of_dp_transfers_stays_exposed) {
  Workload w = gpt_13b();
  w.dp = 4;
  w.global_batch = 512;
  Cluster c;
  c.software.beside_slowdown = 0;
  const double transfers = transfer_loads(w, c, RingTimes(c)).dp;
  for (const int zero : {1, 2, 3}) {
    w.zero = zero;
    c.software.hidden_share = 1;
    const double hidden = step(w, c);
    c.software.hidden_share = 0.5;
    const double all = zero == 1 ? transfers : transfer_loads(w, c, RingTimes(c)).dp;
    EXPECT_NEAR((step(w, c) - hidden) / (0.5 * all), 1, 0.1) << zero;
  }
}

// A kernel adds up what dp's copies brought: it reads each member's part of this rank's slices and writes the sums.
TEST(StepModel, copies_pay_for_the_sums_of_gradients) {
  Workload nccl = gpt_13b();
  nccl.dp = 4;
  Workload copies = nccl;
  copies.dp_copies = true;
  const Cluster c;
  const double bytes = 4.0 * parameters_of_stage(nccl, nccl.layers(), 0) * (1 + 1.0 / 4);
  EXPECT_NEAR((step(copies, c) - step(nccl, c)) / (bytes / memory_bytes_per_second(c)), 1, 1e-6);
  const double once = step(copies, c) - step(nccl, c);
  nccl.zero = copies.zero = 2;
  EXPECT_NEAR((step(copies, c) - step(nccl, c)) / once, nccl.num_microbatches(), 1e-6);
}

// Reductions hidden behind compute are not free: they slow it down, including those of earlier microbatches.
TEST(StepModel, zero_2_pays_for_every_microbatchs_reductions) {
  Workload one = gpt_13b();
  one.tp = 8;
  one.dp = 4;
  one.micro_batch = 8;
  one.global_batch = 512;
  Workload two = one;
  two.zero = 2;
  Cluster c;
  c.software.beside_slowdown = 0;
  c.software.hidden_share = 1;
  EXPECT_NEAR(step(two, c), step(one, c), 1e-9) << "all of them hide";
  c.software.beside_slowdown = 0.2;
  const TransferLoads loads = transfer_loads(two, c, RingTimes(c)), single = transfer_loads(one, c, RingTimes(c));
  EXPECT_NEAR(step(two, c) - step(one, c), 0.2 * (loads.dp - single.dp), 1e-9);
  EXPECT_GT(step(two, c), 1.005 * step(one, c));
}

}  // namespace
}  // namespace tri
