#include "lib/observe/metrics/exporters.h"

#include <chrono>
#include <cmath>
#include <thread>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/log.h"
#include "io/base/mutex.h"
#include "io/net/text_server.h"
#include "lib/config/axis_fields.h"
#include "lib/observe/metrics/prometheus.h"

namespace tri {
namespace {

// The values that the training thread publishes and other threads read.
class SharedFigures {
 public:
  template <class Change>
  void change(const Change& change) {
    const MutexLock lock(mutex_);
    change(figures_);
    ++changes_;
  }
  std::string text() const {
    PrometheusFigures figures;
    {
      const MutexLock lock(mutex_);
      figures = figures_;
    }
    return prometheus_text(figures);
  }
  int64_t changes() const {
    const MutexLock lock(mutex_);
    return changes_;
  }

 private:
  mutable Mutex mutex_;
  PrometheusFigures figures_ TRI_GUARDED_BY(mutex_);
  int64_t changes_ TRI_GUARDED_BY(mutex_) = 0;
};

// A separate thread replaces this file once a second, and once more at the end. If storage hangs, the thread is
// abandoned.
class TextFile {
 public:
  TextFile(std::string path, std::shared_ptr<const SharedFigures> figures) : state_(std::make_shared<State>()) {
    std::thread([state = state_, path = std::move(path), figures = std::move(figures)] {
      run(*state, path, *figures);
    }).detach();
  }
  ~TextFile() {
    constexpr std::chrono::seconds kTimeout{2};
    const MutexLock lock(state_->mutex);
    state_->ending = true;
    state_->wake.notify_all();
    state_->wake.wait_for(state_->mutex, kTimeout, [&]() TRI_REQUIRES(state_->mutex) { return state_->ended; });
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

 private:
  struct State {
    Mutex mutex;
    ConditionVariable wake;
    bool ending TRI_GUARDED_BY(mutex) = false, ended TRI_GUARDED_BY(mutex) = false;
  };

  static void run(State& state, const std::string& path, const SharedFigures& figures) {
    constexpr std::chrono::seconds kPeriod{1};
    int64_t written = -1;
    bool warned = false;
    for (bool ending = false; !ending;) {
      {
        const MutexLock lock(state.mutex);
        ending = state.wake.wait_for(state.mutex, kPeriod, [&]() TRI_REQUIRES(state.mutex) { return state.ending; });
      }
      const int64_t changes = figures.changes();
      if (changes == written) continue;
      const Result<void> published = replace(path, figures.text());
      if (!published && !warned) log_warn("metrics.prometheus_file: {}; training continues", published.error().message);
      warned = !published;
      written = changes;
    }
    const MutexLock lock(state.mutex);
    state.ended = true;
    state.wake.notify_all();
  }

  // Replaces the file atomically for readers, without a sync: it is only useful for seconds.
  static Result<void> replace(const std::string& path, const std::string& text) {
    auto file = AtomicFile::create(path);
    if (!file) return file.error();
    file.value().write(text.data(), text.size());
    return file.value().publish();
  }

  std::shared_ptr<State> state_;
};

}  // namespace

class Exporters::Prometheus {
 public:
  explicit Prometheus(const Context& context) : figures_(std::make_shared<SharedFigures>()) {
    const Config& config = context.config;
    figures_->change([&](PrometheusFigures& f) {
      f.labels = {{"run", config.run.name}, {"attempt", context.attempt}};
      for (const auto& [axis, size] : named_axes(config.parallel))
        f.labels.emplace_back(axis.text(), std::to_string(size));
      f.steps_of_run = context.last_step;
      f.memory_bytes = context.memory_bytes;
    });
    if (!config.metrics.prometheus_file.empty())
      file_ = std::make_unique<TextFile>(config.metrics.prometheus_file, figures_);
    const auto where = parse_host_and_port(config.metrics.prometheus);
    if (!where) return;
    auto server = TextServer::start(*where, kPrometheusType, [figures = figures_] { return figures->text(); });
    if (!server) {
      log_warn("metrics.prometheus: {}; training continues without this endpoint", server.error().message);
      return;
    }
    server_ = std::move(server).value();
    log_info("metrics for Prometheus: http://{}:{}/metrics", where->host, server_->port());
  }

  SharedFigures& figures() { return *figures_; }

 private:
  std::shared_ptr<SharedFigures> figures_;
  std::unique_ptr<TextFile> file_;
  std::unique_ptr<TextServer> server_;
};

Exporters::Exporters(const Context& context) {
  const MetricsConfig& metrics = context.config.metrics;
  if (metrics.tensorboard)
    tensorboard_ = std::make_unique<TensorBoardFiles>(context.config.run.dir + "/tensorboard", context.completed + 1);
  if (!metrics.prometheus.empty() || !metrics.prometheus_file.empty())
    prometheus_ = std::make_unique<Prometheus>(context);
}

Exporters::~Exporters() = default;

bool Exporters::flush(std::chrono::milliseconds timeout) { return !tensorboard_ || tensorboard_->flush(timeout); }

Scalars scalars_of(const StepMetrics& m) {
  Scalars values;
  if (!m.no_targets) values = {{"train/loss", m.loss}, {"train/gradient_norm", m.grad_norm}};
  values.emplace_back("train/learning_rate", m.learning_rate);
  values.emplace_back("speed/step_ms", m.step_ms);
  values.emplace_back("speed/tokens_per_s", m.tokens_per_s);
  values.emplace_back("speed/tflops_per_rank", m.tflops_per_rank);
  if (m.mfu) values.emplace_back("speed/mfu", *m.mfu);
  if (m.gpu) {
    if (m.gpu->sm_mhz) values.emplace_back("gpu/clock_mhz", *m.gpu->sm_mhz);
    if (m.gpu->milliwatts) values.emplace_back("gpu/power_watts", 1e-3 * *m.gpu->milliwatts);
    if (m.gpu->celsius) values.emplace_back("gpu/celsius", *m.gpu->celsius);
    if (m.gpu->memory_bytes)
      values.emplace_back("gpu/memory_gib", static_cast<double>(*m.gpu->memory_bytes) / (1 << 30));
  }
  if (m.imbalance) values.emplace_back("speed/imbalance", *m.imbalance);
  const auto seconds = m.times.values();
  for (size_t i = 0; i < seconds.size(); ++i)
    values.emplace_back(fmt::format("time/{}_ms", StepTimes::names()[i]), 1e3 * seconds[i]);
  return values;
}

Scalars scalars_of(const std::vector<ExpertBalance>& layers) {
  const WorstBalance worst = worst_of(layers);
  Scalars scalars{{"experts/max_load", worst.fullest.max_load},
                  {"experts/dead", worst.dead},
                  {"experts/entropy", worst.least_even.entropy}};
  for (const ExpertBalance& b : layers) {
    scalars.emplace_back(fmt::format("experts_max_load/layer_{}", b.layer), b.max_load);
    scalars.emplace_back(fmt::format("experts_dead/layer_{}", b.layer), b.dead);
    scalars.emplace_back(fmt::format("experts_entropy/layer_{}", b.layer), b.entropy);
  }
  return scalars;
}

void Exporters::step(const StepMetrics& m) {
  if (tensorboard_) tensorboard_->scalars(m.step, scalars_of(m));
  if (!prometheus_) return;
  prometheus_->figures().change([&](PrometheusFigures& f) {
    f.tokens += std::llround(m.tokens_per_s * m.step_ms / 1e3);
    f.steps += 1;
    f.data_bytes += m.data_bytes;
    f.not_finite_steps += m.no_targets || (std::isfinite(m.loss) && std::isfinite(m.grad_norm)) ? 0 : 1;
    for (size_t i = 0; i < f.seconds.size(); ++i)
      f.seconds[i] += std::max(0.0, m.times.values()[i]);  // never
                                                           // decreases
    f.last = m;
    f.last_time = wall_seconds();
  });
}

void Exporters::evaluation(int64_t step, double loss) {
  if (tensorboard_) tensorboard_->scalars(step, {{"validation/loss", loss}});
  if (prometheus_) prometheus_->figures().change([&](PrometheusFigures& f) { f.validation_loss = loss; });
}

void Exporters::evaluation(int64_t step, const std::vector<std::pair<std::string, double>>& losses) {
  if (tensorboard_) {
    Scalars scalars;
    for (const auto& [name, loss] : losses) scalars.emplace_back("validation/loss/" + name, loss);
    tensorboard_->scalars(step, scalars);
  }
  if (prometheus_) prometheus_->figures().change([&](PrometheusFigures& f) { f.validation_losses = losses; });
}

void Exporters::experts(int64_t step, const std::vector<ExpertBalance>& layers) {
  if (tensorboard_) tensorboard_->scalars(step, scalars_of(layers));
  if (prometheus_) prometheus_->figures().change([&](PrometheusFigures& f) { f.experts = layers; });
}

void Exporters::checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds) {
  if (tensorboard_)
    tensorboard_->scalars(step, {{"checkpoint/stall_ms", 1e3 * stall_seconds}, {"checkpoint/write_ms", 1e3 * seconds}});
  if (!prometheus_) return;
  prometheus_->figures().change([&](PrometheusFigures& f) {
    f.checkpoints += 1;
    f.checkpoint_step = step;
    f.checkpoint_bytes = bytes;
    f.checkpoint_seconds = seconds;
    f.checkpoint_stall_seconds = stall_seconds;
  });
}

}  // namespace tri
