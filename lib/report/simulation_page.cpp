#include "lib/report/simulation_page.h"

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/report/page_files.h"
#include "lib/report/page_frame.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const StepPrediction& step) {
  Json parts;
  for (const auto& [name, seconds] : named_parts(step.parts)) parts[name] = seconds;
  return {{"seconds", step.seconds}, {"mfu", step.mfu}, {"tokens_per_s", step.tokens_per_second}, {"parts", parts}};
}

Json json_of(const std::vector<ScalingRow>& rows) {
  Json list = Json::array();
  for (const ScalingRow& row : rows) {
    Json json = json_of(row.step);
    json["ranks"] = row.workload.ranks();
    json["dp"] = row.workload.dp;
    json["global_batch"] = row.workload.global_batch;
    list.push_back(json);
  }
  return list;
}

Json start_json(const ScalingRow& row) {
  const StartUp& s = row.start;
  return {{"ranks", row.workload.ranks()},
          {"calls", s.calls},
          {"gathered_bytes", s.gathered_bytes},
          {"groups", s.groups},
          {"messages", s.messages},
          {"message_bytes", s.bytes},
          {"data_readers", s.data_readers},
          {"exchange_s", s.exchange_s},
          {"groups_s", s.groups_s},
          {"load_s", s.load_s}};
}

Json layout_json(const PlannedLayout& layout, const PlannedLayout& best, const Cluster& cluster) {
  const Workload& w = layout.workload;
  Json json = json_of(layout.step);
  json["layout"] = axes_json(w);
  json["layout"].update(
      {{"chunks", w.chunks}, {"micro_batch", w.micro_batch}, {"zero", w.zero}, {"recompute", enum_name(w.recompute)}});
  json["memory_bytes"] = layout.memory_bytes;
  json["equal"] = &layout != &best && equals_best(layout, best, cluster);
  json["tight"] = is_tight(static_cast<double>(layout.memory_bytes), room_of(cluster));
  return json;
}

}  // namespace

std::string simulation_page(const SimulationReport& report, const PageHead& head) {
  const Simulation& s = report.simulation;
  Json ablation = Json::array(), layouts = Json::array();
  for (const AblationRow& row : report.ablation) {
    Json json = json_of(row.step);
    json["name"] = row.name;
    ablation.push_back(json);
  }
  for (const PlannedLayout& layout : report.layouts)
    layouts.push_back(layout_json(layout, report.layouts.front(), s.cluster));
  Json axes = Json::array();
  for (const GridAxis& axis : s.workload.grid().axes) axes.push_back(axis.name);
  Json start = Json::array();
  for (const ScalingRow& row : report.weak) start.push_back(start_json(row));
  const Json data{{"made", head.made},
                  {"version", head.version},
                  {"name", s.name},
                  {"cluster", fmt::format("{}, {} per machine, with {}", s.cluster.device.name, s.cluster.node.ranks,
                                          s.cluster.software.name)},
                  {"sources", software_note(s.cluster, s.memory_estimated)},
                  {"axes", axes},
                  {"simulation", parse_json<Json>(to_json(s))},
                  {"weak", json_of(report.weak)},
                  {"strong", json_of(report.strong)},
                  {"ablation", ablation},
                  {"layouts", layouts},
                  {"start", start}};
  return fill_page_frame({.title = "Trireme: " + s.name + ", simulated",
                          .summary = to_text(s),
                          .data = embedded_json(data.dump(-1, ' ', false, Json::error_handler_t::replace)),
                          .script = page_files::kSimulationScript});
}

}  // namespace tri
