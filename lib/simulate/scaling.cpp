#include "lib/simulate/scaling.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "io/base/format.h"
#include "io/base/json.h"

namespace tri {
namespace {

// Counts of a training run from its start to the end of its first step, measured on 2, 4 and 8 ranks
// (tests/mp/start_is_as_predicted.sh).
constexpr int64_t kStartCalls = 18;
constexpr int64_t kBytesOnce = 3100;  // from rank 0 to all: the config, the attempt, the sample order
constexpr int64_t kBytesARank = 256;  // from each rank to all others: its machine's name and memory
// The name of each GPU that a rank sees, sent twice. Computed from the contents of the messages.
constexpr int64_t kBytesAGpu = 2 * 48;

constexpr int64_t kIdBytes = 128;      // NCCL's unique id
constexpr int64_t kHandleBytes = 128;  // a member's address data, sent to the others

// Steps until a message has reached the last member of a binomial tree.
int tree_depth(int size) { return static_cast<int>(std::ceil(std::log2(size))); }

// Adds `count` groups of `size` members each; every rank belongs to `of_a_rank` of them.
void add_groups(const Cluster& cluster, int64_t count, int size, int of_a_rank, StartUp& start) {
  if (size < 2) return;
  start.groups += count;
  start.messages += count * (size - 1 + int64_t{size} * (size - 1));
  start.bytes += count * ((size - 1) * kIdBytes + int64_t{size} * (size - 1) * kHandleBytes);
  const double message = cluster.network.host_message_us * 1e-6;
  start.groups_s += of_a_rank * ((tree_depth(size) + size - 1) * message + cluster.network.connect_s);
}

// Machines with ranks of the first or the last stage, which need tokens.
int64_t machines_of_ends(const Workload& w, const Cluster& c) {
  const int stride = w.stage_stride(), ranks = w.ranks();
  std::vector<bool> has_end(static_cast<size_t>((ranks - 1) / c.node.ranks + 1));
  for (int rank = 0; rank < ranks; ++rank)
    if (const int stage = rank / stride % w.pp; stage == 0 || stage == w.end_rank())
      has_end[static_cast<size_t>(rank / c.node.ranks)] = true;
  return std::ranges::count(has_end, true);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

StartUp start_up(const Workload& w, const Cluster& c) {
  const int64_t ranks = w.ranks();
  StartUp start;
  start.calls = kStartCalls;
  const int gpus = c.node.workers == 0 ? c.node.ranks : 0;  // that each rank sees
  start.gathered_bytes = kBytesOnce + ranks * (kBytesARank + gpus * kBytesAGpu);
  start.data_readers = machines_of_ends(w, c);
  start.exchange_s = kStartCalls * tree_depth(static_cast<int>(ranks)) * c.network.host_message_us * 1e-6 +
                     static_cast<double>(start.gathered_bytes) / (rank_gb_per_s(c) * c.network.share * 1e9);
  add_groups(c, 1, static_cast<int>(ranks), 1, start);  // all
  add_groups(c, ranks / w.tp, w.tp, 1, start);
  add_groups(c, ranks / w.reducing(), w.reducing(), 1, start);
  if (w.model.experts > 0)  // copies of experts, all of a stage, and the ranks that divide the experts
    for (const int group : {w.reducing(ReducedOver::kExperts), w.reducing(ReducedOver::kStage), w.ep})
      add_groups(c, ranks / group, group, 1, start);
  // One communicator per one-way edge between stages: a rank has four ends, or two if the pipeline does not close.
  if (w.pp > 1) add_groups(c, 2 * ranks, 2, 4, start);
  if (w.end_rank() > 0 && w.model.tie_embeddings) add_groups(c, w.ranks_of_stage(), 2, 1, start);
  const double bytes = checkpoint_bytes(w);
  // Among ranks with equal weights.
  const double passed_on = bytes / (w.tp * w.pp) / (rank_gb_per_s(c) * c.network.share * 1e9);
  start.load_s = bytes / (c.network.storage_gb_per_s * 1e9) + (w.reducing() > 1 ? passed_on : 0);
  return start;
}

std::vector<ScalingRow> scaling_rows(const Workload& workload, const Cluster& cluster, Scaling scaling,
                                     int most_ranks) {
  std::vector<ScalingRow> rows;
  Workload w = workload;
  while (w.ranks() <= most_ranks && problem_of(w).empty() && w.num_microbatches() >= 1) {
    rows.push_back({w, predict_step(w, cluster), start_up(w, cluster)});
    if (w.ranks() > most_ranks / 2) break;
    w.dp *= 2;
    if (scaling == Scaling::kWeak) w.global_batch *= 2;
  }
  return rows;
}

std::string to_text(const std::vector<ScalingRow>& rows) {
  std::string text =
      fmt::format("{:>8}{:>8}{:>10}{:>12}{:>10}{:>8}\n", "ranks", "dp", "batch", "step s", "tokens/s", "MFU %");
  for (const ScalingRow& row : rows)
    text += fmt::format("{:>8}{:>8}{:>10}{:>12.3f}{:>10}{:>8.1f}\n", row.workload.ranks(), row.workload.dp,
                        row.workload.global_batch, row.step.seconds, format_count(row.step.tokens_per_second),
                        100 * row.step.mfu);
  return text;
}

std::string start_up_text(const std::vector<ScalingRow>& rows) {
  std::string text =
      "Start-up. calls: collective calls, in which a rank receives the bytes under \"per rank\"; groups:\n"
      "communication groups, and the messages and bytes that all ranks send to create them; readers: ranks that\n"
      "open token files; exchange, groups and load: seconds for the calls, for the groups, and to load a checkpoint.\n";
  text += fmt::format("{:>8}{:>7}{:>12}{:>10}{:>10}{:>12}{:>9}{:>12}{:>10}{:>8}\n", "ranks", "calls", "per rank",
                      "groups", "messages", "bytes", "readers", "exchange s", "groups s", "load s");
  for (const ScalingRow& row : rows) {
    const StartUp& s = row.start;
    text +=
        fmt::format("{:>8}{:>7}{:>12}{:>10}{:>10}{:>12}{:>9}{:>12.2f}{:>10.2f}{:>8.1f}\n", row.workload.ranks(),
                    s.calls, format_bytes(s.gathered_bytes), s.groups, format_count(static_cast<double>(s.messages)),
                    format_bytes(s.bytes), s.data_readers, s.exchange_s, s.groups_s, s.load_s);
  }
  return text;
}

std::string to_json(const std::vector<ScalingRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScalingRow& row : rows) {
    nlohmann::ordered_json parts;
    for (const auto& [name, seconds] : named_parts(row.step.parts)) parts[name] = seconds;
    list.push_back({{"ranks", row.workload.ranks()},
                    {"dp", row.workload.dp},
                    {"global_batch", row.workload.global_batch},
                    {"step_s", row.step.seconds},
                    {"tokens_per_s", row.step.tokens_per_second},
                    {"mfu", row.step.mfu},
                    {"parts_s", parts},
                    {"groups", row.start.groups},
                    {"messages", row.start.messages},
                    {"message_bytes", row.start.bytes},
                    {"calls", row.start.calls},
                    {"gathered_bytes", row.start.gathered_bytes},
                    {"data_readers", row.start.data_readers},
                    {"exchange_s", row.start.exchange_s},
                    {"groups_s", row.start.groups_s},
                    {"load_s", row.start.load_s}});
  }
  return list.dump() + "\n";
}

std::string to_svg(const std::vector<ScalingRow>& rows, const std::string& title) {
  // The tones of lib/report/page/page.css, in the order of named_parts().
  constexpr std::array<std::pair<const char*, const char*>, 11> kTones{{{"#0072b2", "#2b86c5"},
                                                                        {"#7a3b9a", "#a373c4"},
                                                                        {"#5b6168", "#767d85"},
                                                                        {"#c27c00", "#e69f00"},
                                                                        {"#a03000", "#b5552c"},
                                                                        {"#3a94c8", "#56b4e9"},
                                                                        {"#d55e00", "#d9702a"},
                                                                        {"#a39100", "#f0e442"},
                                                                        {"#009e73", "#12a97e"},
                                                                        {"#9fa8b2", "#c8ced6"},
                                                                        {"#868d95", "#9aa0a6"}}};
  std::string light, dark;
  for (size_t i = 0; i < kTones.size(); ++i) {
    light += fmt::format(" .part{} {{ fill: {}; }}", i, kTones[i].first);
    dark += fmt::format(" .part{} {{ fill: {}; }}", i, kTones[i].second);
  }
  constexpr int kBar = 56, kGap = 18, kLeft = 50, kTop = 50, kHeight = 260, kLegend = 190, kLetter = 9;
  const int bars = kLeft + static_cast<int>(rows.size()) * (kBar + kGap) + kLegend + 20, height = kTop + kHeight + 60;
  const int width = std::max(bars, kLeft + kLetter * static_cast<int>(title.size()));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "style=\"max-width:100%;height:auto\" role=\"img\">\n<title>{2}</title>\n"
      "<style>\n  svg {{ font: 12px system-ui, \"Segoe UI\", \"DejaVu Sans\", sans-serif; background: #ffffff; }}\n"
      "  text {{ fill: #1b1f24; }} .head {{ font-weight: 600; font-size: 14px; }}{4}\n"
      "  @media (prefers-color-scheme: dark) {{ svg {{ background: #15181c; }} text {{ fill: #e6e9ed; }}{5} }}\n"
      "</style>\n"
      "<text x=\"{3}\" y=\"20\" class=\"head\">{2}</text>\n",
      width, height, escaped(title), kLeft, light, dark);
  int left = kLeft;
  for (const ScalingRow& row : rows) {
    double bottom = kTop + kHeight;
    size_t part = 0;
    for (const auto& [name, seconds] : named_parts(row.step.parts)) {
      const double size = kHeight * std::max(0.0, seconds) / row.step.seconds;
      bottom -= size;
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\" class=\"part{}\"><title>{}: {:.3f} s</title>"
          "</rect>\n",
          left, bottom, kBar, size, part++, part_title(name), seconds);
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{:.1f} %</text>\n", left + kBar / 2, kTop - 6,
                       100 * row.step.mfu);
    svg += fmt::format(
        "<text x=\"{0}\" y=\"{1}\" text-anchor=\"middle\">{2}</text>\n"
        "<text x=\"{0}\" y=\"{3}\" text-anchor=\"middle\">{4:.2f} s</text>\n",
        left + kBar / 2, kTop + kHeight + 18, row.workload.ranks(), kTop + kHeight + 36, row.step.seconds);
    left += kBar + kGap;
  }
  if (!rows.empty()) {
    size_t part = 0;
    for (const auto& [name, seconds] : named_parts(rows.front().step.parts)) {
      const int y = kTop + 18 * static_cast<int>(part);
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" class=\"part{}\"/><text x=\"{}\" y=\"{}\">{}"
          "</text>\n",
          left, y, part, left + 18, y + 11, part_title(name));
      ++part;
    }
  }
  return svg + fmt::format("<text x=\"{}\" y=\"{}\">ranks and seconds per step; above: MFU</text>\n</svg>\n", kLeft,
                           height - 6);
}

}  // namespace tri
