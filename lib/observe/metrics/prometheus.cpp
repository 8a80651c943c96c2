#include "lib/observe/metrics/prometheus.h"

#include <fmt/format.h>

#include <cmath>

namespace tri {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);  // the shortest text that parses to the same value
}

// Escapes text between the quotes of a label's value.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return result;
}

class Page {
 public:
  void gauge(const char* name, const char* help, double value) { one(name, "gauge", help, value); }
  void counter(const char* name, const char* help, double value) { one(name, "counter", help, value); }
  void head(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP trireme_{0} {2}\n# TYPE trireme_{0} {1}\n", name, type, help);
  }
  void sample(const char* name, const std::vector<std::pair<std::string, std::string>>& labels, double value) {
    std::string list;
    for (const auto& [label, text] : labels)
      list += fmt::format("{}{}=\"{}\"", list.empty() ? "" : ",", label, escaped(text));
    text_ += fmt::format("trireme_{}{{{}}} {}\n", name, list, number(value));
  }
  std::string take() && { return std::move(text_); }

 private:
  void one(const char* name, const char* type, const char* help, double value) {
    head(name, type, help);
    text_ += fmt::format("trireme_{} {}\n", name, number(value));
  }

  std::string text_;
};

void last_step(const PrometheusFigures& f, Page& page) {
  const StepMetrics& last = f.last;
  page.gauge("step", "Last completed step of the run.", static_cast<double>(last.step));
  page.gauge("last_step_timestamp_seconds", "Time at which the last step completed, in seconds since 1970.",
             f.last_time);
  if (!last.no_targets) {
    page.gauge("loss_nats", "Mean loss of the last step's tokens.", last.loss);
    page.gauge("gradient_norm", "Global gradient norm of the last step, before clipping.", last.grad_norm);
  }
  page.gauge("learning_rate", "Learning rate of the last step.", last.learning_rate);
  page.gauge("step_duration_seconds", "Wall time of the last step.", last.step_ms / 1e3);
  page.gauge("model_flops_per_second", "Model FLOPs per second of each rank in the last step.",
             last.tflops_per_rank * 1e12);
  if (last.imbalance)
    page.gauge("dp_imbalance_ratio", "FLOPs of the busiest dp rank's documents over the mean rank's, minus 1.",
               *last.imbalance);
  if (last.mfu) page.gauge("mfu_ratio", "Model FLOPs utilization of the last step, between 0 and 1.", *last.mfu);
  if (!last.gpu) return;
  if (last.gpu->sm_mhz) page.gauge("gpu_clock_hertz", "Clock of rank 0's GPU.", 1e6 * *last.gpu->sm_mhz);
  if (last.gpu->milliwatts) page.gauge("gpu_power_watts", "Power draw of rank 0's GPU.", 1e-3 * *last.gpu->milliwatts);
  if (last.gpu->celsius) page.gauge("gpu_temperature_celsius", "Temperature of rank 0's GPU.", *last.gpu->celsius);
  if (last.gpu->memory_bytes)
    page.gauge("gpu_memory_used_bytes", "Memory in use on rank 0's GPU, by all processes.",
               static_cast<double>(*last.gpu->memory_bytes));
}

void experts(const std::vector<ExpertBalance>& layers, Page& page) {
  if (layers.empty()) return;
  const auto by_layer = [&](const char* name, const char* help, const auto& value) {
    page.head(name, "gauge", help);
    for (const ExpertBalance& layer : layers) page.sample(name, {{"layer", std::to_string(layer.layer)}}, value(layer));
  };
  by_layer("expert_max_load_ratio", "Load of the layer's fullest expert in the last step, over the mean.",
           [](const ExpertBalance& layer) { return layer.max_load; });
  by_layer("dead_experts", "Experts of the layer without rows in the last step.",
           [](const ExpertBalance& layer) { return layer.dead; });
  by_layer("expert_entropy_ratio", "Entropy of the layer's loads in the last step, over that of equal loads.",
           [](const ExpertBalance& layer) { return layer.entropy; });
}

}  // namespace

std::string prometheus_text(const PrometheusFigures& f) {
  Page page;
  page.head("run_info", "gauge", "The run and its parallel layout; always 1.");
  page.sample("run_info", f.labels, 1);
  page.gauge("run_steps", "Steps after which the run ends.", static_cast<double>(f.steps_of_run));
  page.gauge("arena_bytes", "Device memory that rank 0 has allocated.", static_cast<double>(f.memory_bytes));
  if (f.last.step > 0) last_step(f, page);
  if (!std::isnan(f.validation_loss))
    page.gauge("validation_loss_nats", "Mean loss of the last evaluation's tokens.", f.validation_loss);
  if (!f.validation_losses.empty()) {
    page.head("validation_loss_by_name_nats", "gauge",
              "Mean loss of the last evaluation's tokens, by data.validation.");
    for (const auto& [name, loss] : f.validation_losses)
      page.sample("validation_loss_by_name_nats", {{"name", name}}, loss);
  }
  experts(f.experts, page);
  page.counter("steps_total", "Steps completed since this start of the run.", static_cast<double>(f.steps));
  page.counter("tokens_total", "Tokens trained on since this start of the run.", static_cast<double>(f.tokens));
  page.counter("data_read_bytes_total", "Bytes that rank 0 has read from token files since this start of the run.",
               static_cast<double>(f.data_bytes));
  page.counter("not_finite_steps_total", "Steps whose loss or gradients were not finite, since this start of the run.",
               static_cast<double>(f.not_finite_steps));
  page.head("step_time_seconds_total", "counter", "Time of rank 0's steps since this start of the run, by category.");
  for (size_t i = 0; i < f.seconds.size(); ++i)
    page.sample("step_time_seconds_total", {{"category", StepTimes::names()[i]}}, f.seconds[i]);
  page.counter("checkpoints_total", "Checkpoints published since this start of the run.",
               static_cast<double>(f.checkpoints));
  if (f.checkpoint_step > 0) {
    page.gauge("checkpoint_step", "Step of the last checkpoint.", static_cast<double>(f.checkpoint_step));
    page.gauge("checkpoint_size_bytes", "Size of the last checkpoint.", static_cast<double>(f.checkpoint_bytes));
    page.gauge("checkpoint_duration_seconds", "Duration of writing the last checkpoint.", f.checkpoint_seconds);
    page.gauge("checkpoint_stall_seconds", "Time for which training waited for the last checkpoint.",
               f.checkpoint_stall_seconds);
  }
  return std::move(page).take();
}

}  // namespace tri
