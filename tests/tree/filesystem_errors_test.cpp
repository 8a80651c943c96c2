// Functions of std::filesystem that could throw are called with a std::error_code: if storage fails, the caller reports
// the file and selects the exit status. An exception would end the process as an internal error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Call {
  std::string name, text;
  std::vector<std::string> arguments;
};

// The functions that accept a std::error_code, and the number of their other arguments.
const std::map<std::string, size_t, std::less<>> kFunctions = {
    {"exists", 1},
    {"is_directory", 1},
    {"is_regular_file", 1},
    {"is_symlink", 1},
    {"is_fifo", 1},
    {"is_empty", 1},
    {"file_size", 1},
    {"remove", 1},
    {"remove_all", 1},
    {"create_directory", 1},
    {"create_directories", 1},
    {"canonical", 1},
    {"weakly_canonical", 1},
    {"absolute", 1},
    {"relative", 1},
    {"proximate", 1},
    {"space", 1},
    {"last_write_time", 1},
    {"status", 1},
    {"symlink_status", 1},
    {"read_symlink", 1},
    {"directory_iterator", 1},
    {"recursive_directory_iterator", 1},
    {"rename", 2},
    {"copy", 2},
    {"copy_file", 2},
    {"equivalent", 2},
    {"resize_file", 2},
    {"permissions", 2},
    {"create_symlink", 2},
    {"create_directory_symlink", 2},
    {"create_hard_link", 2},
    {"current_path", 0},
    {"temp_directory_path", 0},
};

// Returns the calls of these functions in `code`, as fs::NAME or std::filesystem::NAME.
std::vector<Call> calls_in(const std::string& code) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::vector<Call> calls;
  for (size_t at = code.find("::"); at != std::string::npos; at = code.find("::", at + 2)) {
    if (!std::string_view(code).substr(0, at).ends_with("fs") &&
        !std::string_view(code).substr(0, at).ends_with("filesystem"))
      continue;
    size_t i = at + 2;
    while (i < code.size() && is_letter(code[i])) ++i;
    Call call{.name = code.substr(at + 2, i - at - 2), .text = "", .arguments = {""}};
    if (i == code.size() || code[i] != '(' || !kFunctions.contains(call.name)) continue;
    int depth = 1;
    for (++i; i < code.size() && depth > 0; ++i) {
      const char c = code[i];
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') --depth;
      if (depth == 1 && c == ',')
        call.arguments.emplace_back();
      else if (depth > 0 && std::isspace(static_cast<unsigned char>(c)) == 0)
        call.arguments.back() += c;
    }
    call.text = code.substr(at + 2, i - at - 2);
    calls.push_back(std::move(call));
  }
  return calls;
}

// Returns whether the call may throw: it has only the required arguments, or its last one is not a variable.
bool may_throw(const Call& call) {
  if (call.name.ends_with("directory_iterator") && call.arguments.front().empty()) return false;  // the end iterator
  const std::string& last = call.arguments.back();
  const bool is_variable = !last.empty() && std::all_of(last.begin(), last.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
  return call.arguments.size() <= kFunctions.at(call.name) || !is_variable;
}

// Also finds range-for loops over a directory_iterator, which throw if a later entry cannot be read.
std::vector<std::string> throwing_calls(const std::string& code) {
  std::vector<std::string> texts;
  for (const Call& call : calls_in(code))
    if (may_throw(call)) texts.push_back(call.text);
  for (const char* begin : {" : fs::", " : std::filesystem::"})
    for (size_t at = code.find(begin); at != std::string::npos; at = code.find(begin, at + 1)) {
      const std::string text = code.substr(at, code.find('\n', at) - at);
      if (text.find("directory_iterator(") != std::string::npos) texts.push_back(text);
    }
  return texts;
}

TEST(FilesystemErrors, are_returned_and_never_thrown) {
  std::vector<std::string> problems;
  int num_calls = 0;
  for (const char* folder : {"io", "kernels", "lib", "app"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRI_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream in(entry.path());
      const std::string code(std::istreambuf_iterator<char>(in), {});
      num_calls += static_cast<int>(calls_in(code).size());
      for (const std::string& text : throwing_calls(code))
        problems.push_back(fs::relative(entry.path(), TRI_SOURCE_DIR).string() + ": " + text);
    }
  EXPECT_EQ(problems, std::vector<std::string>{});
  EXPECT_GT(num_calls, 50) << "the sources were not found";
}

TEST(FilesystemErrors, calls_without_an_error_code_are_found) {
  for (const char* code : {"std::filesystem::is_directory(path.parent_path())", "fs::exists(a + \"/\" + f(b, c))",
                           "fs::rename(from, to)", "fs::temp_directory_path()", "fs::directory_iterator(folder)",
                           "for (const auto& entry : fs::directory_iterator(folder, problem))"})
    EXPECT_EQ(throwing_calls(code).size(), 1u) << code;
  for (const char* code : {"fs::is_directory(path.parent_path(), ignored)", "fs::exists(f(a, b), problem)",
                           "fs::rename(from, to, problem)", "fs::directory_iterator()", "is_directory(path)"})
    EXPECT_EQ(throwing_calls(code).size(), 0u) << code;
}

}  // namespace
