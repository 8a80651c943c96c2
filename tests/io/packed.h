// Text packed with gzip and zstd.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>

#include "io/base/error.h"

namespace tri {

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  TRI_REQUIRE(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string out(::deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  TRI_REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib");
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  const size_t bytes = ::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  TRI_REQUIRE(!::ZSTD_isError(bytes), "zstd");
  out.resize(bytes);
  return out;
}

}  // namespace tri
