#include "app/version.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "app/version_data.h"  // written by version.cmake, which names its macros
#include "io/base/json.h"

namespace tri {
namespace {

// Queries libraries by symbol, not by their headers: so the version is that of the loaded library, which may be newer
// than at build time, and a library that this build does not use is absent.
template <class Function>
Function* function_of(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

std::string mpi_version() {
  const auto ask = function_of<int(char*, int*)>("MPI_Get_library_version");  // allowed before MPI_Init
  if (ask == nullptr) return "none";
  char text[4096] = {};  // longer than MPI_MAX_LIBRARY_VERSION_STRING of any MPI
  int length = 0;
  ask(text, &length);
  const std::string_view all(text);
  return std::string(all.substr(0, all.find_first_of(",\n")));  // the packager wrote the rest
}

// Open MPI loads UCX itself when it starts.
std::string ucx_version() {
  void* library = ::dlopen("libucp.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "none";
  const auto ask = reinterpret_cast<const char* (*)()>(::dlsym(library, "ucp_get_version_string"));
  return ask == nullptr ? "unknown" : ask();
}

std::string hdf5_version() {
  const auto ask = function_of<int(unsigned*, unsigned*, unsigned*)>("H5get_libversion");
  unsigned major = 0, minor = 0, release = 0;
  if (ask == nullptr || ask(&major, &minor, &release) < 0) return "none";
  return fmt::format("{}.{}.{}", major, minor, release);
}

// Decodes 13000 as 13.0.
std::string cuda_version(const char* name) {
  const auto ask = function_of<int(int*)>(name);
  int version = 0;
  if (ask == nullptr || ask(&version) != 0 || version == 0) return "none";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Decodes 22703 as 2.27.3.
std::string nccl_version() {
  const auto ask = function_of<int(int*)>("ncclGetVersion");
  int version = 0;
  if (ask == nullptr || ask(&version) != 0) return "none";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Decodes 130002 as 13.0.2 with a unit of 10000, and 8907 as 8.9.7 with 1000. cuBLAS and cuDNN use either.
std::string packed_version(const char* name) {
  const auto ask = function_of<size_t()>(name);
  if (ask == nullptr) return "none";
  const size_t version = ask(), unit = version >= 90000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

struct Library {
  const char* name;
  std::string runs;        // the version in use; "none": not loaded
  std::string built_with;  // the version of the headers at build time
};

std::vector<Library> libraries() {
  return {{"MPI", mpi_version(), TRI_BUILT_MPI},
          {"UCX", ucx_version(), "none"},
          {"HDF5", hdf5_version(), TRI_BUILT_HDF5},
          {"CUDA", cuda_version("cudaRuntimeGetVersion"), TRI_BUILT_CUDA},
          {"driver", cuda_version("cudaDriverGetVersion"), "none"},
          {"NCCL", nccl_version(), TRI_BUILT_NCCL},
          {"cuBLAS", packed_version("cublasLtGetVersion"), TRI_BUILT_CUBLAS},
          {"cuDNN", packed_version("cudnnGetVersion"), TRI_BUILT_CUDNN}};
}

// Treats "Open MPI v4.1.4" and "4.1.4" as equal, and 13.0 and 13.0.88, where the last is a toolkit's patch number that
// the runtime does not report; 4.1.4 and 4.1.40 differ.
bool same_version(const Library& library) {
  const std::string& runs = library.runs;
  const std::string number = runs.substr(std::min(runs.find_first_of("0123456789"), runs.size()));
  const std::string& built = library.built_with;
  const size_t common = std::min(number.size(), built.size());
  const std::string& longer = number.size() > built.size() ? number : built;
  const bool whole_number = longer.size() == common || std::isdigit(static_cast<unsigned char>(longer[common])) == 0;
  return number.compare(0, common, built, 0, common) == 0 && whole_number;
}

}  // namespace

std::string version_line() {
  return fmt::format("{}, commit {}{}", TRI_VERSION, TRI_COMMIT, TRI_COMMIT_MODIFIED ? ", modified" : "");
}

std::string version_number() { return TRI_VERSION; }

std::string version_text() {
  std::string text = fmt::format("trireme {}\n", version_line());
  const auto row = [&text](std::string_view what, std::string_view version) {
    text += fmt::format("{:10} {}\n", what, version);
  };
  row("C++", TRI_CXX_COMPILER);
  row("CUDA C++", TRI_CUDA_COMPILER);
  row("build", TRI_BUILD);
  for (const Library& library : libraries()) {
    const bool other = library.runs != "none" && library.built_with != "none" && !same_version(library);
    row(library.name, other ? fmt::format("{} (built with {})", library.runs, library.built_with) : library.runs);
  }
  text.pop_back();
  return text;
}

std::string version_json() {
  const auto known = [](const std::string& version) {
    return version == "none" ? nlohmann::ordered_json() : nlohmann::ordered_json(version);
  };
  nlohmann::ordered_json object = {{"version", TRI_VERSION},
                                   {"commit", TRI_COMMIT},
                                   {"modified", TRI_COMMIT_MODIFIED != 0},
                                   {"compilers", {{"cxx", TRI_CXX_COMPILER}, {"cuda", known(TRI_CUDA_COMPILER)}}},
                                   {"build", TRI_BUILD}};
  for (const Library& library : libraries())
    object["libraries"][library.name] = {{"runs", known(library.runs)}, {"built_with", known(library.built_with)}};
  return object.dump(2);
}

}  // namespace tri
