// Finds the names of functions at addresses of a local process, from the symbol tables of its loaded files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tri {

class ElfFunctions;

// Caches the tables, since ranks run the same program. Reads files, so it may hang if storage does.
class Symbolizer {
 public:
  Symbolizer();
  ~Symbolizer();
  Symbolizer(const Symbolizer&) = delete;
  Symbolizer& operator=(const Symbolizer&) = delete;

  // Returns one text per frame, innermost first: "tri::Executor::run(tri::Plan const&)+0x1c8 (trireme)",
  // "libcuda.so.1+0x2f40" if the table has no name, and "0x7f..." if nothing is mapped there. All frames except for the
  // innermost are return addresses.
  std::vector<std::string> names(int process, const std::vector<uint64_t>& frames);

 private:
  struct Range {
    uint64_t begin = 0, end = 0, offset = 0;  // offset: of `begin` in the file
    std::string path;
  };
  const std::vector<Range>& ranges_of(int process);
  const ElfFunctions& functions_of(const std::string& path);

  std::map<int, std::vector<Range>> processes_;
  std::map<std::string, std::unique_ptr<ElfFunctions>> files_;
};

}  // namespace tri
