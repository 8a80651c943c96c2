// The report of one or several runs as one HTML page, which loads nothing from anywhere: style, program and data are in
// it. Curves are reduced to some thousand points each, so that a run of any length and size opens at once.
#pragma once

#include <string>
#include <vector>

#include "lib/report/run_data.h"

namespace tri {

inline constexpr size_t kMostRuns = 8;  // of one report: what colours and dashes tell apart

struct PageHead {
  double made = 0;      // seconds since 1970
  std::string version;  // of this executable
};

// Well-formed as XML except for the bodies of <script> and <style>. `summary`: what readers without JavaScript see.
std::string report_page(const std::vector<RunData>& runs, const PageHead& head, const std::string& summary);

// What the page draws, as JSON: page_data.cpp has its fields. No "<", ">" or "&" is in it, whatever the runs say.
std::string page_data(const std::vector<RunData>& runs, const PageHead& head);

}  // namespace tri
