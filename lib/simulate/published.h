// Published measurements of other runs (configs/published/*.csv) as workloads, and the errors of their predictions: the
// table that `trireme simulate --rows` prints.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/simulate/cluster.h"
#include "lib/simulate/programs.h"

namespace tri::published {

// One row. Numbers that its source does not state are 0. published.cpp documents the columns.
struct Row {
  std::string source, model, recompute, metric;
  int layers = 0, hidden = 0, heads = 0, ffn = 0, seq = 0, vocab = 0;
  int gpus = 0, tp = 0, pp = 0, v = 0, dp = 0, cp = 0, micro_batch = 0, global_batch = 0;
  double value = 0;
  Program program = Program::kTrireme;
  std::vector<std::pair<std::string, double>> options;
  std::string cluster;                 // its file
  std::vector<std::string> constants;  // "section.key=value" of the cluster file
  int line = 0;
  std::string problem;  // a number that can't be read: "vocab: expected ..."
};

// What the command line sets for all rows.
struct RowsOptions {
  std::optional<Program> program;      // instead of the column `as`
  std::string cluster;                 // instead of the columns `cluster` and `constants`
  std::vector<std::string> constants;  // after the rows' own
};

// A row with a number that can't be read has a problem. Fails with kUsage, with one line per problem, for a missing
// file or column, or an unknown program or option.
Result<std::vector<Row>> read_rows(const std::string& path, const RowsOptions& options = {});

// Returns the workload of the row's program, as far as the row states it.
Workload workload_of(const Row& row);
// Returns why the row can't be predicted, or "".
std::string problem_of(const Row& row);

enum class Quantity { kStep, kLayer, kMemory };
Quantity quantity_of(const Row& row);  // what the row's metric compares

// Seconds or bytes.
struct Comparison {
  double measured = 0, predicted = 0;
  double error() const { return predicted / measured - 1; }
};
Comparison compare(const Row& row, const Cluster& cluster);

// Of absolute values, except for the bias.
struct ErrorSummary {
  size_t rows = 0;
  double bias = 0, mean = 0, rms = 0, max = 0;
};
ErrorSummary summary_of(const std::vector<double>& errors);

struct RowError {
  Row row;
  Comparison comparison;
};
struct ErrorTable {
  std::vector<RowError> rows;
  std::vector<Row> skipped;  // for a reason that problem_of returns
};
// Fails with kUsage if a cluster file can't be read or a constant is invalid.
Result<ErrorTable> error_table(const std::vector<Row>& rows);

// Sums up the steps of rows that use a cluster file as it is: the uncertainty of that file's predictions.
std::vector<std::pair<std::string, ErrorSummary>> summaries_by_cluster(const ErrorTable& table);

std::string to_text(const ErrorTable& table);
std::string to_json(const ErrorTable& table);  // one object, one line

}  // namespace tri::published
