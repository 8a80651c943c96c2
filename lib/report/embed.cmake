# Writes OUTPUT, a C++ file that holds the files of lib/report/page as text. Run by `cmake -P` with SOURCE (the folder)
# and OUTPUT.
set(end TRIREME_PAGE)  # of the literals; no file may have )TRIREME_PAGE" in it
set(text "// Made by lib/report/embed.cmake.\n#include \"lib/report/page_files.h\"\n\nnamespace tri::page_files {\n")
set(charts dom.js+chart.js+stack.js)
foreach(pair kFrame:page.html kStyle:page.css
        kScript:${charts}+grid.js+cells.js+heat.js+mesh.js+matrix.js+experts.js+runs.js+first.js+curves.js+page.js
        kSimulationScript:${charts}+bars.js+simulation.js)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 files)
  string(REPLACE "+" ";" files ${files})
  string(APPEND text "const std::string_view ${name} =")
  foreach(file ${files})
    file(READ ${SOURCE}/${file} content)
    string(APPEND text "\n    R\"${end}(${content})${end}\"")
  endforeach()
  string(APPEND text ";\n")
endforeach()
string(APPEND text "}  // namespace tri::page_files\n")
file(WRITE ${OUTPUT} "${text}")
