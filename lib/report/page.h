// The report of one or several runs as one self-contained HTML page: style, program and data are embedded. Curves are
// reduced to some thousand points each, so a run of any length and size opens at once.
#pragma once

#include <string>
#include <vector>

#include "lib/report/run_data.h"

namespace tri {

inline constexpr size_t kMostRuns = 8;  // per report: the number that colours and dashes can distinguish

struct PageHead {
  double made = 0;      // seconds since 1970
  std::string version;  // of this executable
};

// Returns well-formed XML except for the bodies of <script> and <style>. `summary`: for readers without JavaScript.
std::string report_page(const std::vector<RunData>& runs, const PageHead& head, const std::string& summary);

// Returns the page's data as JSON; page_data.cpp defines its fields. Contains no "<", ">" or "&", whatever the runs
// contain.
std::string page_data(const std::vector<RunData>& runs, const PageHead& head);

}  // namespace tri
