// Published measurements (published.csv, its sources next to each row) as workloads for the model of a step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri::published {

// One row of published.csv or never_fitted.csv. Numbers that a source does not give are 0.
struct Row {
  std::string source, model, gpu, recompute, metric;
  int layers = 0, hidden = 0, heads = 0, ffn = 0, seq = 0, vocab = 0;
  int gpus = 0, tp = 0, pp = 0, v = 0, dp = 0, cp = 0, micro_batch = 0, global_batch = 0;
  double value = 0;
};

std::vector<Row> read_rows(const std::string& file = "published.csv");  // of tests/simulate
// Those whose source begins so.
std::vector<Row> rows_of(const std::vector<Row>& rows, const std::string& source);

// What the row's program ran, as far as the source says; what it leaves open is written down in published.cpp.
Workload workload_of(const Row& row);

// The step time that the row states, directly or as a rate. 0 for memory.
double step_seconds(const Row& row);

// The cluster file of a stack in configs/clusters.
std::string cluster_path(const std::string& name);

// (predicted - measured) / measured.
struct Error {
  std::string label;
  double value = 0;
};
double mean_error(const std::vector<Error>& errors);  // of absolute values
double max_error(const std::vector<Error>& errors);

// Of a row's step on a cluster.
double error_of(const Row& row, const Cluster& cluster);
// Of those rows that state a time.
std::vector<Error> errors_of(const std::vector<Row>& rows, const Cluster& cluster);

// A line of the table of errors; a line for each row.
void print(const std::string& what, const std::vector<Error>& errors);
void print_rows(const std::vector<Error>& errors);

// Coordinate descent on a few constants, each within its limits.
struct Knob {
  double* value;
  double step, low, high;
};
void fit(std::vector<Knob> knobs, const std::function<double()>& loss);

}  // namespace tri::published
