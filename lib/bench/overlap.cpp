#include "lib/bench/overlap.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <sstream>

#include "lib/bench/measure.h"
#include "lib/model/block.h"
#include "lib/train/gemm_tuning.h"
#include "lib/train/runtime.h"
#include "lib/train/silent.h"

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
  Tensor number;              // (1) f32
  Tensor bucket, source;      // (largest bucket of matrices) f32
  Tensor block_input;         // (Rl, C)
  Tensor sends[2], recvs[2];  // (Rl, C)
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
  for (int way = 0; way < 2; ++way)
    for (Tensor* tensor : {&m.extra.sends[way], &m.extra.recvs[way]}) *tensor = arena.take(name, d.dtype, {d.Rl, d.C});
  return m;
}

// The tensors of the first layer, whatever of them is kept in a step.
LayerTensors whole_layer(const Config& config, const StageTensors& stage) {
  LayerTensors t = stage.chunks.front().front().layers.front();
  if (config.parallel.recompute == Recompute::kFull) t = stage.work.again;
  if (config.parallel.recompute == Recompute::kSelective) {
    t.normed1 = t.normed2 = stage.work.normed;
    t.activated = stage.work.activated;
  }
  return t;
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
        runtime_(config, mesh, &job, device, arena, memory_.rank.stage.exchange),
        store_(config, mesh, memory_.rank.store, microbatches(config), device, runtime_.compute(), runtime_.dp()),
        hooks_(store_, 0.0f),
        silence_(mesh.tp),
        silent_tp_(silence_, runtime_.compute(), device, Spend::kTp),
        ctx_(context(runtime_.tp(), runtime_.row_exchange())),
        alone_(context(silent_tp_, nullptr)),
        layer_(whole_layer(config, memory_.rank.stage)),
        begin_(device.make_event(EventKind::kTimed)),
        end_(device.make_event(EventKind::kTimed)),
        ready_(device.make_event()) {
    for (auto& done : done_) done = device.make_event();
    device.lend_workspace(memory_.rank.kernel_workspace);
    for (const bool by_blocks : {false, true})  // alone the products are whole
      if (!by_blocks || runtime_.row_exchange() != nullptr)
        search_gemms(config, mesh, &job, device, memory_.rank, store_, runtime_.compute(), by_blocks, "");
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
      for (const Case& c : config_.model.block == Block::kParallel ? parallel_block() : sequential_block())
        rows.push_back(measure(c, mesh_.tp.size));
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
    const std::string base = fmt::format("layers/{}/", layer);
    qkv_ = ColumnLinear::bind(parameters, base + "attention/qkv");
    fc1_ = ColumnLinear::bind(parameters, base + "mlp/fc1");
    proj_ = RowLinear::bind(parameters, base + "attention/proj");
    fc2_ = RowLinear::bind(parameters, base + "mlp/fc2");
    block_ = std::make_unique<TransformerBlock>(layer, parameters, config_);
  }

  bool gelu() const { return config_.model.activation == Activation::kGelu; }
  std::string by_blocks(const char* transfer) const {
    return ctx_.exchange == nullptr ? transfer : fmt::format("{} by blocks", transfer);
  }

  // `rows` gathered before `products` read them.
  Case gather(const std::string& compute, Tensor rows, const std::function<void(const LayerContext&)>& products) {
    const auto start = [this, rows] {
      ctx_.begin_gather(rows);
      ctx_.start_gather(rows);
    };
    return {.axis = "tp",
            .transfer = by_blocks("gather"),
            .compute = compute,
            .bytes = rows.bytes(),
            .transfer_alone =
                [=, this] {
                  start();
                  ctx_.need(rows);
                },
            .compute_alone = [=, this] { products(alone_); },
            .together =
                [=, this] {
                  start();
                  products(ctx_);
                }};
  }

  // `rows` reduced as `products` make them; they send the blocks.
  Case reduce(const std::string& compute, Tensor rows,
              const std::function<void(const LayerContext&, const std::vector<RowBlock>&)>& products) {
    const auto with_products = [=](const LayerContext& ctx) {
      products(ctx, ctx.begin_reduce(rows));
      ctx.finish_reduce(rows);
    };
    return {.axis = "tp",
            .transfer = by_blocks("reduce"),
            .compute = compute,
            .bytes = rows.bytes(),
            .transfer_alone =
                [=, this] {
                  for (const RowBlock& block : ctx_.begin_reduce(rows)) ctx_.send(block);
                  ctx_.finish_reduce(rows);
                },
            .compute_alone = [=, this] { with_products(alone_); },
            .together = [=, this] { with_products(ctx_); }};
  }

  void fc1_forward(const LayerContext& ctx, Tensor normed) const {
    if (gelu()) return fc1_.forward_gelu(ctx, layer_.activated, layer_.fc1, normed);
    fc1_.forward(ctx, layer_.fc1, normed);
  }
  void fc2_backward(const LayerContext& ctx) const {
    const Workspace& w = ctx.work;
    if (gelu()) return fc2_.backward_gelu(ctx, w.dfc1, w.dstream, layer_.activated, layer_.fc1, fc1_);
    fc2_.backward(ctx, w.dactivated, w.dstream, layer_.activated);
  }
  void fc1_backward_weight(const LayerContext& ctx, Tensor normed) const {
    if (gelu()) return fc1_.backward_weight_alone(ctx, ctx.work.dfc1, normed);
    fc1_.backward_weight(ctx, ctx.work.dfc1, normed);
  }

  // The order of lib/model/block.cpp.
  std::vector<Case> sequential_block() {
    using Blocks = std::vector<RowBlock>;
    const Workspace& w = memory_.rank.stage.work;
    const Tensor normed1 = layer_.normed1, normed2 = layer_.normed2;
    return {
        gather("qkv forward", normed1, [=, this](const LayerContext& ctx) { qkv_.forward(ctx, layer_.qkv, normed1); }),
        reduce("proj forward", w.partial,
               [this](const LayerContext& ctx, const Blocks& blocks) {
                 proj_.forward(ctx, blocks, layer_.attention, 0.0f, Then::kSend);
               }),
        gather("fc1 forward", normed2, [=, this](const LayerContext& ctx) { fc1_forward(ctx, normed2); }),
        reduce("fc2 forward", w.partial,
               [this](const LayerContext& ctx, const Blocks& blocks) {
                 fc2_.forward(ctx, blocks, layer_.activated, 0.0f, Then::kSend);
               }),
        gather("fc2 backward", w.dstream, [this](const LayerContext& ctx) { fc2_backward(ctx); }),
        reduce("fc1 backward", w.dnormed,
               [=, this](const LayerContext& ctx, const Blocks& blocks) {
                 fc1_.backward_input(ctx, blocks, ctx.work.dfc1, 0.0f, Then::kSend);
                 fc1_backward_weight(ctx, normed2);
               }),
        gather("proj backward", w.dstream,
               [this](const LayerContext& ctx) {
                 proj_.backward(ctx, ctx.work.dattention, ctx.work.dstream, layer_.attention);
               }),
        reduce("qkv backward", w.dnormed, [=, this](const LayerContext& ctx, const Blocks& blocks) {
          qkv_.backward_input(ctx, blocks, ctx.work.dqkv, 0.0f, Then::kSend);
          qkv_.backward_weight(ctx, ctx.work.dqkv, normed1);
        })};
  }

  // Both branches share a gather and a reduce; attention, which runs between their products, is left out.
  std::vector<Case> parallel_block() {
    using Blocks = std::vector<RowBlock>;
    const Workspace& w = memory_.rank.stage.work;
    const Tensor normed = layer_.normed1;
    return {gather("qkv, fc1 forward", normed,
                   [=, this](const LayerContext& ctx) {
                     qkv_.forward(ctx, layer_.qkv, normed);
                     fc1_forward(ctx, normed);
                   }),
            reduce("proj, fc2 forward", w.partial,
                   [this](const LayerContext& ctx, const Blocks& blocks) {
                     proj_.forward(ctx, blocks, layer_.attention, 0.0f, Then::kKeep);
                     fc2_.forward(ctx, blocks, layer_.activated, 1.0f, Then::kSend);
                   }),
            gather("fc2, proj backward", w.dstream,
                   [this](const LayerContext& ctx) {
                     fc2_backward(ctx);
                     proj_.backward(ctx, ctx.work.dattention, ctx.work.dstream, layer_.attention);
                   }),
            reduce("fc1, qkv backward", w.dnormed, [=, this](const LayerContext& ctx, const Blocks& blocks) {
              fc1_.backward_input(ctx, blocks, ctx.work.dfc1, 0.0f, Then::kKeep);
              qkv_.backward_input(ctx, blocks, ctx.work.dqkv, 1.0f, Then::kSend);
              fc1_backward_weight(ctx, normed);
              qkv_.backward_weight(ctx, ctx.work.dqkv, normed);
            })};
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
         .transfer = sharded ? "reduce-scatter" : "all-reduce",
         .compute = "fc1 weight gradient",
         .bytes = bucket.bytes(),
         .prepare = restore},
        [=, this, &dp] {
          dp.after(runtime_.compute());
          sharded ? dp.reduce_scatter(part(bucket), bucket) : dp.all_reduce(bucket, ReduceOp::kSum);
        },
        [=, this] { fc1_backward_weight(alone_, normed); }, [this, &dp] { dp.before(runtime_.compute()); }));
    if (!sharded) return cases;  // every rank updates all parameters: nothing to gather
    const Tensor parameters(bucket.data, config_.precision.compute, {bucket.numel()});
    cases.push_back(beside(
        {.axis = "dp",
         .transfer = "all-gather",
         .compute = "fc1 forward",
         .bytes = parameters.bytes(),
         .prepare = restore},
        [=, this, &dp] {
          dp.after(runtime_.compute());
          dp.all_gather(parameters, part(parameters));
        },
        [=, this] { fc1_forward(alone_, normed); }, [this, &dp] { dp.before(runtime_.compute()); }));
    return cases;
  }

  // All that a stage in the middle of 1F1B exchanges with its neighbours beside one action.
  Case boundary() {
    const PipelineLinks links = runtime_.links();
    const Extra& e = memory_.extra;
    struct Transfer {
      Link link;
      Tensor tensor;
      bool sends;
    };
    const std::vector<Transfer> transfers = {{links.recv_forward, e.recvs[0], false},
                                             {links.send_forward, e.sends[0], true},
                                             {links.recv_backward, e.recvs[1], false},
                                             {links.send_backward, e.sends[1], true}};
    Stream& compute = runtime_.compute();
    const auto start = [=, this, &compute] {
      compute.record(*ready_);
      for (size_t i = 0; i < transfers.size(); ++i) {
        const auto& [link, tensor, sends] = transfers[i];
        if (link.group == nullptr) continue;
        link.stream->wait(*ready_);
        sends ? link.group->send(tensor, link.peer, *link.stream) : link.group->recv(tensor, link.peer, *link.stream);
        link.stream->record(*done_[i]);
        if (sends && !config_.parallel.overlap_pp) compute.wait(*done_[i]);  // as the executor does
      }
    };
    const auto finish = [=, this, &compute] {
      for (size_t i = 0; i < transfers.size(); ++i)
        if (transfers[i].link.group != nullptr) compute.wait(*done_[i]);
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

  // Seconds of `work`, `repeats` times in a row: the ranks begin together.
  double sample(const Work& work, int repeats) {
    Stream& compute = runtime_.compute();
    Channel& world = runtime_.world();
    world.after(compute);
    world.all_reduce(memory_.extra.number, ReduceOp::kSum);
    world.before(compute);
    compute.record(*begin_);
    for (int i = 0; i < repeats; ++i) work();
    compute.record(*end_);
    compute.synchronize();
    return end_->seconds_after(*begin_);
  }

  // Of the slowest rank, round by round.
  std::vector<double> slowest(const std::vector<double>& mine) {
    std::string text;
    for (const double seconds : mine) text += fmt::format("{:.17g} ", seconds);
    std::vector<double> most(mine.size(), 0.0);
    for (const std::string& rank : job_.all_gather(text)) {
      std::istringstream words(rank);
      for (double& value : most)
        if (double seconds = 0; words >> seconds) value = std::max(value, seconds);
    }
    return most;
  }
  double quick(const Work& work, int repeats = 1) {
    std::vector<double> seconds;
    for (int round = -1; round < 3; ++round) {
      const double one = sample(work, repeats) / repeats;
      if (round >= 0) seconds.push_back(one);
    }
    return std::max(1e-9, median(slowest(seconds)));
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
        const double one = sample(*works[kind], repeats) / repeats;
        if (round >= 0) seconds[kind].push_back(one);
      }
    for (auto& list : seconds) list = slowest(list);
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
  SilentHooks hooks_;
  SilentGroup silence_;
  Channel silent_tp_;
  LayerContext ctx_, alone_;  // as in a step; with a tp group in which nothing moves
  LayerTensors layer_;
  ColumnLinear qkv_, fc1_;
  RowLinear proj_, fc2_;
  std::unique_ptr<TransformerBlock> block_;
  std::unique_ptr<Event> begin_, end_;      // timed
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

std::vector<OverlapRow> bench_overlap(const Config& config, const Mesh& mesh, Job& job, const OverlapBench& bench) {
  if (mesh.world_size() == 1) return {};
  auto device = value_or_throw(open_device(device_kind(config.run.device), job.node_rank()));
  Arena measuring;
  allocate(config, mesh, measuring);
  Arena arena(*device, measuring.used());
  return Bench(config, mesh, job, *device, arena, bench.rounds).run();
}

}  // namespace tri
