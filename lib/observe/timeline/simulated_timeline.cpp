#include "lib/observe/timeline/simulated_timeline.h"

#include <algorithm>
#include <map>

#include "lib/schedule/pipeline.h"

namespace tri {
namespace {

constexpr int64_t kLeast = 1'000'000'000;  // nanoseconds, added to all times

// The second route of a folded pipeline has its own four streams, the last ones.
enum Stream : uint16_t {
  kCompute,
  kReceiveForward,
  kSendForward,
  kReceiveBackward,
  kSendBackward,
  kDp,
  kHost,
  kSecondRoute
};
enum Name : uint16_t {
  kF,
  kB,
  kGemm,
  kAttention,
  kMemory,
  kTp,
  kUpdate,
  kReduce,
  kGather,
  kStep,
  kFixed,
  kTied,
  kW,
  kEp
};

int64_t nanoseconds(double seconds) { return kLeast + static_cast<int64_t>(seconds * 1e9); }

class SimulatedStep {
 public:
  SimulatedStep(const Workload& w, const Cluster& c, const TransferTimes& transfers)
      : w_(w), c_(c), costs_(step_costs(w, c, transfers)) {
    std::vector<StageCost> stages;
    for (size_t stage = 0; stage < costs_.column.forward.size(); ++stage)
      stages.push_back({costs_.column.forward[stage], costs_.column.backward[stage], costs_.column.transfer,
                        costs_.column.weight.empty() ? 0 : costs_.column.weight[stage]});
    run_ = simulate_pipeline(plans_of_all_stages(w.schedule, w.pp, w.num_microbatches(), w.chunks, plan_costs(w)),
                             w.chunks, stages,
                             costs_.column.transfers == StageTransfers::kConcurrent ? Overlap::kOn : Overlap::kOff,
                             placement_of(w.schedule));
    TRI_REQUIRE(run_.deadlock.empty(), "{}", run_.deadlock);
    std::vector<double> first_forwards(static_cast<size_t>(w.pp * w.chunks));  // by virtual stage
    for (int chunk = 0; chunk < w.chunks; ++chunk)
      for (int stage = 0; stage < w.pp; ++stage)
        first_forwards[static_cast<size_t>(w.virtual_stage(stage, chunk))] = first_forward(stage, chunk);
    begin_ = gather_wait(w, costs_.column, costs_.traffic, first_forwards,
                         c.software.hidden_share);  // no action begins earlier
  }

  std::vector<TimelineSegment> segments() {
    std::vector<TimelineSegment> segments;
    for (int stage = 0; stage < w_.pp; ++stage) segments.push_back(empty_segment(stage));
    for (const PipelineSpan& span : run_.spans) add(span, segments[static_cast<size_t>(span.stage)]);
    double end = 0;
    for (int stage = 0; stage < w_.pp; ++stage)
      end = std::max(end, add_dp(stage, segments[static_cast<size_t>(stage)]));
    for (TimelineSegment& segment : segments) add_span(segment, kHost, kStep, 0, end);
    return segments;
  }

 private:
  static void add_span(TimelineSegment& segment, Stream stream, Name name, double begin, double end) {
    segment.spans.push_back({.begin = nanoseconds(begin),
                             .end = nanoseconds(end),
                             .step = 1,
                             .stream = stream,
                             .name = name,
                             .kind = name == kUpdate ? SpanKind::kAction : SpanKind::kOperation});
  }

  TimelineSegment empty_segment(int stage) const {
    const RankGrid grid = w_.grid();
    const auto rank_of = [&](int at) { return grid.moved(0, "pp", at); };
    const int rank = rank_of(stage);
    TimelineSegment segment{.world_rank = rank,
                            .world_size = w_.ranks(),
                            .place = place_on_axes(grid, rank),
                            .host = fmt::format("machine{}", rank / c_.node.ranks),
                            .gpu = c_.device.name,
                            .attempt = "simulated",
                            .steps = {1, 1}};
    segment.streams = {
        "compute", "pp receive forward", "pp send forward", "pp receive backward", "pp send backward", "dp", "host"};
    segment.names = {"F",
                     "B",
                     "GEMMs",
                     "attention",
                     "memory-bound",
                     "tp exposed",
                     "update",
                     "reduce_scatter",
                     "all_gather",
                     "step",
                     "fixed",
                     "tied embeddings",
                     "W",
                     "ep exposed"};
    const auto edge = [&](const char* name, ChannelKind kind, int from, int to) {
      const int source = rank_of((from + w_.pp) % w_.pp), target = rank_of((to + w_.pp) % w_.pp);
      segment.channels.push_back({name, kind, {source, target - source, 2}, kind == ChannelKind::kReceive ? 1 : 0});
    };
    // in the order of the streams
    edge("pp forward", ChannelKind::kReceive, stage - 1, stage);
    edge("pp forward", ChannelKind::kSend, stage, stage + 1);
    edge("pp backward", ChannelKind::kReceive, stage + 1, stage);
    edge("pp backward", ChannelKind::kSend, stage, stage - 1);
    if (!folds(w_.schedule)) return segment;
    for (int i = kReceiveForward; i <= kSendBackward; ++i) segment.streams.push_back(segment.streams[i] + " 2");
    edge("pp forward 2", ChannelKind::kReceive, stage + 1, stage);
    edge("pp forward 2", ChannelKind::kSend, stage, stage - 1);
    edge("pp backward 2", ChannelKind::kReceive, stage - 1, stage);
    edge("pp backward 2", ChannelKind::kSend, stage, stage + 1);
    return segment;
  }

  void add(const PipelineSpan& span, TimelineSegment& segment) {
    const double begin = begin_ + span.start, end = begin_ + span.end;
    const ActionKind kind = span.action.kind;
    if (is_compute(kind)) {
      segment.spans.push_back({.begin = nanoseconds(begin),
                               .end = nanoseconds(end),
                               .step = 1,
                               .name = kind == ActionKind::kForward  ? kF
                                       : kind == ActionKind::kWeight ? kW
                                                                     : kB,
                               .microbatch = span.action.microbatch,
                               .chunk = static_cast<uint16_t>(span.action.chunk),
                               .kind = SpanKind::kAction});
      return add_parts(span, begin, segment);
    }
    const Stream first = kind == ActionKind::kRecvForward    ? kReceiveForward
                         : kind == ActionKind::kSendForward  ? kSendForward
                         : kind == ActionKind::kRecvBackward ? kReceiveBackward
                                                             : kSendBackward;
    const bool receives = first == kReceiveForward || first == kReceiveBackward;
    const int channel = first - kReceiveForward;
    const bool is_second = route_of(pipeline_axis(w_.schedule, span.stage, w_.pp), span.action.chunk) == 1;
    const auto stream = static_cast<Stream>(is_second ? kSecondRoute + channel : first);
    uint32_t& sequence = sequences_[{span.stage, stream}];
    segment.transfers.push_back({.joined = nanoseconds(begin),
                                 .completed = nanoseconds(end),
                                 .sequence = ++sequence,
                                 .step = 1,
                                 .channel = static_cast<uint16_t>(channel + (is_second ? 4 : 0)),
                                 .join_stream = stream,
                                 .arrive_stream = stream,
                                 .operation = receives ? ChannelOperation::kReceive : ChannelOperation::kSend});
  }

  void add_parts(const PipelineSpan& span, double begin, TimelineSegment& segment) const {
    const LayerTimes& times = costs_.stages[static_cast<size_t>(w_.virtual_stage(span.stage, span.action.chunk))];
    const PassTimes& pass = span.action.kind == ActionKind::kForward  ? times.forward
                            : span.action.kind == ActionKind::kWeight ? times.weight
                                                                      : times.backward;
    for (const auto& [name, seconds] :
         {std::pair{kGemm, pass.gemm}, std::pair{kAttention, pass.attention}, std::pair{kMemory, pass.memory},
          std::pair{kTp, pass.tp}, std::pair{kEp, pass.ep}, std::pair{kFixed, pass.fixed}}) {
      if (seconds > 0) add_span(segment, kCompute, name, begin, begin + seconds);
      begin += seconds;
    }
  }

  double first_forward(int stage, int chunk) const {
    for (const PipelineSpan& span : run_.spans)
      if (span.stage == stage && span.action.kind == ActionKind::kForward && span.action.chunk == chunk)
        return span.start;
    return 0;
  }

  // Adds the gathers at the step's beginning, the reductions as buckets become ready in the last backward passes, and
  // the update. Returns when the update ends.
  double add_dp(int stage, TimelineSegment& segment) const {
    double gathered = 0;
    for (int chunk = 0; chunk < w_.chunks; ++chunk) {
      const ChunkTraffic& traffic = costs_.traffic[static_cast<size_t>(w_.virtual_stage(stage, chunk))];
      for (int bucket = 0; bucket < traffic.buckets && traffic.gather > 0; ++bucket, gathered += traffic.gather)
        add_span(segment, kDp, kGather, gathered, gathered + traffic.gather);
    }
    double compute = 0;
    std::vector<double> last_backward(static_cast<size_t>(w_.chunks));
    for (const PipelineSpan& span : run_.spans) {
      if (span.stage != stage) continue;
      if (!is_compute(span.action.kind)) continue;
      compute = std::max(compute, begin_ + span.end);
      if (span.action.kind != ActionKind::kForward)
        last_backward[static_cast<size_t>(span.action.chunk)] = begin_ + span.end;
    }
    double stream = w_.overlap_dp ? gathered : compute, total = 0;
    for (int chunk = w_.chunks - 1; chunk >= 0; --chunk) {
      const auto of = static_cast<size_t>(w_.virtual_stage(stage, chunk));
      const ChunkTraffic& traffic = costs_.traffic[of];
      for (int bucket = 1; bucket <= traffic.buckets && traffic.reduce > 0; ++bucket) {
        const double left = 1 - static_cast<double>(bucket) / traffic.buckets;
        const std::vector<double>& last = costs_.column.weight.empty() ? costs_.column.backward : costs_.column.weight;
        stream = std::max(stream, last_backward[static_cast<size_t>(chunk)] - left * last[of]);
        add_span(segment, kDp, kReduce, stream, stream + traffic.reduce);
        stream += traffic.reduce;
        total += traffic.reduce;
      }
    }
    const double exposed =
        w_.overlap_dp ? reductions_exposed(stream - compute, total, c_.software.hidden_share) : stream - compute;
    const double tied = costs_.tied[static_cast<size_t>(stage)], own = compute + exposed, reduced = own + tied;
    if (tied > 0) add_span(segment, kDp, kTied, own, reduced);
    const double updated = reduced + costs_.optimizer[static_cast<size_t>(stage)];
    add_span(segment, kCompute, kUpdate, reduced, updated);
    return updated;
  }

  const Workload& w_;
  const Cluster& c_;
  const StepCosts costs_;
  PipelineRun run_;
  double begin_ = 0;  // of the first action
  std::map<std::pair<int, Stream>, uint32_t> sequences_;
};

}  // namespace

std::vector<TimelineSegment> simulated_segments(const Workload& workload, const Cluster& cluster,
                                                const TransferTimes& transfers) {
  return SimulatedStep(workload, cluster, transfers).segments();
}

}  // namespace tri
