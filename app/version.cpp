#include "app/version.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

#include "app/version_data.h"  // written by version.cmake, which names its macros

namespace tri {
namespace {

// Libraries are asked by name, not by their headers: so the answer is that of the library in use, which may be newer
// than the one of the build, and one that this build goes without is simply not there.
template <class Function>
Function* function_of(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

std::string mpi_version() {
  const auto ask = function_of<int(char*, int*)>("MPI_Get_library_version");  // allowed before MPI_Init
  if (ask == nullptr) return "none";
  char text[4096] = {};  // more than MPI_MAX_LIBRARY_VERSION_STRING of any MPI
  int length = 0;
  ask(text, &length);
  const std::string_view all(text);
  return std::string(all.substr(0, all.find_first_of(",\n")));  // the rest is the packager's
}

// Open MPI opens UCX itself when it starts.
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

// 13000 is 13.0.
std::string cuda_version(const char* name) {
  const auto ask = function_of<int(int*)>(name);
  int version = 0;
  if (ask == nullptr || ask(&version) != 0 || version == 0) return "none";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// 22703 is 2.27.3.
std::string nccl_version() {
  const auto ask = function_of<int(int*)>("ncclGetVersion");
  int version = 0;
  if (ask == nullptr || ask(&version) != 0) return "none";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// With a unit of 10000, 130002 is 13.0.2; with one of 1000, 8907 is 8.9.7. cuBLAS and cuDNN count by either.
std::string packed_version(const char* name) {
  const auto ask = function_of<size_t()>(name);
  if (ask == nullptr) return "none";
  const size_t version = ask(), unit = version >= 90000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

}  // namespace

std::string version_line() {
  return fmt::format("{}, commit {}{}", TRI_VERSION, TRI_COMMIT, TRI_COMMIT_MODIFIED ? ", modified" : "");
}

std::string version_text() {
  std::string text = fmt::format("trireme {}\n", version_line());
  const auto row = [&text](std::string_view what, std::string_view version) {
    text += fmt::format("{:10} {}\n", what, version);
  };
  row("C++", TRI_CXX_COMPILER);
  row("CUDA C++", TRI_CUDA_COMPILER);
  row("build", TRI_BUILD);
  row("MPI", mpi_version());
  row("UCX", ucx_version());
  row("HDF5", hdf5_version());
  row("CUDA", cuda_version("cudaRuntimeGetVersion"));
  row("driver", cuda_version("cudaDriverGetVersion"));
  row("NCCL", nccl_version());
  row("cuBLAS", packed_version("cublasLtGetVersion"));
  row("cuDNN", packed_version("cudnnGetVersion"));
  text.pop_back();
  return text;
}

}  // namespace tri
