#include "lib/bench/overlap.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "lib/bench/measure.h"
#include "lib/engine/runtime.h"
#include "lib/model/block.h"
#include "lib/tune/aligned_timer.h"
#include "lib/tune/gemm_tuning.h"
#include "lib/tune/layer_transfers.h"
#include "lib/tune/null_group.h"
#include "lib/tune/overlap_splits.h"

namespace tri {
namespace {

using Work = std::function<void()>;  // enqueues; afterwards the compute stream has waited for it

// What is measured. `together` is what a step does.
struct Case {
  std::string axis, transfer, compute;
  int64_t bytes = 0;
  Work transfer_alone, compute_alone, together;
  Work prepare = [] {};  // before each sample, not timed
};

// Beside the rank's own memory.
struct Extra {
  Tensor number;          // (1) f32
  Tensor bucket, source;  // (largest bucket of matrices) f32
  Tensor block_input;     // (Rl, C)
  Tensor sends[2];        // (Rl, C)
};

const Bucket& largest_bucket(const StoreTensors& store) {
  const Bucket* largest = nullptr;
  for (const ChunkStoreTensors& chunk : store.chunks)
    for (const Bucket& bucket : chunk.layout.buckets)
      if (bucket.matrices && (largest == nullptr || bucket.size > largest->size)) largest = &bucket;
  TRI_REQUIRE(largest != nullptr, "no bucket of matrices on a stage of {} chunks", store.chunks.size());
  return *largest;
}

struct Memory {
  RankTensors rank;
  Extra extra;
};

Memory allocate(const Config& config, const Mesh& mesh, Arena& arena) {
  Memory m{.rank = allocate_rank(config, mesh, arena)};
  const StageDims d = stage_dims(config, mesh);
  const std::string name = "bench";
  m.extra.number = arena.take(name, Dtype::kF32, {1});
  const int64_t bucket = mesh.dp.size > 1 ? largest_bucket(m.rank.store).size : 0;
  for (Tensor* tensor : {&m.extra.bucket, &m.extra.source}) *tensor = arena.take(name, Dtype::kF32, {bucket});
  m.extra.block_input = arena.take(name, d.dtype, {d.Rl, d.C});
  for (Tensor& tensor : m.extra.sends) tensor = arena.take(name, d.dtype, {d.Rl, d.C});
  return m;
}

class Bench {
 public:
  Bench(const Config& config, const Mesh& mesh, Job& job, Device& device, Arena& arena, int rounds)
      : config_(config),
        mesh_(mesh),
        job_(job),
        device_(device),
        rounds_(rounds),
        memory_(allocate(config, mesh, arena)),
        runtime_(config, mesh, &job, device, arena,
                 {.tp = memory_.rank.stage.exchange,
                  .dp = memory_.rank.store.exchange,
                  .boundaries = memory_.rank.boundaries}),
        store_(config, mesh, memory_.rank.store, microbatches(config), device, runtime_.compute(), runtime_.dp(),
               runtime_.dp_exchange()),
        hooks_(store_, 0.0f),
        silence_(mesh.tp),
        silent_tp_(silence_, runtime_.compute(), device, TimeCategory::kTp),
        ctx_(context(runtime_.tp(), runtime_.row_exchange())),
        alone_(context(silent_tp_, nullptr)),
        layer_(first_layer(config, memory_.rank.stage)),
        timer_(runtime_, job, device, memory_.extra.number),
        ready_(device.make_event()) {
    for (auto& done : done_) done = device.make_event();
    device.lend_workspace(memory_.rank.kernel_workspace);
    search_gemms(config, mesh, &job, device, memory_.rank, store_, runtime_.compute(), nullptr, "");  // whole, alone
    splits_ = find_overlap_splits(config, mesh, &job, device, memory_.rank, store_, runtime_, "", "");
    store_.make_start_values();
    fill();
    bind();
  }
  // As the trainer: events outlive the work that uses them.
  ~Bench() {
    runtime_.drain();
    device_.lend_workspace({});
  }

  std::vector<OverlapRow> run() {
    std::vector<OverlapRow> rows;
    if (mesh_.tp.size > 1)
      for (const LayerTransfer& transfer :
           layer_transfers(config_, mesh_, memory_.rank.stage, store_.parameters().front()))
        rows.push_back(measure(row_case(transfer), mesh_.tp.size));
    if (mesh_.dp.size > 1)
      for (const Case& c : buckets()) rows.push_back(measure(c, mesh_.dp.size));
    if (mesh_.pp.size > 1) rows.push_back(measure(boundary(), mesh_.pp.size));
    runtime_.synchronize();
    return rows;
  }

 private:
  LayerContext context(Channel& tp, RowExchange* exchange) {
    return {.config = config_,
            .dims = stage_dims(config_, mesh_),
            .work = memory_.rank.stage.work,
            .compute = runtime_.compute(),
            .tp = tp,
            .exchange = exchange,
            .splits = splits_,
            .hooks = hooks_};
  }

  void fill() {
    const Workspace& w = memory_.rank.stage.work;
    const LayerTensors& t = layer_;
    const Extra& e = memory_.extra;
    for (const Tensor& tensor :
         {w.partial,    w.normed, w.activated,  w.dstream, w.dnormed,     w.dfc1,      w.dactivated,
          w.dattention, w.dqkv,   w.rope_table, t.normed1, t.qkv,         t.attention, t.middle,
          t.normed2,    t.fc1,    t.activated,  e.source,  e.block_input, e.sends[0],  e.sends[1]})
      fill_random(tensor, runtime_.compute());
  }

  void bind() {
    const std::vector<Parameter>& parameters = store_.parameters().front();
    const int layer = layers_of(config_, mesh_.pp, 0).first;
    fc1_ = ColumnLinear::bind(Linear::kFc1, parameters, layer);
    block_ = std::make_unique<TransformerBlock>(layer, parameters, config_);
  }

  Case row_case(const LayerTransfer& transfer) {
    std::string how = transfer.reduces ? "reduce" : "gather";
    if (ctx_.exchange != nullptr) {
      const OverlapSplit split = splits_.of(transfer.linear, transfer.pass);
      const int pieces = split.pieces == 0 ? mesh_.tp.size : split.pieces;
      how += split.direct ? ", direct" : fmt::format(", {} piece{}", pieces, pieces == 1 ? "" : "s");
    }
    return {.axis = "tp",
            .transfer = how,
            .compute = transfer.beside,
            .bytes = transfer.rows.bytes(),
            .transfer_alone = [=, this] { transfer.alone(ctx_); },
            .compute_alone = [=, this] { transfer.together(alone_); },
            .together = [=, this] { transfer.together(ctx_); }};
  }

  // `start` enqueues the transfer and `finish` lets compute wait for it; beside it so many runs of `compute` that they
  // last longer.
  Case beside(Case c, const Work& start, const Work& compute, const Work& finish) {
    c.transfer_alone = [=] {
      start();
      finish();
    };
    c.prepare();
    const double transfer = quick(c.transfer_alone), once = quick(compute, 4);
    constexpr double kLonger = 2, kMost = 64;
    const int count = static_cast<int>(std::clamp(std::ceil(kLonger * transfer / once), 1.0, kMost));
    if (count > 1) c.compute += fmt::format(" x {}", count);
    c.compute_alone = [=] {
      for (int i = 0; i < count; ++i) compute();
    };
    c.together = [=, all = c.compute_alone] {
      start();
      all();
      finish();
    };
    return c;
  }

  std::vector<Case> buckets() {
    Channel& dp = runtime_.dp();
    RowExchange* const exchange = runtime_.dp_exchange();
    const Tensor bucket = memory_.extra.bucket, source = memory_.extra.source;
    const Tensor normed = layer_.normed1;
    const auto part = [size = mesh_.dp.size, rank = mesh_.dp.rank](Tensor whole) {
      return whole.flat(rank * (whole.numel() / size), whole.numel() / size);
    };
    const Work restore = [=, this] {  // sums in place would grow
      runtime_.compute().copy(bucket.data, source.data, source.bytes());
    };
    const bool sharded = config_.parallel.zero >= 1;
    std::vector<Case> cases;
    cases.push_back(beside(
        {.axis = "dp",
         .transfer = !sharded              ? "all-reduce"
                     : exchange == nullptr ? "reduce-scatter"
                                           : "reduce by copies",
         .compute = "fc1 weight gradient",
         .bytes = bucket.bytes(),
         .prepare = restore},
        [=, this, &dp] {
          dp.after(runtime_.compute());
          if (exchange != nullptr)
            reduce_bucket(*exchange, part(bucket), bucket, false, dp.stream());
          else
            sharded ? dp.reduce_scatter(part(bucket), bucket) : dp.all_reduce(bucket, ReduceOp::kSum);
        },
        [=, this] { fc1_.backward_weight_alone(alone_, alone_.work.dfc1, normed); },
        [this, &dp] { dp.before(runtime_.compute()); }));
    if (!sharded) return cases;  // every rank updates all parameters: nothing to gather
    const Tensor parameters(bucket.data, config_.precision.compute, {bucket.numel()});
    cases.push_back(beside(
        {.axis = "dp",
         .transfer = exchange == nullptr ? "all-gather" : "gather by copies",
         .compute = "fc1 forward",
         .bytes = parameters.bytes(),
         .prepare = restore},
        [=, this, &dp] {
          if (exchange != nullptr) {
            exchange->begin_gather(parameters, runtime_.compute());
            return exchange->start_gather(parameters, runtime_.compute());
          }
          dp.after(runtime_.compute());
          dp.all_gather(parameters, part(parameters));
        },
        [=, this] {
          if (config_.model.activation == Activation::kGelu)
            fc1_.forward_gelu(alone_, layer_.activated, layer_.fc1, normed);
          else
            fc1_.forward(alone_, layer_.fc1, normed);
        },
        [=, this, &dp] {
          if (exchange == nullptr) return dp.before(runtime_.compute());
          exchange->finish_gather(parameters, runtime_.compute());
          exchange->settle(runtime_.compute());
        }));
    return cases;
  }

  // All that a stage in the middle of 1F1B exchanges with its neighbours beside one action.
  Case boundary() {
    const PipelineLinks links = runtime_.links();
    const Extra& e = memory_.extra;
    const BoundaryTensors& boundaries = memory_.rank.boundaries;
    // A receive goes to the next buffer of its ring; rank 0's first chunk receives nothing, its second one does.
    struct Transfer {
      Link link;
      int ring;                            // the receiver's
      const std::vector<Tensor>* buffers;  // of a receive
      Tensor tensor;                       // of a send
      std::shared_ptr<size_t> next = std::make_shared<size_t>(0);
    };
    const int ring_here = mesh_.pp.first() ? 1 : 0, ring_there = mesh_.pp.last() ? 1 : 0;
    const std::vector<Tensor>* inputs =
        links.recv_forward.exists() ? &boundaries.inputs[static_cast<size_t>(ring_here)] : nullptr;
    const std::vector<Transfer> transfers = {{links.recv_forward, ring_here, inputs, {}},
                                             {links.send_forward, ring_there, nullptr, e.sends[0]},
                                             {links.recv_backward, 0, &boundaries.doutputs, {}},
                                             {links.send_backward, 0, nullptr, e.sends[1]}};
    Stream& compute = runtime_.compute();
    const auto start = [=, this, &compute] {
      compute.record(*ready_);
      for (size_t i = 0; i < transfers.size(); ++i) {
        const auto& [link, ring, buffers, tensor, next] = transfers[i];
        if (!link.exists()) continue;
        link.stream->wait(*ready_);
        if (buffers == nullptr)
          link.send(tensor, ring);
        else
          link.recv((*buffers)[(*next)++ % buffers->size()], ring);
        link.stream->record(*done_[i]);
        if (buffers == nullptr && !config_.parallel.overlap_pp) compute.wait(*done_[i]);  // as the executor does
      }
    };
    const auto finish = [=, this, &compute] {
      for (size_t i = 0; i < transfers.size(); ++i)
        if (transfers[i].link.exists()) compute.wait(*done_[i]);
    };
    const auto forward = [this] {
      LayerTensors t = layer_;
      block_->forward(ctx_, {.inp = memory_.extra.block_input}, t);
    };
    return beside({.axis = "pp",
                   .transfer = "send and receive, both ways",
                   .compute = "block forward",
                   .bytes = e.sends[0].bytes()},
                  start, forward, finish);
  }

  double quick(const Work& work, int repeats = 1) {
    std::vector<double> seconds;
    for (int round = -1; round < 3; ++round) {
      const double one = timer_.sample(work, repeats);
      if (round >= 0) seconds.push_back(one);
    }
    return std::max(1e-9, median(timer_.slowest(seconds)));
  }

  // The three in turns, so that a device that slows down slows down all of them.
  OverlapRow measure(const Case& c, int ranks) {
    c.prepare();
    // Long enough for the clock, and not so often that sums in place overflow.
    constexpr double kLongEnough = 5e-3, kMostRepeats = 8;
    const int repeats = static_cast<int>(std::clamp(std::ceil(kLongEnough / quick(c.together)), 1.0, kMostRepeats));
    const Work* works[] = {&c.transfer_alone, &c.compute_alone, &c.together};
    std::vector<double> seconds[3];
    for (int round = -1; round < rounds_; ++round)
      for (int kind = 0; kind < 3; ++kind) {
        c.prepare();
        const double one = timer_.sample(*works[kind], repeats);
        if (round >= 0) seconds[kind].push_back(one);
      }
    for (auto& list : seconds) list = timer_.slowest(list);
    const double transfer = median(seconds[0]), compute = median(seconds[1]), together = median(seconds[2]);
    std::vector<double> added;
    for (size_t i = 0; i < seconds[2].size(); ++i) added.push_back(seconds[2][i] - seconds[1][i]);
    std::sort(added.begin(), added.end());
    const double scatter = added[added.size() * 3 / 4] - added[added.size() / 4];
    return {.axis = c.axis,
            .transfer = c.transfer,
            .compute = c.compute,
            .ranks = ranks,
            .bytes = c.bytes,
            .transfer_us = 1e6 * transfer,
            .compute_us = 1e6 * compute,
            .together_us = 1e6 * together,
            .hidden = hidden_fraction(transfer, compute, together),
            .uncertain = scatter > transfer / 2};
  }

  const Config& config_;
  const Mesh mesh_;
  Job& job_;
  Device& device_;
  const int rounds_;
  Memory memory_;
  Runtime runtime_;
  ParameterStore store_;
  NullHooks hooks_;
  NullGroup silence_;
  Channel silent_tp_;
  OverlapSplits splits_;
  LayerContext ctx_, alone_;  // as in a step; with a tp group in which nothing moves
  LayerTensors layer_;
  AlignedTimer timer_;
  ColumnLinear fc1_;
  std::unique_ptr<TransformerBlock> block_;
  std::unique_ptr<Event> ready_, done_[4];  // of the boundary's transfers
};

}  // namespace

Hidden hidden_fraction(double transfer, double compute, double together) {
  Hidden hidden;
  hidden.raw = transfer > 0 ? 1 - (together - compute) / transfer : 0;
  hidden.fraction = std::clamp(hidden.raw, 0.0, 1.0);
  hidden.clamped = hidden.fraction != hidden.raw;
  return hidden;
}

std::vector<OverlapRow> bench_overlap(const Config& config, const Mesh& mesh, Job& job, Device& device,
                                      const OverlapBench& bench) {
  if (mesh.world_size() == 1) return {};
  Arena measuring;
  allocate(config, mesh, measuring);
  Arena arena(device, measuring.used());
  return Bench(config, mesh, job, device, arena, bench.rounds).run();
}

}  // namespace tri
