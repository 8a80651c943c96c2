#include <algorithm>

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/simulate/network/network.h"

namespace tri {
namespace {

// Columns: the slowest group when only this axis sends, the mean of all groups, all axes at once, and the step.
constexpr const char* kColumns = "   alone  mean   all  step";

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string link_text(const BusyLink& link) {
  std::string flows;
  for (const auto& [name, count] : link.flows)
    flows += fmt::format("{}{} of {}", flows.empty() ? "" : ", ", count, name);
  return fmt::format("{} ({:.0f} GB/s) carries flows that demand {:.0f} GB/s: {}", link.name, link.gb_per_s,
                     link.wanted_gb_per_s, flows);
}

std::string axis_text(const AxisNetwork& axis, const Cluster& c) {
  if (axis.connections == 0)
    return fmt::format("  {:<12} {} of {} ranks: inside machines, {:.0f} GB/s per rank\n", axis.name,
                       counted(axis.groups, "group"), axis.ranks, c.node.gb_per_s);
  std::string text = fmt::format("  {:<12}{:>5.0f} %", axis.name, 100 * axis.busy);
  for (const AxisShares* shares : {&axis.fair, &axis.head_of_line})
    text += fmt::format("   {:>5} {:>5} {:>5} {:>5}", percent(shares->alone.slowest), percent(shares->alone.mean),
                        percent(shares->together.slowest), percent(shares->in_step));
  text += fmt::format("\n      {} of {} ranks, {} per machine; {}, of which {} leave their switch and {} their pod\n",
                      counted(axis.groups, "group"), axis.ranks, axis.on_node, counted(axis.connections, "connection"),
                      percent(axis.other_switch), percent(axis.other_pod));
  if (!axis.why_alone.name.empty()) text += "      alone: " + link_text(axis.why_alone) + "\n";
  if (!axis.why_together.name.empty() && axis.why_together.flows != axis.why_alone.flows)
    text += "      with all axes at once: " + link_text(axis.why_together) + "\n";
  return text;
}

// The algorithms for one of the axis' transfers in a step, the fastest first.
std::string algorithms_text(const Workload& w, const Cluster& c, const AxisNetwork& axis) {
  if (axis.axis == TransferAxis::kPp) return "";
  const bool dp = axis.axis == TransferAxis::kDp;
  const double tokens = static_cast<double>(w.micro_batch) * w.model.seq_len;
  const double kv_width = 2.0 * static_cast<double>(w.layers()[0].attention.kv_width()) / w.tp;
  const double bytes = dp                               ? static_cast<double>(w.bucket_elements) * w.gradient_bytes
                       : axis.axis == TransferAxis::kCp ? 2 * tokens * kv_width
                                                        : 2 * tokens / w.cp * w.model.hidden;
  const Collective kind = dp && w.zero == 0 ? Collective::kAllReduce : Collective::kReduceScatter;
  const Transfer transfer{kind, bytes, axis.ranks, axis.on_node, axis.axis};
  std::string text =
      fmt::format("  {} {} of {}:", axis.name, kind == Collective::kAllReduce ? "all-reduce" : "reduce-scatter",
                  format_bytes(static_cast<int64_t>(bytes)));
  for (const AlgorithmTime& time : algorithm_times(c, transfer, axis.fair.in_step))
    text += fmt::format(" {} {} {:.2f} ms ({:.2f} of it latency),", enum_name(time.algorithm), enum_name(time.protocol),
                        1e3 * time.total(), 1e3 * time.latency);
  text.back() = '\n';
  return text;
}

std::string flaps_text(const ClusterFabric& f, const FlapOdds& odds) {
  std::string text = fmt::format(
      "link flaps: a lost packet is retransmitted after {:.2f} s, up to {} times, so a connection survives {:.0f} s "
      "without its link. Of flaps that last {:.0f} s on average, {:.1f} % end the step; the others stall it for "
      "{:.1f} s\n",
      retransmit_seconds(f), f.retry_count, f.retry_count * retransmit_seconds(f), f.flap_s, 100 * odds.dies,
      odds.stall_s);
  if (f.flaps_per_link_day > 0)
    text += fmt::format("  per day, flaps end {:.1f} steps and stall the run for {}\n", odds.deaths_a_day,
                        format_duration(odds.stall_s_a_day));
  return text;
}

nlohmann::ordered_json json_of(const AxisShares& shares) {
  return {{"alone_slowest", shares.alone.slowest},
          {"alone_mean", shares.alone.mean},
          {"together_slowest", shares.together.slowest},
          {"together_mean", shares.together.mean},
          {"in_step", shares.in_step}};
}

nlohmann::ordered_json json_of(const BusyLink& link) {
  if (link.name.empty()) return nullptr;
  nlohmann::ordered_json flows;
  for (const auto& [name, count] : link.flows) flows[name] = count;
  return {
      {"link", link.name}, {"gb_per_s", link.gb_per_s}, {"wanted_gb_per_s", link.wanted_gb_per_s}, {"flows", flows}};
}

}  // namespace

std::string to_text(const NetworkAnalysis& n, const NetworkAnalysis* other, const Workload& w, const Cluster& c) {
  const ClusterFabric& f = c.fabric;
  std::string text = fmt::format(
      "network: {} layers of switches, {} {}; {} with {} x {:.0f} GB/s down and {} x {:.0f} GB/s up, {}{}; {} per "
      "connection, seed {}\n",
      f.layers, counted(n.machines, "machine"), enum_name(n.options.placement), counted(n.switches_used, "switch"),
      f.down_ports, c.network.gb_per_s, f.up_ports, f.up_gb_per_s, counted(n.pods_used, "pod"),
      f.rails ? ", rails" : "", counted(f.queue_pairs, "flow"), n.options.seed);
  text += fmt::format("share of the adapters' rate {:<28}{}\n", "  fair shares:", "priority flow control alone:");
  text += fmt::format("  {:<12}{:>7}{}{}\n", "axis", "busy", kColumns, kColumns);
  for (const AxisNetwork& axis : n.axes) text += axis_text(axis, c);
  if (std::ranges::all_of(n.axes, [](const AxisNetwork& axis) { return axis.connections == 0; }))
    return text +
           fmt::format("no transfer leaves a machine, so the step has no congestion: {:.3f} s\n", n.uncongested_s);
  text += fmt::format("step: {:.3f} s without congestion, {:.3f} s with fair shares, {:.3f} s in the worst case\n",
                      n.uncongested_s, n.fair_s, n.head_of_line_s);
  if (other)
    text += fmt::format("{}: {:.3f} s with fair shares, {:.3f} s in the worst case\n",
                        enum_name(other->options.placement), other->fair_s, other->head_of_line_s);
  for (const AxisNetwork& axis : n.axes) text += algorithms_text(w, c, axis);
  return text + flaps_text(f, n.flaps);
}

std::string to_json(const NetworkAnalysis& n, const Cluster& c) {
  nlohmann::ordered_json axes = nlohmann::ordered_json::array();
  for (const AxisNetwork& axis : n.axes)
    axes.push_back({{"axis", axis.name},
                    {"groups", axis.groups},
                    {"ranks", axis.ranks},
                    {"on_machine", axis.on_node},
                    {"connections", axis.connections},
                    {"other_switch", axis.other_switch},
                    {"other_pod", axis.other_pod},
                    {"busy", axis.busy},
                    {"fair", json_of(axis.fair)},
                    {"head_of_line", json_of(axis.head_of_line)},
                    {"why_alone", json_of(axis.why_alone)},
                    {"why_together", json_of(axis.why_together)}});
  const nlohmann::ordered_json json{
      {"seed", n.options.seed},
      {"placement", enum_name(n.options.placement)},
      {"machines", n.machines},
      {"switches", n.switches_used},
      {"pods", n.pods_used},
      {"links", n.links_used},
      {"axes", axes},
      {"step_s", {{"uncongested", n.uncongested_s}, {"fair", n.fair_s}, {"head_of_line", n.head_of_line_s}}},
      {"flaps",
       {{"retransmit_s", retransmit_seconds(c.fabric)},
        {"retries", c.fabric.retry_count},
        {"dies", n.flaps.dies},
        {"stall_s", n.flaps.stall_s},
        {"deaths_a_day", n.flaps.deaths_a_day},
        {"stall_s_a_day", n.flaps.stall_s_a_day}}}};
  return json.dump();
}

}  // namespace tri
