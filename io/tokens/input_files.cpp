#include "io/tokens/input_files.h"

#include <glob.h>

#include <algorithm>
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

Result<void> add_folder(const std::string& folder, std::optional<TextFormat> format, TextInputs& found) {
  std::vector<std::string> paths;
  std::error_code problem;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    const bool is_folder = entry->is_directory(problem);
    if (problem) break;
    if (entry->path().filename().string().starts_with('.')) {
      if (is_folder) entry.disable_recursion_pending();
    } else if (!is_folder) {
      paths.push_back(entry->path().string());
    }
  }
  if (problem) return system_error(problem.value(), "{}", folder);
  std::sort(paths.begin(), paths.end());
  const size_t before = found.files.size();
  for (const std::string& path : paths)
    if (!format && !format_of(path))
      ++found.passed_over;
    else if (auto added = add_file(path, format, found); !added)
      return added;
  if (found.files.size() == before)
    return usage_error("{}: a folder without text files by their names; say what they hold with --format {}", folder,
                       enum_choices<TextFormat>());
  return {};
}

// Empty: no pattern, or one that nothing matches.
std::vector<std::string> matches_of(const std::string& pattern) {
  std::vector<std::string> paths;
  if (pattern.find_first_of("*?[") == std::string::npos) return paths;
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
    std::error_code ignored;  // what can't be looked at is refused where it is opened
    std::vector<std::string> paths = {input};
    if (!fs::exists(input, ignored))
      if (auto matches = matches_of(input); !matches.empty()) paths = std::move(matches);
    for (const std::string& path : paths)
      if (auto added =
              fs::is_directory(path, ignored) ? add_folder(path, format, found) : add_file(path, format, found);
          !added)
        return added.error();
  }
  return found;
}

}  // namespace tri
