// The files of lib/report/page, as CMake puts them into the program.
#pragma once

#include <string_view>

namespace tri::page_files {

extern const std::string_view kFrame;             // page.html
extern const std::string_view kStyle;             // page.css
extern const std::string_view kScript;            // of a report of runs: .js files, one after the other
extern const std::string_view kSimulationScript;  // of a simulation

}  // namespace tri::page_files
