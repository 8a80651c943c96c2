#include "io/tokens/input_files.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace tri {
namespace {

namespace fs = std::filesystem;

Result<void> add_file(const std::string& path, std::optional<TextFormat> format, TextInputs& found) {
  const Result<TextFormat> known = format ? Result<TextFormat>(*format) : format_of(path);
  if (!known) return known.error();
  const auto reader = TextReader::open(path);
  if (!reader) return reader.error();
  std::error_code problem;
  const auto modified = fs::last_write_time(path, problem);
  if (problem) return system_error(problem.value(), "{}", path);
  found.files.push_back({path, known.value(), reader.value().file_bytes(), modified.time_since_epoch().count()});
  return {};
}

// Returns the files below `folder` whose names are not hidden, sorted. A dangling link counts as a file: it is skipped
// by its name, or refused when it is opened.
Result<std::vector<std::string>> files_below(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code problem, no_folder;
  std::string at = folder;                                            // for messages
  std::vector<fs::path> around = {fs::canonical(folder, no_folder)};  // [depth]: the folder that contains the entry
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    at = entry->path().string();
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_directory(no_folder)) {
      entry.disable_recursion_pending();
      paths.push_back(at);
      continue;
    }
    around.resize(static_cast<size_t>(entry.depth()) + 1);
    around.push_back(fs::canonical(entry->path(), problem));
    if (problem) break;
    if (std::find(around.begin(), around.end() - 1, around.back()) != around.end() - 1)
      return usage_error("{}: links back to {}, which contains it; remove the link", at, around.back().string());
  }
  if (problem) return system_error(problem.value(), "{}", at);
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<void> add_folder(const std::string& folder, std::optional<TextFormat> format, TextInputs& found) {
  const auto paths = files_below(folder);
  if (!paths) return paths.error();
  const size_t before = found.files.size();
  for (const std::string& path : paths.value())
    if (!format && !format_of(path))
      ++found.passed_over;
    else if (auto added = add_file(path, format, found); !added)
      return added;
  if (found.files.size() == before)
    return usage_error("{}: no file in this folder has a known text extension; give the format with --format {}",
                       folder, enum_choices<TextFormat>());
  return {};
}

bool is_pattern(const std::string& input) { return input.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> matches_of(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t matches{};
  if (::glob(pattern.c_str(), 0, nullptr, &matches) == 0)
    paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  return paths;
}

}  // namespace

Result<TextInputs> find_inputs(const std::vector<std::string>& inputs, std::optional<TextFormat> format) {
  TextInputs found;
  for (const std::string& input : inputs) {
    if (input == "-" || input == "/dev/stdin")
      return usage_error(
          "{}: standard input is not supported, since an interrupted run could not read it again; write it to a file "
          "(... | zstd >text.jsonl.zst)",
          input);
    std::error_code ignored;  // an unreadable input is refused when it is opened
    std::vector<std::string> paths = {input};
    if (fs::status(input, ignored).type() == fs::file_type::not_found) {
      if (!is_pattern(input)) return system_error(ENOENT, "{}", input);
      paths = matches_of(input);
      if (paths.empty()) return usage_error("{}: no file matches this pattern", input);
    }
    for (const std::string& path : paths)
      if (auto added =
              fs::is_directory(path, ignored) ? add_folder(path, format, found) : add_file(path, format, found);
          !added)
        return added.error();
  }
  return found;
}

}  // namespace tri
