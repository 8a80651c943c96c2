// Published measurements (published.csv, with the source of each row) as workloads for the model of a step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri::published {

// One row of published.csv or never_fitted.csv. Numbers that a source does not state are 0.
struct Row {
  std::string source, model, gpu, recompute, metric;
  int layers = 0, hidden = 0, heads = 0, ffn = 0, seq = 0, vocab = 0;
  int gpus = 0, tp = 0, pp = 0, v = 0, dp = 0, cp = 0, micro_batch = 0, global_batch = 0;
  double value = 0;
};

std::vector<Row> read_rows(const std::string& file = "published.csv");  // of tests/simulate
// Returns the rows whose source begins like this.
std::vector<Row> rows_of(const std::vector<Row>& rows, const std::string& source);

// Returns the workload of the row's program, as far as the source states it; published.cpp documents the assumptions.
Workload workload_of(const Row& row);

// Returns the step time that the row states, directly or as a rate; 0 for memory.
double step_seconds(const Row& row);

// Returns the path of a stack's cluster file in configs/clusters.
std::string cluster_path(const std::string& name);

// (predicted - measured) / measured.
struct Error {
  std::string label;
  double value = 0;
};
double mean_error(const std::vector<Error>& errors);  // of absolute values
double max_error(const std::vector<Error>& errors);

// Returns the error for a row's step on a cluster.
double error_of(const Row& row, const Cluster& cluster);
// Returns the errors of the rows that state a time.
std::vector<Error> errors_of(const std::vector<Row>& rows, const Cluster& cluster);

// Prints a line of the table of errors, or a line per row.
void print(const std::string& what, const std::vector<Error>& errors);
void print_rows(const std::vector<Error>& errors);

// For coordinate descent on a few constants, each within its limits.
struct Knob {
  double* value;
  double step, low, high;
};
void fit(std::vector<Knob> knobs, const std::function<double()>& loss);

}  // namespace tri::published
