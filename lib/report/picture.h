// Pictures for documents: small SVG texts, drawn equally by every browser, on a light or dark page. A picture depends
// only on its arguments, so one in a README can be compared with its source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"
#include "lib/observe/timeline/timeline_segment.h"
#include "lib/report/run_data.h"

namespace tri {

// An SVG under construction. Lengths are in pixels from the upper left corner; `kind` is a class of the picture's style
// (picture.cpp), or several separated by blanks.
class Picture {
 public:
  Picture(double width, double height, std::string title);

  void rect(double x, double y, double width, double height, std::string_view kind, const std::string& tip = "");
  // `anchor`: whether x is the start, middle or end of the text.
  void text(double x, double y, const std::string& text, std::string_view kind, std::string_view anchor = "start");
  void line(double x1, double y1, double x2, double y2, std::string_view kind);
  // A line with a head at its end.
  void arrow(double x1, double y1, double x2, double y2, std::string_view kind);
  // `d`: SVG's path data.
  void path(const std::string& d, std::string_view kind);

  std::string svg() const;

 private:
  double width_, height_;
  std::string title_, body_;
};

// Draws the mesh: a box per pipeline stage with its layers, containing a row per dp rank and a column per tp rank, and
// nodes as dashed frames. Draws only the first few and the last ranks of long axes. `config` must be resolved.
std::string mesh_picture(const Config& config);

// Draws one step of a pipeline: the activity of the first rank of each stage in `segments`. `step`: a step that they
// contain. Transfers of pp and dp are in thin lanes below. Fails with kUsage if the segments contain no action of that
// step.
Result<std::string> step_picture(const std::vector<TimelineSegment>& segments, int step, const std::string& title);

// Draws training loss by step, with evaluations. Fails with kUsage if fewer than two steps have a loss.
Result<std::string> loss_picture(const RunData& run);

}  // namespace tri
