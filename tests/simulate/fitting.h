// For tests on published measurements (lib/simulate/published.h): selections of rows, lines of tables, and fits of a
// few constants.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/simulate/published.h"

namespace tri::published {

std::vector<Row> rows_of_file(const std::string& name);  // of configs/published
// Returns the rows whose source begins like this.
std::vector<Row> rows_of(const std::vector<Row>& rows, const std::string& source);
// Returns the cluster of the row's columns.
Cluster cluster_of(const Row& row);
Cluster cluster_of(const std::string& name, const std::vector<std::string>& overrides = {});  // in configs/clusters

struct Error {
  std::string label;
  double value = 0;
};
double mean_error(const std::vector<Error>& errors);  // of absolute values
double max_error(const std::vector<Error>& errors);

// Returns the errors of the rows, each with its own cluster, after `change` to it.
std::vector<Error> errors_of(const std::vector<Row>& rows, const std::function<void(Cluster&)>& change = {});
// Returns the errors of the rows on one cluster.
std::vector<Error> errors_on(const std::vector<Row>& rows, const Cluster& cluster);

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
