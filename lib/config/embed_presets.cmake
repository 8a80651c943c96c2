# Writes OUTPUT, a C++ file that holds the run configs of SOURCE (configs/) as text. Run by `cmake -P`.
set(end TRIREME_CONFIG)  # of the literals; no file may have )TRIREME_CONFIG" in it
set(text "// Made by lib/config/embed_presets.cmake.\n#include <array>\n\n#include \"lib/config/presets.h\"\n\n")
string(APPEND text "namespace tri {\n")
file(GLOB files ${SOURCE}/*.yaml)
list(SORT files)
list(LENGTH files count)
string(APPEND text "std::span<const Preset> presets() {\n  static constexpr std::array<Preset, ${count}> all{{\n")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} content)
  string(APPEND text "      {\"${name}\", R\"${end}(${content})${end}\"},\n")
endforeach()
file(READ ${SOURCE}/clusters/h100.yaml content)
string(APPEND text "  }};\n  return all;\n}\n"
                   "std::string_view preset_cluster_h100() { return R\"${end}(${content})${end}\"; }\n"
                   "}  // namespace tri\n")
file(WRITE ${OUTPUT} "${text}")
