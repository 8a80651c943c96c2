#include "lib/bench/overlap.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "lib/bench/measure.h"
#include "lib/engine/engine.h"
#include "lib/model/block.h"
#include "lib/model/layer_division.h"
#include "lib/tune/aligned_timer.h"
#include "lib/tune/gemm_tuning.h"
#include "lib/tune/layer_transfers.h"
#include "lib/tune/null_objects.h"
#include "lib/tune/overlap_splits.h"

namespace tri {
namespace {

using Work = std::function<void()>;  // enqueues work for which the compute stream waits

// One measurement. `together` is what a step does.
struct OverlapCase {
  std::string axis, transfer, compute;
  int64_t bytes = 0;
  Work transfer_alone, compute_alone, together;
  Work prepare = [] {};  // runs before each sample, untimed
};

// Tensors in addition to the rank's own memory.
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
      if (bucket.matrices && !bucket.sharded_over().empty() && (largest == nullptr || bucket.size > largest->size))
        largest = &bucket;
  TRI_REQUIRE(largest != nullptr, "a stage of {} chunks has no bucket of matrices", store.chunks.size());
  return *largest;
}

Extra allocate_extra(const Config& config, const Mesh& mesh, const StoreTensors& store, Arena& arena) {
  Extra extra;
  const StageDims d = stage_dims(config, mesh);
  const std::string name = "bench";
  extra.number = arena.take(name, Dtype::kF32, {1});
  const int64_t bucket = mesh.joint_axis(kBucketAxes).size > 1 ? largest_bucket(store).size : 0;
  for (Tensor* tensor : {&extra.bucket, &extra.source}) *tensor = arena.take(name, Dtype::kF32, {bucket});
  extra.block_input = arena.take(name, d.dtype, {d.Rl, d.C});
  for (Tensor& tensor : extra.sends) tensor = arena.take(name, d.dtype, {d.Rl, d.C});
  return extra;
}

class OverlapMeasurement {
 public:
  OverlapMeasurement(const Config& config, const Mesh& mesh, Job& job, Device& device, Arena& arena,
                     const OverlapBench& bench)
      : config_(config),
        mesh_(mesh),
        rounds_(bench.rounds),
        engine_({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena}),
        extra_(allocate_extra(config, mesh, engine_.tensors().store, arena)),
        runtime_(engine_.runtime()),
        hooks_(engine_.store().memory, 0.0f),
        null_group_(mesh.axis("tp")),
        null_tp_(GroupOnStream(null_group_, runtime_.compute(), device, TimeCategory::kTp), device),
        ctx_(context(runtime_.tp())),
        alone_(context(null_tp_)),
        layer_(first_layer(config, mesh, engine_.tensors().stage)),
        timer_(engine_, extra_.number),
        ready_(device.make_event()) {
    for (auto& done : done_) done = device.make_event();
    search_gemms(engine_, null_tp_, {}, "");  // undivided, without tp transfers
    engine_.set_overlap_splits(find_overlap_splits(engine_, {}));
    engine_.make_start_values();
    fill();
    bind();
  }
  ~OverlapMeasurement() { runtime_.synchronize(); }  // events must outlive the work that uses them, as in the trainer

  std::vector<OverlapRow> run() {
    std::vector<OverlapRow> rows;
    if (mesh_.axis("tp").size > 1)
      for (const LayerTransfer& transfer :
           layer_transfers(config_, mesh_, engine_.tensors().stage, engine_.parameters().front()))
        rows.push_back(measure(row_case(transfer), mesh_.axis("tp").size));
    if (runtime_.dp().size() > 1)
      for (const OverlapCase& c : buckets()) rows.push_back(measure(c, runtime_.dp().size()));
    if (mesh_.axis("pp").size > 1) rows.push_back(measure(boundary(), mesh_.axis("pp").size));
    runtime_.synchronize();
    return rows;
  }

 private:
  LayerContext context(AxisTransfers& tp) {
    return {.config = config_,
            .dims = stage_dims(config_, mesh_),
            .work = engine_.tensors().stage.work,
            .compute = runtime_.compute(),
            .tp = tp,
            .splits = engine_.overlap_splits(),
            .hooks = hooks_,
            .fp8 = engine_.stage().fp8()};
  }

  void fill() {
    const LayerWorkspace& w = engine_.tensors().stage.work;
    const LayerTensors& t = layer_;
    const Extra& e = extra_;
    for (const Tensor& tensor : {w.partial,
                                 w.normed,
                                 w.dstream,
                                 w.dnormed,
                                 w.dbranch,
                                 w.bias,
                                 w.mlp.activated,
                                 w.mlp.dfc1,
                                 w.mlp.dactivated,
                                 w.attention.dout,
                                 w.attention.dqkv,
                                 w.attention.rope_input,
                                 w.attention.rope.global,
                                 w.attention.rope.local,
                                 t.normed[0],
                                 t.normed[1],
                                 t.middle,
                                 t.outputs[0],
                                 t.outputs[1],
                                 t.attention.projected,
                                 t.attention.qkv,
                                 t.attention.out,
                                 t.mlp.fc1,
                                 t.mlp.activated,
                                 e.source,
                                 e.block_input,
                                 e.sends[0],
                                 e.sends[1]})
      if (!is_fp8(tensor.dtype)) fill_random(tensor, runtime_.compute());
  }

  void bind() {
    const std::vector<Parameter>& parameters = engine_.parameters().front();
    const int layer = layers_of(config_, mesh_.axis("pp"), 0).first;
    const LayerSpec spec = layers_of_model(config_)[layer];
    fc1_ = ColumnLinear::bind(Branch::kMlp, spec.mlp.fc1(), spec, parameters, layer);
    block_ = std::make_unique<TransformerBlock>(layer, parameters, config_);
  }

  OverlapCase row_case(const LayerTransfer& transfer) {
    const OverlapSplit split = engine_.overlap_splits().of(transfer.linear, transfer.pass);
    return {.axis = "tp",
            .transfer = transfer.reduces ? ctx_.tp.reduce_name(split) : ctx_.tp.gather_name(split),
            .compute = transfer.alongside,
            .bytes = transfer.rows.bytes(),
            .transfer_alone = [=, this] { transfer.alone(ctx_); },
            .compute_alone = [=, this] { transfer.together(alone_); },
            .together = [=, this] { transfer.together(ctx_); }};
  }

  // `start` enqueues the transfer and `finish` makes compute wait for it. In between run enough calls of `compute` to
  // last longer than the transfer.
  OverlapCase alongside(OverlapCase c, const Work& start, const Work& compute, const Work& finish) {
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

  std::vector<OverlapCase> buckets() {
    AxisTransfers& dp = runtime_.dp();
    GroupOnStream& collectives = dp.collectives();
    const Tensor bucket = extra_.bucket, source = extra_.source;
    const Tensor normed = layer_.normed[0];
    const Work restore = [=, this] {  // repeated sums in place would grow
      runtime_.compute().copy(bucket.data, source.data, source.bytes());
    };
    const bool sharded = config_.parallel.zero >= 1;
    const OverlapSplit undivided{.num_splits = 1};
    std::vector<OverlapCase> cases;
    cases.push_back(alongside(
        {.axis = "dp",
         .transfer = sharded ? dp.reduce_name(undivided) : "all-reduce",
         .compute = "fc1 weight gradient",
         .bytes = bucket.bytes(),
         .prepare = restore},
        [=, this, &dp, &collectives] {
          collectives.after(runtime_.compute());
          if (sharded)
            reduce_bucket(&dp, SumInto::kOverwrite, dp.local_rows(bucket), bucket, collectives.stream());
          else
            collectives.all_reduce(bucket, ReduceOp::kSum);
        },
        [=, this] { fc1_.backward_weight_alone(alone_, alone_.work.mlp.dfc1, normed); },
        [this, &collectives] { collectives.before(runtime_.compute()); }));
    if (!sharded) return cases;  // every rank updates all parameters, so there is nothing to gather
    const Dtype gathered = keeps_fp8_weights(config_) ? Dtype::kE4M3 : config_.precision.compute;
    const Tensor parameters(bucket.data, gathered, {bucket.numel()});
    cases.push_back(alongside(
        {.axis = "dp",
         .transfer = dp.gather_name(undivided),
         .compute = "fc1 forward",
         .bytes = parameters.bytes(),
         .prepare = restore},
        [=, this, &dp] {
          dp.begin_gather(parameters, runtime_.compute());
          dp.start_gather(parameters, runtime_.compute());
        },
        [=, this] {
          if (config_.model.activation == Activation::kGelu)
            fc1_.forward_gelu(alone_, layer_.mlp.activated, layer_.mlp.fc1, normed);
          else
            fc1_.forward(alone_, layer_.mlp.fc1, normed);
        },
        [=, this, &dp] {
          dp.finish_gather(parameters, runtime_.compute());
          dp.wait_until_read(runtime_.compute());
        }));
    return cases;
  }

  // Everything that a stage in the middle of 1F1B exchanges with its neighbours during one action.
  OverlapCase boundary() {
    const PipelineLinks links = runtime_.links();
    const Extra& e = extra_;
    const BoundaryTensors& boundaries = engine_.tensors().boundaries;
    // A receive uses the next buffer of its ring. Rank 0's first chunk receives nothing; its second one does.
    struct Transfer {
      Link link;
      int ring;                            // the receiver's
      const std::vector<Tensor>* buffers;  // of a receive
      Tensor tensor;                       // of a send
      std::shared_ptr<size_t> next = std::make_shared<size_t>(0);
    };
    // A folded pipeline has an open ring of stages, and this its first route.
    const Axis pp = mesh_.axis("pp");
    const int ring_here = pp.first() && !pp.folded ? 1 : 0, ring_there = pp.last() && !pp.folded ? 1 : 0;
    const std::vector<Tensor>* inputs =
        links.recv_forward.exists() ? &boundaries.inputs[static_cast<size_t>(ring_here)] : nullptr;
    const std::vector<Transfer> transfers = {{links.recv_forward, ring_here, inputs, {}},
                                             {links.send_forward, ring_there, nullptr, e.sends[0]},
                                             {links.recv_backward, 0, &boundaries.doutputs[0], {}},
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
      block_->forward(ctx_, {.inp = extra_.block_input}, t);
    };
    return alongside({.axis = "pp",
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

  // Alternates the three, so that a device that slows down affects all of them.
  OverlapRow measure(const OverlapCase& c, int ranks) {
    c.prepare();
    // Long enough for the clock, but few enough that sums in place do not overflow.
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
  const int rounds_;
  Engine engine_;
  const Extra extra_;
  Runtime& runtime_;  // owned by the engine
  NullHooks hooks_;
  NullGroup null_group_;
  CollectiveTransfers null_tp_;
  LayerContext ctx_, alone_;  // ctx_: as in a step; alone_: with a tp group that transfers nothing
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
  Arena measuring(device);
  allocate_extra(config, mesh, allocate_rank(config, mesh, measuring).store, measuring);
  Arena arena(device, measuring.used());
  return OverlapMeasurement(config, mesh, job, device, arena, bench).run();
}

}  // namespace tri
