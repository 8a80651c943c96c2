#include "app/bench_overlap.h"

#include <algorithm>

#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/format.h"
#include "io/base/json.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const OverlapRow& row) {
  return {{"axis", row.axis},
          {"transfer", row.transfer},
          {"compute", row.compute},
          {"ranks", row.ranks},
          {"bytes", row.bytes},
          {"transfer_us", row.transfer_us},
          {"compute_us", row.compute_us},
          {"together_us", row.together_us},
          {"hidden", row.hidden.fraction},
          {"raw_hidden", row.hidden.raw},
          {"clamped", row.hidden.clamped},
          {"uncertain", row.uncertain}};
}

void print(const std::vector<OverlapRow>& rows) {
  if (rows.empty()) {
    print_out("no axis has more than one rank, so there is nothing to measure; start more ranks\n");
    return;
  }
  print_out("{:<5}{:<30}{:<28}{:>6}{:>13}{:>12}{:>12}{:>12}{:>9}\n", "axis", "transfer", "alongside", "ranks", "bytes",
            "transfer us", "compute us", "together us", "hidden");
  bool clamped = false, uncertain = false;
  for (const OverlapRow& row : rows) {
    print_out("{:<5}{:<30}{:<28}{:6}{:>13}{:12.1f}{:12.1f}{:12.1f}{:7.0f} %{}{}\n", row.axis, row.transfer, row.compute,
              row.ranks, format_bytes(row.bytes), row.transfer_us, row.compute_us, row.together_us,
              100 * row.hidden.fraction, row.hidden.clamped ? " !" : "", row.uncertain ? " ~" : "");
    clamped |= row.hidden.clamped;
    uncertain |= row.uncertain;
  }
  if (clamped)
    print_out(
        "!  the measured value is outside 0 to 100 %: both together took longer than one after the other, or less than "
        "compute alone\n");
  if (uncertain) print_out("~  the value varies by more than half of the transfer's time and is not reliable\n");
}

}  // namespace

const char* const kOverlapHelp =
    "Measures, on every axis of the config's mesh with more than one rank, the transfer alone, the compute alone, and "
    "both together as in a step. It prints hidden = 1 - (together - compute) / transfer.\n"
    "  tp  the gather of rows with the GEMMs that read them, and GEMMs with the reduce of their rows, forward and "
    "backward, through the layers' own code; compute alone uses undivided GEMMs, so the cost of splitting them counts "
    "as "
    "not hidden\n"
    "  dp  the gradient reduction of the largest bucket during weight-gradient GEMMs, and its parameter gather during "
    "forward GEMMs\n"
    "  pp  a boundary tensor sent and received in both directions during a block's forward pass\n"
    "Compute that is shorter than its transfer is repeated (x N). Times are medians of the slowest rank of each round. "
    "parallel.overlap_tp, overlap_dp, overlap_pp and tp_transfers are those of the config; change them to see their "
    "effect.";

Result<void> bench_overlaps(const std::string& path, const std::vector<std::string>& overrides,
                            const OverlapBench& bench, bool json, Job& job) {
  const auto loaded = open_bench_job(path, overrides, job);
  if (!loaded) return loaded.error();
  if (const int experts = loaded.value().config().model.experts; experts > 0)
    return usage_error("model.experts: {}: bench overlap measures dense layers only; set model.experts to 0", experts);
  const auto rows = bench_overlap(loaded.value().config(), loaded.value().mesh(), job, *loaded.value().device, bench);
  if (job.world_rank() != 0) return {};
  if (!json) {
    print(rows);
    return {};
  }
  Json objects = Json::array();
  for (const OverlapRow& row : rows) objects.push_back(to_json(row));
  print_object(objects);
  return {};
}

}  // namespace tri
