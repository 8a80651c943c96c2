// Prints the result of a layout search as text and as JSON.
#include <algorithm>
#include <array>

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/config/layer_counts.h"
#include "lib/simulate/planner.h"
#include "lib/simulate/simulation.h"
#include "lib/simulate/step_memory.h"

namespace tri {
namespace {

std::string layout_columns(const Workload& w, bool with_cp) {
  const std::string cp = with_cp ? fmt::format("cp {:>3} ", w.cp) : "",
                    ep = w.model.experts > 0 ? fmt::format("ep {:>3} ", w.ep) : "";
  // u: the stages have uneven numbers of layers.
  return fmt::format(
      "tp {:>2} {}pp {:>2}{} dp {:>5} {}{:<11} chunks {:>2} micro-batch {:>2} zero {} recompute {:<9} {}", w.tp, cp,
      w.pp, w.layers_per_chunk.empty() ? " " : "u", w.dp, ep, enum_name(w.schedule), w.chunks, w.micro_batch, w.zero,
      enum_name(w.recompute), enum_name(w.numbers));
}

// Returns the two largest parts of the step other than the model's FLOPs, by their names in parts_s.
std::array<std::string, 2> largest_others(const StepPrediction& step) {
  std::vector<std::pair<std::string, double>> parts = named_parts(step.parts);
  std::erase_if(parts, [](const auto& part) { return part.first == "gemm" || part.first == "attention"; });
  std::ranges::sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
  return {parts[0].first, parts[1].first};
}

std::string limits_of(const StepPrediction& step) {
  std::string text;
  for (const std::string& name : largest_others(step))
    for (const auto& [part, seconds] : named_parts(step.parts))
      if (part == name)
        text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", part_title(part), 100 * seconds / step.seconds);
  return text;
}

// Says how much longer the second layout takes, and in which parts it loses and gains most.
std::string why(const PlannedLayout& first, const PlannedLayout& second) {
  const auto a = named_parts(first.step.parts), b = named_parts(second.step.parts);
  size_t loss = 0, gain = 0;
  const auto more = [&](size_t part) { return b[part].second - a[part].second; };
  for (size_t i = 0; i < a.size(); ++i) {
    if (more(i) > more(loss)) loss = i;
    if (more(i) < more(gain)) gain = i;
  }
  const double net = second.step.seconds - first.step.seconds;
  std::string text = fmt::format("the second layout takes {:.1f} ms ({:.1f} %) longer than the first", 1e3 * net,
                                 100 * net / first.step.seconds);
  if (more(loss) > 0) text += fmt::format(": {:+.1f} ms {}", 1e3 * more(loss), part_title(a[loss].first));
  if (more(gain) < 0)
    text += fmt::format("{} {:+.1f} ms {}", more(loss) > 0 ? "," : ":", 1e3 * more(gain), part_title(a[gain].first));
  return text;
}

// The layers of the first layout with uneven stages.
std::string first_uneven(const PlanSearch& search) {
  for (const PlannedLayout& layout : search.best)
    if (!layout.workload.layers_per_chunk.empty()) return layer_counts_text(layout.workload.layers_per_chunk);
  return "";
}

}  // namespace

bool equals_best(const PlannedLayout& layout, const PlannedLayout& best, const Cluster& cluster) {
  return layout.step.seconds <= (1 + cluster.uncertainty) * best.step.seconds;
}

std::string to_text(const PlanSearch& search, const Cluster& cluster) {
  std::string text = fmt::format(
      "{} layouts, of which {} fit into {:.1f} GiB; the best ones on {} of {} (the search took {:.0f} ms):\n",
      search.tried, search.fitted, room_of(cluster) / kGib, counted(search.best.front().workload.ranks(), "rank"),
      cluster.device.name, 1e3 * search.seconds);
  const bool with_cp =
      std::ranges::any_of(search.best, [](const PlannedLayout& layout) { return layout.workload.cp > 1; });
  const size_t columns = layout_columns(search.best.front().workload, with_cp).size();
  text += fmt::format("  {:>4}  {:<{}}  {:>9}  {:>8}  {:>6}  {:>9}   limited by\n", "", "layout", columns, "step",
                      "tokens/s", "MFU", "memory");
  int place = 1;
  const PlannedLayout& best = search.best[0];
  bool equal = false, tight = false;
  for (const PlannedLayout& layout : search.best) {
    const bool is_equal = place > 1 && equals_best(layout, best, cluster);
    const auto bytes = static_cast<double>(layout.memory_bytes);
    const bool fits_tightly = is_tight(bytes, room_of(cluster));
    text += fmt::format("  {:>3}{}  {:<{}}  {:>7.3f} s  {:>8}  {:>4.1f} %  {:>5.1f} GiB{}  {}\n", place++,
                        is_equal ? "=" : " ", layout_columns(layout.workload, with_cp), columns, layout.step.seconds,
                        format_count(layout.step.tokens_per_second), 100 * layout.step.mfu, bytes / kGib,
                        fits_tightly ? "!" : " ", limits_of(layout.step));
    equal |= is_equal;
    tight |= fits_tightly;
  }
  text += fmt::format("MFU is relative to {}; steps are uncertain by{}\n", mfu_peak(best.workload, cluster),
                      cluster.uncertainty > 0 ? plus_minus(cluster) : " an unknown share");
  if (equal) text += fmt::format("=: as fast as the first layout within{}\n", plus_minus(cluster));
  if (const std::string counts = first_uneven(search); !counts.empty())
    text += fmt::format("u: uneven stages; the first such layout has {} layers\n", counts);
  if (tight) text += fmt::format("!: a tight fit into {:.1f} GiB\n", room_of(cluster) / kGib);
  if (search.best.size() > 1) text += why(search.best[0], search.best[1]) + "\n";
  text += software_note(cluster) + "\n";
  for (const std::string& note : search.notes) text += note + "\n";
  return text;
}

std::string to_json(const PlanSearch& search, const Cluster& cluster) {
  nlohmann::ordered_json layouts = nlohmann::ordered_json::array();
  for (const PlannedLayout& layout : search.best) {
    const Workload& w = layout.workload;
    nlohmann::ordered_json parts;
    for (const auto& [name, seconds] : named_parts(layout.step.parts)) parts[name] = seconds;
    nlohmann::ordered_json json = axes_json(w);
    json.update({{"cp", w.cp},
                 {"ep", w.ep},
                 {"chunks", w.chunks},
                 {"schedule", enum_name(w.schedule)},
                 {"micro_batch", w.micro_batch},
                 {"zero", w.zero},
                 {"recompute", enum_name(w.recompute)},
                 {"bucket_elements", w.bucket_elements},
                 {"numbers", enum_name(w.numbers)},
                 {"step_s", layout.step.seconds},
                 {"tokens_per_s", layout.step.tokens_per_second},
                 {"mfu", layout.step.mfu},
                 {"memory_bytes", layout.memory_bytes},
                 {"equal", equals_best(layout, search.best[0], cluster)},
                 {"tight", is_tight(static_cast<double>(layout.memory_bytes), room_of(cluster))},
                 {"parts_s", parts},
                 {"limited_by", largest_others(layout.step)}});
    if (!w.layers_per_chunk.empty()) json["layers_per_chunk"] = w.layers_per_chunk;
    layouts.push_back(std::move(json));
  }
  const double peak =
      search.best[0].workload.numbers == Numbers::kFp32 ? cluster.device.fp32_tflops : cluster.device.bf16_tflops;
  nlohmann::ordered_json json{
      {"tried", search.tried},
      {"fitted", search.fitted},
      {"search_s", search.seconds},
      {"reason", nullptr},
      {"uncertainty", cluster.uncertainty > 0 ? nlohmann::ordered_json(cluster.uncertainty) : nullptr},
      {"mfu_peak_tflops", peak},
      {"speeds_of", cluster.software.name},
      {"notes", search.notes},
      {"layouts", layouts}};
  if (search.best.size() > 1) json["reason"] = why(search.best[0], search.best[1]);
  return json.dump() + "\n";
}

}  // namespace tri
