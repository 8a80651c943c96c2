#include "lib/report/simulation_page.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "lib/simulate/document_samples.h"

namespace tri {
namespace {

Simulation simulated(const std::string& name) {
  Config config;
  config.run.name = name;
  config.model = {.layers = 24, .hidden = 2048, .heads = 16, .vocab = 50304, .seq_len = 2048};
  config.precision.compute = Dtype::kBF16;
  config.parallel.tp = config.parallel.pp = config.parallel.dp = 2;
  config.data.global_batch = 32;
  auto resolved = resolve_config(config, 8);
  EXPECT_TRUE(resolved) << resolved.error().message;
  auto simulation = simulate(resolved.value(), Cluster{});
  EXPECT_TRUE(simulation) << simulation.error().message;
  return simulation.value();
}

TEST(SimulationPage, holds_every_row_and_no_foreign_markup) {
  SimulationReport report{.simulation = simulated("</script><b>")};
  const Workload& w = report.simulation.workload;
  report.weak = scaling_rows(w, report.simulation.cluster, Scaling::kWeak, 64);
  report.strong = scaling_rows(w, report.simulation.cluster, Scaling::kStrong, 64);
  report.ablation = ablation_rows(w, report.simulation.cluster, Stragglers::kOn);
  const std::string page = simulation_page(report, {.made = 0, .version = "v"});
  EXPECT_EQ(page.find("<b>"), page.npos);
  const std::string open = "id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data["name"], "</script><b>");
  EXPECT_EQ(data["weak"].size(), report.weak.size());
  EXPECT_EQ(data["strong"].size(), report.strong.size());
  EXPECT_EQ(data["start"].size(), report.weak.size());
  EXPECT_DOUBLE_EQ(data["weak"][0]["seconds"].get<double>(), report.simulation.step.seconds);
  EXPECT_NE(page.find("function barPlot"), page.npos);
}

// Choices that a config makes have rows, others do not; undoing one makes the step longer, except for slow machines.
TEST(Ablation, undoes_what_the_config_does) {
  Workload w = simulated("x").workload;
  const auto names = [&] {
    std::vector<std::string> list;
    for (const AblationRow& row : ablation_rows(w, Cluster{}, Stragglers::kOn)) list.push_back(row.name);
    return list;
  };
  const auto rows = ablation_rows(w, Cluster{}, Stragglers::kOn);
  EXPECT_EQ(names(), (std::vector<std::string>{"as configured", "without tp overlap", "without pp overlap",
                                               "without dp overlap", "full recompute", "no slow machines"}));
  for (size_t i = 1; i + 1 < rows.size(); ++i) EXPECT_GT(rows[i].step.seconds, rows[0].step.seconds) << rows[i].name;
  EXPECT_LT(rows.back().step.seconds, rows[0].step.seconds);
  w.overlap_tp = w.overlap_pp = w.overlap_dp = false;
  w.recompute = Recompute::kFull;
  EXPECT_EQ(names(), (std::vector<std::string>{"as configured", "no slow machines"}));
  w.model.window = 64;
  EXPECT_EQ(names()[1], "full attention");
  DocumentSamples documents(w.model.seq_len, {w.model.window}, "of whole samples");
  documents.add(std::vector<int32_t>(static_cast<size_t>(w.model.seq_len), 0));
  w.documents = std::make_shared<const DocumentSamples>(documents);
  EXPECT_EQ(names(), (std::vector<std::string>{"as configured", "no slow machines"}))
      << "pairs of documents are known for the config's window alone";
}

}  // namespace
}  // namespace tri
