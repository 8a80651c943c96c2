// Quantities as text for people. Output for programs has plain numbers.
#pragma once

#include <cstdint>
#include <string>

namespace tri {

std::string format_bytes(int64_t bytes);      // "1023 B", "1.50 GiB"
std::string format_duration(double seconds);  // "12.3 s", "3m07s", "1h02m", "33 days"; "?" when not finite
std::string format_count(double count);       // "116", "11.6k", "1.32M", "175B"

// Returns "1 rank", "2 ranks", "2 microbatches", "2 processes": the plural adds s, or es after ch and ss.
std::string counted(int64_t count, const std::string& noun);

}  // namespace tri
