#include "lib/report/picture.h"

#include "io/base/format.h"
#include "lib/report/page_frame.h"

namespace tri {
namespace {

// The colours of lib/report/page/page.css. The picture has its own background, because documents may be dark where the
// reader's system is light.
constexpr std::string_view kStyle = R"(<style>
  svg { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  .ground { fill: #ffffff; } .ink { fill: #1b1f24; } .faint { fill: #5b6470; }
  .head { font-weight: 600; font-size: 14px; } .small { font-size: 10px; } .on { fill: #ffffff; font-size: 10px;
    paint-order: stroke; stroke: #1b1f24; stroke-width: 2px; stroke-opacity: 0.55; }
  .line, .grid, .node, .curve, .tp-line, .dp-line, .pp-line, .ep-line { fill: none; stroke: #c3cad2; }
  .grid { stroke: #e8ebef; } .node { stroke: #5b6470; stroke-dasharray: 4 3; }
  .curve { stroke: #0072b2; stroke-width: 1.5; }
  .cell { fill: #eef1f4; stroke: #c3cad2; }
  .tp { fill: #c27c00; } .dp { fill: #d55e00; } .pp { fill: #3a94c8; } .ep { fill: #a03000; }
  .tp-line { stroke: #c27c00; stroke-width: 1.5; } .dp-line { stroke: #d55e00; stroke-width: 1.5; }
  .pp-line { stroke: #3a94c8; stroke-width: 1.5; } .ep-line { stroke: #a03000; stroke-width: 1.5; }
  .lane { stroke-width: 5; }
  .forward { fill: #0072b2; } .backward { fill: #7a3b9a; } .weight { fill: #b07cc6; } .update { fill: #009e73; }
  .later { opacity: 0.72; }
  .wait { fill: #ffffff; opacity: 0.6; } rect.wait { fill: #bdc3ca; opacity: 1; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #15181c; } .ink { fill: #e6e9ed; } .faint { fill: #9aa5b1; }
    .line { stroke: #4a535e; } .grid { stroke: #2a3038; } .node { stroke: #9aa5b1; } .curve { stroke: #56b4e9; }
    .cell { fill: #232930; stroke: #4a535e; }
    .tp { fill: #e69f00; } .dp { fill: #d9702a; } .pp { fill: #56b4e9; } .ep { fill: #b5552c; }
    .tp-line { stroke: #e69f00; } .dp-line { stroke: #d9702a; } .pp-line { stroke: #56b4e9; }
    .ep-line { stroke: #b5552c; }
    .forward { fill: #2b86c5; } .backward { fill: #a373c4; } .weight { fill: #6e4390; } .update { fill: #12a97e; }
  }
</style>
)";

}  // namespace

Picture::Picture(double width, double height, std::string title)
    : width_(width), height_(height), title_(markup_text(title)) {}

void Picture::rect(double x, double y, double width, double height, std::string_view kind, const std::string& tip) {
  body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\"", x, y, width,
                       height, kind);
  body_ += tip.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", markup_text(tip));
}

void Picture::text(double x, double y, const std::string& text, std::string_view kind, std::string_view anchor) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, kind,
                       anchor, markup_text(text));
}

void Picture::line(double x1, double y1, double x2, double y2, std::string_view kind) {
  body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2, y2,
                       kind);
}

void Picture::arrow(double x1, double y1, double x2, double y2, std::string_view kind) {
  line(x1, y1, x2, y2, kind);
  // Draws two strokes back from the point, for lines along either axis.
  const double dx = x2 > x1 ? -5 : x2 < x1 ? 5 : 0, dy = y2 > y1 ? -5 : y2 < y1 ? 5 : 0;
  const double across_x = dx == 0 ? 4 : 0, across_y = dy == 0 ? 4 : 0;
  line(x2, y2, x2 + dx + across_x, y2 + dy + across_y, kind);
  line(x2, y2, x2 + dx - across_x, y2 + dy - across_y, kind);
}

void Picture::path(const std::string& d, std::string_view kind) {
  body_ += fmt::format("<path d=\"{}\" class=\"{}\"/>\n", d, kind);
}

std::string Picture::svg() const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "style=\"max-width:100%;height:auto\" role=\"img\">\n<title>{2}</title>\n{3}"
      "<rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n{4}</svg>\n",
      width_, height_, title_, kStyle, body_);
}

}  // namespace tri
