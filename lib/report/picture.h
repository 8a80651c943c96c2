// Pictures for documents: SVG as text, small, drawn alike by every browser, light or dark as the reader has it. A
// picture depends on its arguments alone, so that one in a README can be held equal to what made it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"
#include "lib/observe/timeline_segment.h"
#include "lib/report/run_data.h"

namespace tri {

// An SVG that is being drawn. Lengths in pixels from the upper left corner; `kind` is a class of the picture's style
// (picture.cpp), or several with blanks between them.
class Picture {
 public:
  Picture(double width, double height, std::string title);

  void rect(double x, double y, double width, double height, std::string_view kind, const std::string& tip = "");
  // `anchor`: start, middle or end of the text is at x.
  void text(double x, double y, const std::string& text, std::string_view kind, std::string_view anchor = "start");
  void line(double x1, double y1, double x2, double y2, std::string_view kind);
  // With a head at its end.
  void arrow(double x1, double y1, double x2, double y2, std::string_view kind);
  // `d`: SVG's path data.
  void path(const std::string& d, std::string_view kind);

  std::string svg() const;

 private:
  double width_, height_;
  std::string title_, body_;
};

// The mesh: a box per pipeline stage with its layers, in it a row per dp rank and a column per tp rank, nodes in
// dashes. Only the first few and the last ranks of long axes are drawn. `config` must be resolved.
std::string mesh_picture(const Config& config);

// One step of a pipeline: what one rank of each stage does, of those in `segments` the first. `step`: one that they
// hold. The transfers of pp and dp run in thin lanes below. Error (kUsage): no action of that step is in the segments.
Result<std::string> step_picture(const std::vector<TimelineSegment>& segments, int step, const std::string& title);

// Training loss by step, with evaluations. Error (kUsage): fewer than two steps have one.
Result<std::string> loss_picture(const RunData& run);

}  // namespace tri
