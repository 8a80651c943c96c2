// Which folders may include which: app -> lib -> kernels -> io, no cycles between lib's folders, MPI and NCCL only in
// lib/comm but not in lib/comm/peer, and no backend's headers above kernels.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Includes = std::map<std::string, std::vector<std::string>>;  // file -> its includes, "..." and <...>
using Problems = std::vector<std::string>;

std::string top_of(const std::string& path) { return path.substr(0, path.find('/')); }

// Returns "config" for "lib/config/config.h", "comm/peer" for "lib/comm/peer/copies.h": a nested folder counts
// separately.
std::string lib_folder_of(const std::string& path) {
  const size_t begin = path.find('/') + 1;
  return path.substr(begin, path.rfind('/') - begin);
}

Problems wrong_layers(const Includes& includes) {
  const std::map<std::string, std::set<std::string>> allowed = {{"io", {"io"}},
                                                                {"kernels", {"io", "kernels"}},
                                                                {"lib", {"io", "kernels", "lib"}},
                                                                {"app", {"io", "kernels", "lib", "app"}}};
  const std::set<std::string> layers = {"io", "kernels", "lib", "app", "tests"};
  Problems problems;
  for (const auto& [file, list] : includes)
    for (const std::string& included : list)
      if (layers.count(top_of(included)) && !allowed.at(top_of(file)).count(top_of(included)))
        problems.push_back(file + " includes " + included);
  return problems;
}

Problems stray_headers(const Includes& includes) {
  Problems problems;
  for (const auto& [file, list] : includes)
    for (const std::string& included : list) {
      const bool communication = included == "mpi.h" || included == "nccl.h";
      const bool in_comm = file.rfind("lib/comm/", 0) == 0 && file.rfind("lib/comm/peer/", 0) != 0;
      if (communication && !in_comm) problems.push_back(file + " includes " + included);
      const bool cuda = included.find("cuda_runtime") != std::string::npos || included.rfind("kernels/cuda/", 0) == 0;
      const bool may = file.rfind("kernels/cuda/", 0) == 0 || file.rfind("lib/comm/groups/nccl", 0) == 0;
      if (cuda && !may) problems.push_back(file + " includes " + included);
      // MPI's collectives are tasks of a CPU stream.
      const bool cpu = included.rfind("kernels/cpu/", 0) == 0 && top_of(file) != "kernels";
      if (cpu && file != "lib/comm/groups/mpi_group.cpp") problems.push_back(file + " includes " + included);
    }
  return problems;
}

// Returns a cycle of lib's folders, "a -> b -> a"; empty if there is none.
std::string circle(const Includes& includes) {
  std::map<std::string, std::set<std::string>> edges;
  for (const auto& [file, list] : includes)
    for (const std::string& included : list)
      if (top_of(file) == "lib" && top_of(included) == "lib" && lib_folder_of(file) != lib_folder_of(included))
        edges[lib_folder_of(file)].insert(lib_folder_of(included));
  std::vector<std::string> path;
  std::set<std::string> done;
  std::string found;
  const std::function<void(const std::string&)> visit = [&](const std::string& folder) {
    if (!found.empty() || done.count(folder)) return;
    if (const auto at = std::find(path.begin(), path.end(), folder); at != path.end()) {
      for (auto it = at; it != path.end(); ++it) found += *it + " -> ";
      found += folder;
      return;
    }
    path.push_back(folder);
    for (const std::string& next : edges[folder]) visit(next);
    path.pop_back();
    done.insert(folder);
  };
  for (const auto& [folder, targets] : std::map(edges)) visit(folder);
  return found;
}

Includes read_includes() {
  const fs::path root = TRI_SOURCE_DIR;
  const std::regex pattern(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  Includes includes;
  for (const char* layer : {"io", "kernels", "lib", "app"})
    for (const auto& entry : fs::recursive_directory_iterator(root / layer)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      auto& list = includes[fs::relative(entry.path(), root).string()];
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        std::smatch match;
        if (std::regex_search(line, match, pattern)) list.push_back(match[1]);
      }
    }
  return includes;
}

const Includes& project_includes() {
  static const Includes includes = read_includes();
  return includes;
}

TEST(IncludeDirections, hold) {
  const Includes& includes = project_includes();
  EXPECT_GT(includes.size(), 80u) << "the sources were not found";
  EXPECT_EQ(wrong_layers(includes), Problems{});
  EXPECT_EQ(stray_headers(includes), Problems{});
  EXPECT_EQ(circle(includes), "");
}

// Returns the sources in `folder` that `file` includes, directly or indirectly.
Problems reached_in(const std::string& folder, const std::string& file, const Includes& includes) {
  std::set<std::string> reached{file};
  std::vector<std::string> open{file};
  while (!open.empty()) {
    const auto found = includes.find(open.back());
    open.pop_back();
    if (found == includes.end()) continue;
    for (const std::string& included : found->second)
      if (reached.insert(included).second) open.push_back(included);
  }
  Problems inside;
  for (const std::string& name : reached)
    if (name.rfind(folder, 0) == 0) inside.push_back(name);
  return inside;
}

TEST(IncludeDirections, a_step_of_training_does_not_need_evaluation) {
  const Includes& includes = project_includes();
  for (const char* file : {"lib/train/trainer.h", "lib/train/trainer.cpp"}) {
    ASSERT_EQ(includes.count(file), 1u) << file;
    EXPECT_NE(reached_in("lib/engine/", file, includes), Problems{}) << file;
    EXPECT_EQ(reached_in("lib/infer/", file, includes), Problems{}) << file;
  }
}

TEST(IncludeDirections, lib_picks_backends_by_files_not_by_ifdef) {
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRI_SOURCE_DIR) / "lib")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      // A list of rows (.def) may define a default for a macro that its includer leaves undefined.
      if (entry.path().extension() == ".def" && line.rfind("#ifndef ", 0) == 0) continue;
      EXPECT_FALSE(line.rfind("#if", 0) == 0) << entry.path() << ": " << line;
    }
  }
}

TEST(IncludeDirections, the_check_sees_violations) {
  EXPECT_EQ(wrong_layers({{"io/a.h", {"lib/b/b.h"}}}), Problems{"io/a.h includes lib/b/b.h"});
  EXPECT_EQ(wrong_layers({{"kernels/a.h", {"io/x.h", "vector"}}}), Problems{});
  EXPECT_EQ(wrong_layers({{"lib/a/a.h", {"tests/x.h"}}}), Problems{"lib/a/a.h includes tests/x.h"});
  EXPECT_EQ(stray_headers({{"lib/train/a.cpp", {"mpi.h"}}}), Problems{"lib/train/a.cpp includes mpi.h"});
  EXPECT_EQ(stray_headers({{"lib/comm/a.cpp", {"mpi.h"}}}), Problems{});
  EXPECT_EQ(stray_headers({{"lib/comm/peer/a.cpp", {"mpi.h"}}}), Problems{"lib/comm/peer/a.cpp includes mpi.h"});
  EXPECT_EQ(stray_headers({{"lib/a/a.cpp", {"kernels/cpu/ops.h"}}}),
            Problems{"lib/a/a.cpp includes kernels/cpu/ops.h"});
  EXPECT_EQ(stray_headers({{"lib/a/a.cpp", {"kernels/cuda/ops.h"}}}),
            Problems{"lib/a/a.cpp includes kernels/cuda/ops.h"});
  EXPECT_EQ(stray_headers({{"kernels/device.cpp", {"kernels/cpu/device.h"}}}), Problems{});
  EXPECT_EQ(circle({{"lib/a/x.h", {"lib/a/inner/y.h"}}, {"lib/a/inner/y.h", {"lib/a/z.h"}}}), "a -> a/inner -> a");
  EXPECT_EQ(circle({{"lib/a/inner/y.h", {"lib/a/z.h"}}}), "");
  EXPECT_EQ(circle({{"lib/a/x.h", {"lib/b/y.h"}}, {"lib/b/z.h", {"lib/c/w.h"}}, {"lib/c/w.h", {"lib/a/x.h"}}}),
            "a -> b -> c -> a");
  EXPECT_EQ(circle({{"lib/a/x.h", {"lib/b/y.h", "lib/a/z.h"}}}), "");
}

}  // namespace
