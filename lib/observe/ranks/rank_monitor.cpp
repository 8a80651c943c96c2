#include "lib/observe/ranks/rank_monitor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "io/base/clock.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/flops.h"
#include "lib/model/layer_division.h"
#include "lib/observe/ranks/heat_map.h"
#include "lib/observe/ranks/what_if.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

Json milliseconds(double seconds) { return std::strtod(fmt::format("{:.4g}", 1e3 * seconds).c_str(), nullptr); }

struct PlaceMessage {
  std::string host, gpu;
};
template <class Archive>
void fields(Archive& archive, PlaceMessage& place) {
  archive(place.host, place.gpu);
}

}  // namespace

std::vector<double> stage_flops(const Config& config, const Mesh& mesh, const std::vector<double>& keys) {
  const int stages = mesh.axis("pp").size;
  const double tokens = static_cast<double>(config.data.global_batch) * config.model.seq_len;
  const Layers all = layers_of_model(config);
  const std::vector<int> windows = attention_windows(config);
  TRI_REQUIRE(keys.empty() || keys.size() == windows.size(), "keys of {} windows for {}", keys.size(), windows.size());
  const auto of_layer = [&](const LayerSpec& layer) {
    if (keys.empty()) return layer.flops_per_token(AttentionWork::kBand);
    const auto window = std::ranges::find(windows, layer.attention.window) - windows.begin();
    return layer.flops_per_token(AttentionWork::kBand) - layer.attention.core_flops_per_token(AttentionWork::kBand) +
           layer.attention.flops_per_pair() * keys[static_cast<size_t>(window)];
  };
  std::vector<double> flops;
  for (int stage = 0; stage < stages; ++stage) {
    double of_token = stage == mesh.axis("pp").end() ? head_flops_per_token(config.model) : 0;
    for (int chunk = 0; chunk < config.parallel.chunks; ++chunk)
      of_token += all.sum(layers_of(config, {stage, stages}, chunk), of_layer);
    flops.push_back(of_token * tokens / mesh.joint_axis(kTokenAxes | AxisSet{"tp"}).size);
  }
  return flops;
}

// After a failure the next window opens the file again.
class RankMonitor::File {
 public:
  File(std::string path, RankMesh mesh) : path_(std::move(path)), mesh_(std::move(mesh)) {}

  Result<void> append(const RankWindow& window) {
    if (!file_) {
      auto opened = RanksWriter::open(path_, mesh_);
      if (!opened) return opened.error();
      file_.emplace(std::move(opened).value());
    }
    auto appended = file_->append(window);
    if (!appended) file_.reset();
    return appended;
  }
  Result<void> sync() { return file_ ? file_->sync() : Result<void>(); }

 private:
  const std::string path_;
  const RankMesh mesh_;
  std::optional<RanksWriter> file_;
};

RankMonitor::RankMonitor(const Context& context) : context_(context), every_(context.config.metrics.ranks_every) {
  if (every_ == 0) return;
  const Config& config = context.config;
  const Mesh& mesh = context.mesh;
  if (mesh.world_size() > 1) gather_ = std::make_unique<BackgroundGather>(static_cast<int64_t>(sizeof(RankTimes)));
  const auto places = context.job.gather(PlaceMessage{context.job.host(), context.gpu});
  if (mesh.world_rank != 0) return;
  ranks_ = {.attempt = context.events.writer().attempt,
            .grid = mesh.grid,
            .schedule = std::string(enum_name(config.parallel.schedule)),
            .num_microbatches = microbatches(config),
            .chunks = config.parallel.chunks,
            .stage_flops = stage_flops(config, mesh),
            .places = {}};
  for (const PlaceMessage& place : places) ranks_.places.push_back({place.host, place.gpu});
  stragglers_.emplace(ranks_);
}

void RankMonitor::step(const RankStep& step, const StepMetrics& metrics, bool checkpoint) {
  if (every_ > 0) {
    if (clock_.steps() == 0) first_step_ = metrics.step;
    last_step_ = metrics.step;
    clock_.add(step);
    if (under_way_ && (gather_ == nullptr || gather_->finished())) take_arrived();
    if (clock_.steps() >= every_) close_window();
  }
  if (context_.mesh.world_rank != 0) return;
  // Steps of another size (data.batch_ramp) take another time.
  const int64_t step_samples = metrics.samples - samples_;
  if (samples_ > 0 && step_samples_ > 0 && step_samples != step_samples_) drift_.emplace();
  step_samples_ = samples_ > 0 ? step_samples : 0;
  samples_ = metrics.samples;
  for (const Drift& drift : drift_->add({.step = metrics.step,
                            .seconds = step.wall,
                            .loss = metrics.loss,
                            .grad_norm = metrics.grad_norm,
                            .mfu = metrics.mfu,
                            .checkpoint = checkpoint}))
    report(drift);
}

void RankMonitor::add_documents(const std::vector<double>& pairs, double tokens) {
  if (every_ == 0 || context_.mesh.world_rank != 0 || file_) return;
  document_pairs_.resize(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) document_pairs_[i] += pairs[i];
  document_tokens_ += tokens;
}

// Before the first window is written, whose file and checks for slow ranks take the FLOPs of the stages from ranks_.
void RankMonitor::count_documents() {
  if (document_tokens_ == 0) return;
  std::vector<double> keys;  // in parts of 64, so that stages of equal layers have exactly equal FLOPs
  for (const double pairs : document_pairs_) keys.push_back(std::round(64 * pairs / document_tokens_) / 64);
  ranks_.stage_flops = stage_flops(context_.config, context_.mesh, keys);
  stragglers_.emplace(ranks_);
}

void RankMonitor::close_window() {
  if (under_way_) {  // the previous window, whose messages had all steps of this one to arrive
    if (gather_) gather_->wait();
    take_arrived();
  }
  const RankTimes mine = clock_.take();
  arriving_ = {.first_step = first_step_, .last_step = last_step_, .time = process_wall_seconds(), .ranks = {}};
  if (gather_)
    gather_->begin(&mine);
  else
    arriving_.ranks = {mine};
  under_way_ = true;
}

void RankMonitor::finish() {
  if (every_ == 0) return;
  if (clock_.steps() > 0) close_window();
  if (gather_) gather_->wait();
  if (under_way_) take_arrived();
  if (writer_) writer_->post(1, [file = file_] { return file->sync(); });
}

bool RankMonitor::flush(std::chrono::milliseconds timeout) { return !writer_ || writer_->flush(timeout); }

// Passes the window that has arrived to the file's writer.
void RankMonitor::write_window() {
  if (!file_) {  // not before the first window, so that a failed start leaves no file
    const std::string path = context_.config.run.dir + "/" + kRanksFile;
    file_ = std::make_shared<File>(path, ranks_);
    auto writer =
        FileWriter::start({.path = path, .report = [](const std::string& message) { log_warn("{}", message); }});
    if (writer)
      writer_ = std::move(writer).value();
    else
      log_warn("{}; training continues without this file", writer.error().message);
  }
  if (writer_)
    writer_->post(arriving_.ranks.size() * sizeof(RankTimes),
                  [file = file_, window = arriving_] { return file->append(window); });
}

// World rank 0 has the times of all ranks.
void RankMonitor::take_arrived() {
  under_way_ = false;
  if (context_.mesh.world_rank != 0) return;
  if (gather_) {
    const auto* const times = reinterpret_cast<const RankTimes*>(gather_->messages());
    arriving_.ranks.assign(times, times + ranks_.world_size());
  }
  if (!file_) count_documents();
  write_window();
  drift_->add(ranks_, arriving_);
  for (const StragglerNews& news : stragglers_->add(arriving_)) report(news, arriving_);
  if (context_.metrics) context_.metrics->ranks(ranks_json(ranks_, arriving_, stragglers_->stragglers()));
}

void RankMonitor::report(const StragglerNews& news, const RankWindow& window) {
  const RankStraggler& straggler = news.straggler;
  switch (news.kind) {
    case StragglerNews::Kind::kStages:
      log_info(
          "stage {}: its ranks compute {:.0f} % longer than its FLOPs predict, but no rank is slower than the others, "
          "so no machine is at fault",
          news.stage, 100 * news.share);
      return;
    case StragglerNews::Kind::kData:
      log_warn("steps {}-{} waited for data for {:.1f} % of their time", window.first_step, window.last_step,
               100 * news.share);
      return;
    case StragglerNews::Kind::kOver:
    case StragglerNews::Kind::kSlow:
      break;
  }
  const bool over = news.kind == StragglerNews::Kind::kOver;
  std::string text = over ? to_string_place(ranks_, straggler.world_rank) + " is no longer slower than its peers"
                          : to_string(ranks_, straggler);
  const RankMesh::Place& place = ranks_.places[static_cast<size_t>(straggler.world_rank)];
  std::map<std::string, EventField> fields{{"slowdown", straggler.slowdown},
                                           {"windows", straggler.windows},
                                           {"step", window.last_step},
                                           {"what", std::string(enum_name(straggler.what))},
                                           {"gpu", place.gpu},
                                           {"doctor", straggler.doctor},
                                           {"over", over}};
  const double step = window.ranks[static_cast<size_t>(straggler.world_rank)][RankQuantity::kStep];
  if (const auto without = over ? std::nullopt : step_without(ranks_, window, straggler.world_rank)) {
    fields["lost_ms"] = 1e3 * (step - *without);
    text += "; " + what_if_text(step, *without);
  }
  if (straggler.doctor && !over) text += "; examine its machine with `trireme doctor`";
  if (over)
    log_info("{}", text);
  else
    log_warn("{}", text);
  context_.events.post({.time = process_wall_seconds(),
                        .kind = RunEventKind::kStraggler,
                        .world_rank = straggler.world_rank,
                        .host = place.host,
                        .text = text,
                        .fields = std::move(fields)});
}

void RankMonitor::report(const Drift& drift) {
  log_warn("{}", to_string(drift));
  std::map<std::string, EventField> fields{
      {"quantity", drift.quantity}, {"growth", drift.growth}, {"since", drift.since}, {"step", drift.step}};
  if (!drift.part.empty()) fields["part"] = drift.part;
  context_.events.post({.kind = RunEventKind::kDrift,
                        .world_rank = context_.events.writer().world_rank,
                        .host = context_.events.writer().host,
                        .text = to_string(drift),
                        .fields = std::move(fields)});
}

std::string ranks_json(const RankMesh& mesh, const RankWindow& window, const std::vector<RankStraggler>& stragglers) {
  const std::vector<Slowness> slowness = slowness_of(mesh, window);
  const auto slowest =
      static_cast<size_t>(std::max_element(slowness.begin(), slowness.end(),
                                           [](const Slowness& a, const Slowness& b) { return a.worst() < b.worst(); }) -
                          slowness.begin());
  const RankMesh::Place place = slowest < mesh.places.size() ? mesh.places[slowest] : RankMesh::Place{};
  Json mean, stages = Json::array(), named = Json::array();
  for (const auto& [quantity, name] : EnumNames<RankQuantity>::table) {
    double sum = 0;
    for (const RankTimes& rank : window.ranks) sum += rank[quantity];
    mean[std::string(name)] = milliseconds(sum / mesh.world_size());
  }
  double skew = 0;
  if (const auto compute = heat_of(mesh, window, "compute"))
    for (const double seconds : compute.value().medians) stages.push_back(milliseconds(seconds));
  if (const auto skews = heat_of(mesh, window, "launch_skew"))
    skew = *std::max_element(skews.value().values.begin(), skews.value().values.end());
  for (const RankStraggler& straggler : stragglers) named.push_back(straggler.world_rank);
  const Json object = {{"first_step", window.first_step},
                       {"last_step", window.last_step},
                       {"slowest", slowest},
                       {"host", place.host},
                       {"gpu", place.gpu.empty() ? Json() : Json(place.gpu)},
                       {"slowdown", std::strtod(fmt::format("{:.4g}", slowness[slowest].worst()).c_str(), nullptr)},
                       {"launch_skew_ms", milliseconds(skew)},
                       {"mean_ms", mean},
                       {"stage_compute_ms", stages},
                       {"stragglers", named}};
  return Json({{"ranks", object}}).dump();
}

}  // namespace tri
