#include "lib/fault/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "io/base/file.h"
#include "io/base/proc.h"
#include "io/base/text_file.h"

namespace tri {

// The functions of one ELF file of this machine's architecture, by address. An invalid file has no functions.
class ElfFunctions {
 public:
  explicit ElfFunctions(const std::string& path) {
    const auto file = InputFile::open(path);
    if (file) read(file.value());
  }

  // Returns "name+0x12" with the demangled C++ name.
  std::optional<std::string> name_at(uint64_t file_offset) const {
    const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& s) {
      return file_offset >= s.offset && file_offset - s.offset < s.bytes;
    });
    if (segment == segments_.end()) return std::nullopt;
    const uint64_t address = file_offset - segment->offset + segment->address;
    auto next = std::upper_bound(functions_.begin(), functions_.end(), address,
                                 [](uint64_t value, const Function& f) { return value < f.address; });
    if (next == functions_.begin()) return std::nullopt;
    const Function& function = *--next;
    if (address - function.address >= std::max<uint64_t>(function.bytes, 1)) return std::nullopt;
    return fmt::format("{}+{:#x}", demangled(function.name), address - function.address);
  }

 private:
  struct Segment {
    uint64_t offset, bytes, address;
  };
  struct Function {
    uint64_t address, bytes;
    const char* name;
  };

  static std::string demangled(const char* name) {
    constexpr size_t kLongest = 300;  // names of templates may fill pages
    int status = 0;
    char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string result = status == 0 ? text : name;
    std::free(text);
    if (result.size() > kLongest) result = result.substr(0, kLongest) + "...";
    return result;
  }

  // Returns a copy of the file's structures: if storage failed, a mapped file would end the process. Returns none if
  // they are outside the file's bounds or can't be read.
  template <class T>
  static std::vector<T> table(const InputFile& file, uint64_t offset, uint64_t count) {
    const auto bytes = static_cast<uint64_t>(file.bytes());
    if (offset > bytes || count > (bytes - offset) / sizeof(T)) return {};
    std::vector<T> read(count);
    const auto done = file.read(read.data(), static_cast<int64_t>(count * sizeof(T)), static_cast<int64_t>(offset));
    return done ? std::move(read) : std::vector<T>();
  }

  void read(const InputFile& file) {
    const auto header = table<Elf64_Ehdr>(file, 0, 1);
    if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 ||
        header[0].e_ident[EI_CLASS] != ELFCLASS64)
      return;
    for (const Elf64_Phdr& segment : table<Elf64_Phdr>(file, header[0].e_phoff, header[0].e_phnum))
      if (segment.p_type == PT_LOAD) segments_.push_back({segment.p_offset, segment.p_filesz, segment.p_vaddr});
    const auto sections = table<Elf64_Shdr>(file, header[0].e_shoff, header[0].e_shnum);
    for (const Elf64_Shdr& section : sections)
      if ((section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM) && section.sh_link < sections.size())
        add(file, section, sections[section.sh_link]);
    std::stable_sort(functions_.begin(), functions_.end(),
                     [](const Function& a, const Function& b) { return a.address < b.address; });
  }

  void add(const InputFile& file, const Elf64_Shdr& symbols, const Elf64_Shdr& strings) {
    auto text = table<char>(file, strings.sh_offset, strings.sh_size);
    if (text.empty() || text.back() != '\0') return;
    for (const Elf64_Sym& symbol : table<Elf64_Sym>(file, symbols.sh_offset, symbols.sh_size / sizeof(Elf64_Sym))) {
      const auto type = ELF64_ST_TYPE(symbol.st_info);
      const bool is_function = type == STT_FUNC || type == STT_GNU_IFUNC;
      if (is_function && symbol.st_shndx != SHN_UNDEF && symbol.st_name < text.size())
        functions_.push_back({symbol.st_value, symbol.st_size, text.data() + symbol.st_name});
    }
    names_.push_back(std::move(text));  // moving the vector leaves its characters in place
  }

  std::vector<std::vector<char>> names_;
  std::vector<Segment> segments_;
  std::vector<Function> functions_;  // by address
};

Symbolizer::Symbolizer() = default;
Symbolizer::~Symbolizer() = default;

// Parses lines of /proc/PID/maps: "7f00-7f10 r-xp 00028000 103:02 1234  /usr/lib/libc.so.6".
const std::vector<Symbolizer::Range>& Symbolizer::ranges_of(int process) {
  const auto [at, is_new] = processes_.try_emplace(process);
  if (!is_new) return at->second;
  std::istringstream maps(text_of(process_folder(process) + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0, offset = 0;
    char rights[5] = {};
    int path = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %llx %*s %*s %n", &begin, &end, rights, &offset, &path) < 4) continue;
    if (rights[2] == 'x' && path > 0)
      at->second.push_back({begin, end, offset, line.substr(static_cast<size_t>(path))});
  }
  return at->second;
}

const ElfFunctions& Symbolizer::functions_of(const std::string& path) {
  auto& functions = files_[path];
  if (functions == nullptr) functions = std::make_unique<ElfFunctions>(path);
  return *functions;
}

std::vector<std::string> Symbolizer::names(int process, const std::vector<uint64_t>& frames) {
  const std::vector<Range>& ranges = ranges_of(process);
  std::vector<std::string> names;
  for (size_t i = 0; i < frames.size(); ++i) {
    // The return address of a call that does not return may belong to the next function.
    const uint64_t address = i == 0 ? frames[i] : frames[i] - 1;
    const auto range = std::find_if(ranges.begin(), ranges.end(),
                                    [&](const Range& r) { return address >= r.begin && address < r.end; });
    if (range == ranges.end() || range->path.empty()) {
      names.push_back(fmt::format("{:#x}", frames[i]));
      continue;
    }
    const uint64_t offset = address - range->begin + range->offset;
    const std::string module = range->path.substr(range->path.rfind('/') + 1);
    // Opens regular files only: a path under /dev that a device has mapped must not be opened.
    const auto name = range->path.front() == '/' && range->path.rfind("/dev/", 0) != 0
                          ? functions_of(range->path).name_at(offset)
                          : std::nullopt;
    names.push_back(name ? fmt::format("{} ({})", *name, module) : fmt::format("{}+{:#x}", module, offset));
  }
  return names;
}

}  // namespace tri
