// Exports a run's figures to other programs while it runs, from world rank 0: an event file for TensorBoard, and
// figures for Prometheus. Separate threads serve and write, so no exporter can stop or delay the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/tensorboard/event_file.h"
#include "lib/config/config.h"
#include "lib/observe/metrics/expert_balance.h"
#include "lib/observe/metrics/metrics.h"

namespace tri {

class Exporters {
 public:
  struct Context {
    const Config& config;
    std::string attempt;
    int64_t completed = 0;     // steps of the run before this start
    int64_t last_step = 0;     // after which the run ends
    int64_t memory_bytes = 0;  // of this rank's arena
  };
  explicit Exporters(const Context& context);
  ~Exporters();
  Exporters(const Exporters&) = delete;
  Exporters& operator=(const Exporters&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(int64_t step, double loss);
  void evaluation(int64_t step, const std::vector<std::pair<std::string, double>>& losses);  // by name
  void experts(int64_t step, const std::vector<ExpertBalance>& layers);                      // at least one
  void checkpoint(int64_t step, int64_t bytes, double stall_seconds, double seconds);

  // Returns whether storage has accepted or rejected TensorBoard's data within `timeout`.
  bool flush(std::chrono::milliseconds timeout);

 private:
  class Prometheus;
  std::unique_ptr<TensorBoardFiles> tensorboard_;
  std::unique_ptr<Prometheus> prometheus_;
};

// Returns one step's figures by their TensorBoard tags: "train/loss", "speed/tokens_per_s", "time/tp_ms", ...
Scalars scalars_of(const StepMetrics& metrics);
// The worst values of all layers, and those of each. Requires at least one layer.
Scalars scalars_of(const std::vector<ExpertBalance>& layers);

}  // namespace tri
