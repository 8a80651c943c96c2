#include "lib/report/page.h"

#include "lib/report/page_files.h"
#include "lib/report/page_frame.h"

namespace tri {

std::string report_page(const std::vector<RunData>& runs, const PageHead& head, const std::string& summary) {
  std::string names;
  for (const RunData& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  return fill_page_frame(
      {.title = "Trireme: " + names, .summary = summary, .data = page_data(runs, head), .script = page_files::kScript});
}

}  // namespace tri
