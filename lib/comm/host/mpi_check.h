// TRI_MPI(call): throws Fatal (kComm) with the function's name and MPI's error text if the call fails.
// kMaxMessageBytes: the bytes of one message.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string_view>

#include "io/base/error.h"

namespace tri {

inline constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;  // MPI counts are ints

inline void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Fatal(ExitCode::kComm, fmt::format("{}: {}", std::string_view(call).substr(0, std::string_view(call).find('(')),
                                           std::string_view(text, static_cast<size_t>(length))));
}

}  // namespace tri

#define TRI_MPI(call) ::tri::mpi_check((call), #call)
