#include "tests/simulate/fitting.h"

#include <algorithm>
#include <cmath>

namespace tri::published {
namespace {

std::string label_of(const Row& row) {
  return fmt::format("{} {} GPUs, micro-batch {}, T {}", row.model, row.gpus, row.micro_batch, row.seq);
}

}  // namespace

std::vector<Row> rows_of_file(const std::string& name) {
  return value_or_throw(read_rows(std::string(TRI_SOURCE_DIR) + "/configs/published/" + name));
}

std::vector<Row> rows_of(const std::vector<Row>& rows, const std::string& source) {
  std::vector<Row> some;
  std::ranges::copy_if(rows, std::back_inserter(some), [&](const Row& r) { return r.source.starts_with(source); });
  return some;
}

Cluster cluster_of(const Row& row) { return value_or_throw(read_cluster(row.cluster, row.constants)); }

Cluster cluster_of(const std::string& name, const std::vector<std::string>& overrides) {
  return value_or_throw(read_cluster(std::string(TRI_SOURCE_DIR) + "/configs/clusters/" + name + ".yaml", overrides));
}

double mean_error(const std::vector<Error>& errors) {
  double sum = 0;
  for (const Error& error : errors) sum += std::abs(error.value);
  return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
}

double max_error(const std::vector<Error>& errors) {
  double most = 0;
  for (const Error& error : errors) most = std::max(most, std::abs(error.value));
  return most;
}

std::vector<Error> errors_of(const std::vector<Row>& rows, const std::function<void(Cluster&)>& change) {
  std::vector<Error> errors;
  for (const Row& row : rows) {
    Cluster cluster = cluster_of(row);
    if (change) change(cluster);
    errors.push_back({label_of(row), compare(row, cluster).error()});
  }
  return errors;
}

std::vector<Error> errors_on(const std::vector<Row>& rows, const Cluster& cluster) {
  std::vector<Error> errors;
  for (const Row& row : rows) errors.push_back({label_of(row), compare(row, cluster).error()});
  return errors;
}

void print(const std::string& what, const std::vector<Error>& errors) {
  fmt::print("| {:<64} | {:>3} rows | mean {:>5.2f} % | max {:>5.2f} % |\n", what, errors.size(),
             100 * mean_error(errors), 100 * max_error(errors));
}

void print_rows(const std::vector<Error>& errors) {
  for (const Error& error : errors) fmt::print("    {:<50} {:>+6.1f} %\n", error.label, 100 * error.value);
}

void fit(std::vector<Knob> knobs, const std::function<double()>& loss) {
  double best = loss();
  for (int round = 0; round < 5; ++round)
    for (Knob& knob : knobs) {
      bool moved = false;
      for (const double sign : {1.0, -1.0})
        for (bool better = true; better;) {
          const double before = *knob.value;
          *knob.value = std::clamp(before + sign * knob.step, knob.low, knob.high);
          const double now = loss();
          better = now < best - 1e-12;
          if (better) {
            best = now;
            moved = true;
          } else {
            *knob.value = before;
          }
        }
      if (!moved) knob.step /= 2;
    }
}

}  // namespace tri::published
