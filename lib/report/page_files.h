// The files of lib/report/page, which CMake embeds into the program.
#pragma once

#include <string_view>

namespace tri::page_files {

extern const std::string_view kFrame;             // page.html
extern const std::string_view kStyle;             // page.css
extern const std::string_view kScript;            // of a report of runs: concatenated .js files
extern const std::string_view kSimulationScript;  // of a simulation

}  // namespace tri::page_files
