// Reads CSV files of measurements, as `trireme simulate --rows` does.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "io/base/json.h"
#include "lib/simulate/simulation.h"
#include "tests/simulate/fitting.h"

namespace tri::published {
namespace {

constexpr const char* kColumns =
    "source,model,layers,hidden,heads,ffn,seq,vocab,gpus,tp,pp,v,dp,cp,micro_batch,global_batch,recompute,metric,value";

// A file in the tests' folder, and what read_rows makes of it.
Result<std::vector<Row>> read(const std::string& text, const RowsOptions& options) {
  const std::string path = testing::TempDir() + "rows.csv";
  std::ofstream(path) << text;
  return read_rows(path, options);
}

RowsOptions nemo() {
  return {.program = Program::kNemo, .cluster = std::string(TRI_SOURCE_DIR) + "/configs/clusters/h100_nemo.yaml"};
}

TEST(PublishedRows, the_command_line_names_program_and_cluster) {
  const std::string row = "\"a, b\",llama3-8B,32,4096,32,14336,8192,,8,1,1,,4,2,1,128,,step_s,12\n";
  const auto rows = value_or_throw(read(std::string("# a comment\n") + kColumns + "\n" + row, nemo()));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].source, "a, b");
  EXPECT_EQ(rows[0].line, 3);
  const Workload w = workload_of(rows[0]);
  EXPECT_EQ(w.cp, 2);
  EXPECT_EQ(w.gradient_bytes, 2);
  EXPECT_EQ(w.model.kv_heads, 8);
  EXPECT_EQ(w.model.vocab, 128256);
  const ErrorTable table = value_or_throw(error_table(rows));
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_NEAR(table.rows[0].comparison.predicted, 12, 2);
  const auto json = nlohmann::json::parse(to_json(table));
  EXPECT_EQ(json["errors"][0]["name"], "a, b");
  EXPECT_NE(to_text(table).find("a, b as nemo"), std::string::npos);
}

TEST(PublishedRows, options_say_what_a_row_did_differently) {
  const std::string text = std::string(kColumns) +
                           ",as,options\n"
                           "a,175B,96,12288,128,49152,2048,,64,8,8,6,1,1,1,32,norms,step_s,5,megascale,window=512 "
                           "parallel_block=1 gradient_bytes=2\n"
                           "a,1B,2,1024,8,4096,2048,,8,8,1,,1,1,1,32,full no-SP,step_s,5,megatron_2022,\n";
  const auto rows = value_or_throw(read(text, {.cluster = nemo().cluster}));
  const Workload w = workload_of(rows[0]), without = workload_of(rows[1]);
  EXPECT_EQ(w.model.window, 512);
  EXPECT_EQ(w.model.block, Block::kParallel);
  EXPECT_EQ(w.gradient_bytes, 2);
  EXPECT_EQ(w.recompute, Recompute::kNorms);
  EXPECT_FALSE(without.sequence_parallel);
  EXPECT_TRUE(without.async_sums);
}

TEST(PublishedRows, bad_files_are_rejected_with_their_lines) {
  const auto problem = [](const std::string& text, const RowsOptions& options) {
    const auto rows = read(text, options);
    return rows ? "" : rows.error().message;
  };
  const auto expect = [&](const std::string& text, const std::string& part, const RowsOptions& options = {}) {
    EXPECT_NE(problem(text, options).find(part), std::string::npos) << problem(text, options);
  };
  expect("", "is empty");
  expect("source,model\n", ":1: has no column value");
  expect("run:\n  name: a\n", ":1: expected a CSV file");
  expect(std::string(kColumns) + "\n", "has no column as (or give --as PROGRAM)");
  expect(std::string(kColumns) + "\n", "has no rows", nemo());
  const std::string row = "a,b,1,1024,8,4096,2048,,8,8,1,,1,1,1,32,,step_s,5,";
  const std::string more = std::string(kColumns) + ",as,cluster,options\n" + row;
  expect(more + "megatrn,c.yaml,\n", ":2: as: unknown program megatrn; expected trireme|");
  expect(more + "nemo,c.yaml,windw=1\n", ":2: options: unknown option windw; the options are kv_heads, ");
  expect(more + "nemo,c.yaml,window=x\n", "options: window=x: expected window=NUMBER");
  expect(more + "nemo,,\n", ":2: cluster: names no file");
  expect(more + "nemo,c.yaml,,,\n", "fields for 22 columns");
}

// Sources state ranges, bounds and abbreviations; their other rows can still be predicted.
TEST(PublishedRows, rows_that_cannot_be_predicted_are_listed) {
  const auto skipped = [](const std::string& row) {
    const auto rows = value_or_throw(read(std::string(kColumns) + "\n" + row + "\n", nemo()));
    const auto table = error_table(rows);
    EXPECT_FALSE(table);
    return table ? "" : table.error().message;
  };
  const auto expect = [&](const std::string& row, const std::string& part) {
    EXPECT_NE(skipped(row).find(part), std::string::npos) << skipped(row);
  };
  expect("a,b,1,1024,8,4096,2048,250k,8,8,1,,1,1,1,32,,step_s,5", "line 2: vocab: expected a whole number");
  expect("a,b,1,1024,8,4096,2048,,8,8,1,,1,1,1,32,,step_s,<5", "value: expected a number above 0, not <5");
  expect("a,b,1,1024,8,4096,2048,,8,8,1,,1,1,1,32,,watts,5", "the metric watts is not predicted");
  expect("a,b,1,1024,8,4096,2048,,16,8,1,,1,1,1,32,,step_s,5", "does not equal its 16 GPUs");
  expect("a,b,1,1024,8,4096,2048,,8,8,,,1,1,1,32,,step_s,5", "pp is not stated");
  expect("a,b,1,1024,8,4096,2048,,8,1,8,,1,1,1,32,,step_s,5", "model.layers 1 is fewer than pp 8");
  expect("a,b,1,1024,8,4096,2048,,8,1,1,,8,1,3,32,,step_s,5", "is not a multiple of micro_batch 3");
  expect("a,b,1,1024,8,4096,2048,,99999999,99999999,1,,1,1,1,32,,step_s,5", "its layout has more than");
  expect("a,b,1,16,20,4096,2048,,8,8,1,,1,1,1,32,,step_s,5", "heads 20 does not divide hidden 16");
}

// `simulate CONFIG --as` and a row of the same run agree.
TEST(PublishedRows, a_config_and_a_row_of_the_same_run_take_the_same_time) {
  const std::string row = "a,llama3-405B,126,16384,128,53248,8192,128256,1024,8,8,4,8,2,1,512,selective,step_s,20\n";
  const auto rows = value_or_throw(read(std::string(kColumns) + "\n" + row, nemo()));
  const Cluster cluster = cluster_of(rows[0]);
  const std::string path = std::string(TRI_SOURCE_DIR) + "/configs/llama_3_70b.yaml";
  const Config parsed = value_or_throw(
      parse_config(value_or_throw(read_config_text(path)), path,
                   {"model.layers=126", "model.hidden=16384", "model.heads=128", "model.ffn_hidden=53248",
                    "model.seq_len=8192", "model.vocab=128256", "model.tie_embeddings=false", "data.global_batch=512",
                    "data.micro_batch=1", "parallel.tp=8", "parallel.pp=8", "parallel.dp=0", "parallel.chunks=4",
                    "parallel.schedule=interleaved", "parallel.recompute=selective", "precision.gemm=compute"}));
  EXPECT_FALSE(resolve_for(Program::kTrireme, parsed, 1024)) << "126 layers do not divide evenly";
  Config listed = parsed;
  listed.parallel.layers_per_chunk = "3,3";
  const auto refused = resolve_for(Program::kNemo, listed, 1024);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("3,3 has 2 numbers with the sum 6"), std::string::npos);
  const Simulation simulation = value_or_throw(simulate(value_or_throw(resolve_for(Program::kNemo, parsed, 1024)),
                                                        cluster, {.cp = 2, .program = Program::kNemo}));
  EXPECT_NEAR(simulation.step.seconds / compare(rows[0], cluster).predicted, 1, 1e-9);
}

// Returns the cells of a line of a Markdown table, without spaces around them.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t at = line.find("| "), end; at != line.npos && (end = line.find(" |", at + 1)) != line.npos; at = end + 1)
    cells.push_back(end > at + 2 ? line.substr(at + 2, end - at - 2) : "");
  return cells;
}

// The documented errors are those that `trireme simulate --rows` prints, and none is missing.
TEST(PublishedRows, the_documented_errors_are_those_of_the_command) {
  std::map<std::string, std::string> documented, printed;
  std::ifstream document(std::string(TRI_SOURCE_DIR) + "/lib/bench/measurements/simulator_errors.md");
  for (std::string line; std::getline(document, line);)
    if (const std::vector<std::string> c = cells_of(line); c.size() == 8 && c[7].ends_with(" %"))
      documented[c[0]] = fmt::format("{} rows, {}, {}, {}, {}", c[3], c[4], c[5], c[6], c[7]);
  for (const std::string name : {"published", "never_fitted"}) {
    const std::string path = fmt::format("{}/configs/published/{}.csv", TRI_SOURCE_DIR, name);
    const auto json = nlohmann::json::parse(to_json(value_or_throw(error_table(value_or_throw(read_rows(path, {}))))));
    for (const auto& sum : json["errors"])
      if (sum["by"] == "source")
        printed[sum["name"]] = fmt::format("{} rows, {:+.1f} %, {:.1f} %, {:.1f} %, {:.1f} %", sum["rows"].get<int>(),
                                           100 * sum["bias"].get<double>(), 100 * sum["mean"].get<double>(),
                                           100 * sum["rms"].get<double>(), 100 * sum["max"].get<double>());
  }
  EXPECT_GT(printed.size(), 30u);
  for (const auto& [source, errors] : printed) EXPECT_EQ(documented[source], errors) << source;
}

}  // namespace
}  // namespace tri::published
