#include <algorithm>

#include "io/base/format.h"
#include "lib/config/axis_fields.h"
#include "lib/model/layer_division.h"
#include "lib/parallel/mesh.h"
#include "lib/report/picture.h"

namespace tri {
namespace {

constexpr double kCellWidth = 38, kCellHeight = 26, kBetweenStages = 74, kLegendLine = 19;
constexpr double kMeshLeft = 78, kMeshTop = 98;             // of the first stage's cells
constexpr double kLegendWidth = 910, kHeadCharacter = 9.2;  // of the longest line; of the title, at most

// Returns the positions on an axis to draw: all of them, or the first ones, -1 for the gap, and the last one.
std::vector<int> shown_of(int size, int most) {
  std::vector<int> shown;
  for (int i = 0; i < std::min(size, size > most ? most - 2 : most); ++i) shown.push_back(i);
  if (size > most) shown.insert(shown.end(), {-1, size - 1});
  return shown;
}

// Returns the layers of a stage's chunks: "layers 0-4, 20-24".
std::string layers_of_chunks(const Config& c, int stage) {
  const int chunks = c.parallel.chunks;
  int all = 0;
  std::string text;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const LayerRange range = layers_of(c, {stage, c.parallel.pp}, chunk);
    all += range.count;
    text += chunk > 0 ? ", " : "";
    text += range.count == 1 ? fmt::format("{}", range.first)
                             : fmt::format("{}-{}", range.first, range.first + range.count - 1);
  }
  if (chunks > 2) return fmt::format("{} layers in {} chunks", all, chunks);
  return (all == chunks ? "layer " : "layers ") + text;
}

// A stage has one column per tp rank; its rows are the ranks along all other axes.
constexpr AxisSet kRows = AxisSet::outside({"tp", "pp"});

class MeshPicture {
 public:
  explicit MeshPicture(const Config& config)
      : c_(config),
        mesh_(mesh_of(config, 0)),
        tp_(shown_of(mesh_.axis("tp").size, 8)),
        rows_(shown_of(static_cast<int>(mesh_.group(kRows).size()), 8)),
        pp_(shown_of(mesh_.axis("pp").size, std::max(4, 24 / static_cast<int>(tp_.size())))),
        stage_width_(std::max(kCellWidth * static_cast<double>(tp_.size()), 110.0)),
        stage_height_(kCellHeight * static_cast<double>(rows_.size())),
        picture_(std::max(kMeshLeft + static_cast<double>(pp_.size()) * (stage_width_ + kBetweenStages) -
                              kBetweenStages + std::max(24.0, node_name_width() + 1),
                          16 + std::max(kHeadCharacter * static_cast<double>(title().size()), kLegendWidth)),
                 kMeshTop + stage_height_ + 112 + (mesh_.axis("cp").size > 1 ? kLegendLine : 0), title()) {}

  std::string draw() {
    picture_.text(16, 26, title(), "ink head");
    for (size_t column = 0; column < pp_.size(); ++column) draw_stage(column);
    draw_axes();
    return picture_.svg();
  }

 private:
  std::string title() const {
    const int ranks = mesh_.world_size(), nodes = (ranks + c_.cluster.ranks_per_node - 1) / c_.cluster.ranks_per_node;
    return fmt::format("{}: {} = {} rank{} on {} node{}", c_.run.name, mesh_.grid.sizes(), ranks, ranks == 1 ? "" : "s",
                       nodes, nodes == 1 ? "" : "s");
  }
  // From a stage's cells to the end of the longest name of a node.
  double node_name_width() const {
    return 10 + 6.5 * static_cast<double>(fmt::format("n{}", mesh_.world_size() / c_.cluster.ranks_per_node).size());
  }
  int rank_at(int stage, int row, int tp) const {
    return Mesh{mesh_.grid, mesh_.group(kRows)[static_cast<size_t>(row)]}.moved("pp", stage).moved("tp", tp).world_rank;
  }
  // Returns "dp 1": the position on the axes of the rows, slowest first.
  std::string row_name(int row) const {
    std::string name;
    for (size_t i = mesh_.grid.axes.size(); i-- > 0;)
      if (const std::string& axis = mesh_.grid.axes[i].name; axis != "tp" && axis != "pp")
        name += fmt::format("{}{} {}", name.empty() ? "" : " ", axis, mesh_.grid.rank_on(axis, rank_at(0, row, 0)));
    return name;
  }
  double stage_x(size_t column) const {
    return kMeshLeft + static_cast<double>(column) * (stage_width_ + kBetweenStages);
  }

  void draw_stage(size_t column) {
    const double x = stage_x(column), middle = x + stage_width_ / 2;
    const int stage = pp_[column];
    if (stage < 0) return picture_.text(middle, kMeshTop + stage_height_ / 2, "...", "faint", "middle");
    picture_.text(middle, kMeshTop - 40, fmt::format("stage {}", stage), "pp head", "middle");
    picture_.text(middle, kMeshTop - 24, layers_of_chunks(c_, stage), "faint small", "middle");
    const double left = middle - kCellWidth * static_cast<double>(tp_.size()) / 2;
    for (size_t row = 0; row < rows_.size(); ++row)
      for (size_t cell = 0; cell < tp_.size(); ++cell)
        draw_rank(left + kCellWidth * static_cast<double>(cell), kMeshTop + kCellHeight * static_cast<double>(row),
                  stage, rows_[row], tp_[cell]);
    draw_nodes(left, stage);
  }

  void draw_rank(double x, double y, int stage, int row, int tp) {
    const double text_y = y + kCellHeight / 2 + 4;
    if (row < 0 || tp < 0) return picture_.text(x + kCellWidth / 2, text_y, "...", "faint", "middle");
    const int rank = rank_at(stage, row, tp);
    picture_.rect(
        x + 3, y + 3, kCellWidth - 6, kCellHeight - 6, "cell",
        fmt::format("rank {}: {}, node {}", rank, Mesh{mesh_.grid, rank}.place(), rank / c_.cluster.ranks_per_node));
    picture_.text(x + kCellWidth / 2, text_y, fmt::format("{}", rank), "ink small", "middle");
  }

  // Draws a frame around each node's rows of this stage, if nodes consist of whole rows.
  void draw_nodes(double left, int stage) {
    const int per_node = c_.cluster.ranks_per_node;
    if (per_node % mesh_.axis("tp").size != 0) return;
    const auto node_of = [&](size_t row) { return rows_[row] < 0 ? -1 : rank_at(stage, rows_[row], 0) / per_node; };
    for (size_t first = 0, last = 0; first < rows_.size(); first = last) {
      while (last < rows_.size() && node_of(last) == node_of(first)) ++last;
      if (node_of(first) < 0) continue;
      const double y = kMeshTop + kCellHeight * static_cast<double>(first);
      picture_.rect(left, y + 0.5, kCellWidth * static_cast<double>(tp_.size()),
                    kCellHeight * static_cast<double>(last - first) - 1, "node",
                    fmt::format("node {}", node_of(first)));
      picture_.text(left + kCellWidth * static_cast<double>(tp_.size()) + 4, y + 15, fmt::format("n{}", node_of(first)),
                    "faint small");
    }
  }

  // Draws the transfers along each axis.
  void draw_axes() {
    const double bottom = kMeshTop + stage_height_;
    const double width = kCellWidth * static_cast<double>(tp_.size());
    const double left = stage_x(0) + (stage_width_ - width) / 2;
    for (size_t row = 0; row < rows_.size(); ++row)
      if (rows_[row] >= 0)
        picture_.text(left - 18, kMeshTop + kCellHeight * static_cast<double>(row) + kCellHeight / 2 + 4,
                      row_name(rows_[row]), "dp small", "end");
    for (size_t cell = 0; cell < tp_.size(); ++cell)
      if (tp_[cell] >= 0)
        picture_.text(left + kCellWidth * (static_cast<double>(cell) + 0.5), kMeshTop - 6,
                      fmt::format("tp {}", tp_[cell]), "tp small", "middle");
    if (mesh_.axis("tp").size > 1) {
      picture_.arrow(left + 6, bottom + 12, left + width - 4, bottom + 12, "tp-line");
      picture_.arrow(left + width - 6, bottom + 12, left + 4, bottom + 12, "tp-line");
    }
    if (mesh_.axis("dp").size > 1) {
      picture_.arrow(left - 10, kMeshTop + 6, left - 10, bottom - 4, "dp-line");
      picture_.arrow(left - 10, bottom - 6, left - 10, kMeshTop + 4, "dp-line");
    }
    const double y = kMeshTop + stage_height_ / 2;
    for (size_t column = 1; column < pp_.size(); ++column) {
      const double from = stage_x(column - 1) + (stage_width_ + width) / 2 + node_name_width();
      const double to = stage_x(column) + (stage_width_ - width) / 2 - 8;
      picture_.arrow(from, y - 4, to, y - 4, "pp-line");
      picture_.arrow(to, y + 6, from, y + 6, "pp-line");
    }
    double line = bottom + 40;
    const auto say = [&](std::string_view axis, const std::string& text) {
      picture_.rect(16, line - 9, 10, 10, axis);
      picture_.text(32, line, text, "ink");
      line += kLegendLine;
    };
    say("tp", "tp: the ranks of a row split each layer; activations are gathered and summed in every layer");
    const char* shares[] = {"nothing is sharded", "optimizer states are sharded",
                            "gradients and optimizer states are sharded"};
    say("dp",
        fmt::format(
            "dp: the ranks of a column process different samples; gradients are summed once per step (zero {}: {})",
            c_.parallel.zero, shares[c_.parallel.zero]));
    if (mesh_.axis("cp").size > 1)
      say("dp", "cp: the ranks of a column split each sequence; attention gathers keys and values in every layer");
    say("pp", "pp: activations are sent to the next stage, their gradients return; dashes enclose the ranks of a node");
  }

  const Config& c_;
  const Mesh mesh_;
  const std::vector<int> tp_, rows_, pp_;  // rows_: indices into the ranks along kRows
  const double stage_width_, stage_height_;
  Picture picture_;
};

}  // namespace

std::string mesh_picture(const Config& config) { return MeshPicture(config).draw(); }

}  // namespace tri
