#include "io/safetensors.h"

#include <gtest/gtest.h>

#include "tests/io/checkpoint_files.h"

namespace tri {
namespace {

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string text_of(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) return "missing";
  const auto bytes = file.data(*entry);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Written by hand from the format's description.
const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
    R"("s":{"dtype":"I64","shape":[],"data_offsets":[12,20]},)"
    R"("e":{"dtype":"F32","shape":[0,3],"data_offsets":[20,20]}}   )";
const std::string kData = "aaaabbbbBBBBssssssss";

TEST(Safetensors, is_read_as_the_format_says) {
  const TemporaryFolder dir;
  write_all(dir / "m", file_of(kHeader, kData));
  const auto opened = SafetensorsFile::open(dir / "m");
  ASSERT_TRUE(opened) << opened.error().message;
  const SafetensorsFile& file = opened.value();
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.entries()[0].type, StoredType::kBf16);
  EXPECT_EQ(file.find("b")->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(text_of(file, "a"), "aaaa");
  EXPECT_EQ(text_of(file, "b"), "bbbbBBBB");
  EXPECT_EQ(text_of(file, "s"), "ssssssss");
  EXPECT_EQ(text_of(file, "e"), "");
  EXPECT_EQ(file.find("x"), nullptr);
}

TEST(Safetensors, is_written_as_the_format_says) {
  const TemporaryFolder dir;
  auto made = SafetensorsWriter::create(
      dir / "m", {{"a", StoredType::kBf16, {2}}, {"b", StoredType::kF32, {1, 2}}, {"e", StoredType::kF32, {0}}},
      {{"format", "pt"}});
  ASSERT_TRUE(made) << made.error().message;
  SafetensorsWriter& writer = made.value();
  writer.write("a", "aaaa", 4);
  writer.write("b", "bbb", 3);
  EXPECT_THROW(writer.write("a", "a", 1), Fatal);
  EXPECT_THROW(writer.write("b", "bbbbbb", 6), Fatal);
  EXPECT_THROW((void)writer.finish(), Fatal);
  writer.write("b", "bBBBB", 5);
  EXPECT_FALSE(std::filesystem::exists(dir / "m")) << "visible before it is whole";
  ASSERT_TRUE(writer.finish());
  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},)"
                       R"("e":{"dtype":"F32","shape":[0],"data_offsets":[12,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_all(dir / "m"), file_of(header, "aaaabbbbBBBB"));
}

TEST(Safetensors, tensors_round_trip) {
  const TemporaryFolder dir;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Draw draw(seed);
    std::vector<SafetensorsEntry> entries;
    std::vector<Bytes> contents;
    for (int64_t t = draw(8); t >= 0; --t) {
      const StoredType type = EnumNames<StoredType>::table[static_cast<size_t>(draw(5))].first;
      std::vector<int64_t> shape(static_cast<size_t>(draw(4)));
      for (int64_t& size : shape) size = draw(6);
      entries.push_back({fmt::format("layer.{}.\"ü\"", t), type, shape});
      contents.push_back(random_bytes(seed, entries.back().name, entries.back().bytes()));
    }
    auto writer = value_or_throw(SafetensorsWriter::create(dir / "m", entries));
    for (size_t t = 0; t < entries.size(); ++t)
      for (size_t at = 0; at < contents[t].size();) {
        const auto count = static_cast<size_t>(1 + draw(static_cast<int64_t>(contents[t].size() - at)));
        writer.write(entries[t].name, contents[t].data() + at, static_cast<int64_t>(count));
        at += count;
      }
    ASSERT_TRUE(writer.finish());
    const auto file = SafetensorsFile::open(dir / "m");
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_EQ(file.value().entries().size(), entries.size());
    for (size_t t = 0; t < entries.size(); ++t) {
      const SafetensorsEntry* entry = file.value().find(entries[t].name);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(entry->type, entries[t].type);
      EXPECT_EQ(entry->shape, entries[t].shape);
      EXPECT_EQ(text_of(file.value(), entries[t].name), std::string(contents[t].begin(), contents[t].end()));
    }
  }
}

TEST(Safetensors, a_writer_that_is_given_up_leaves_nothing) {
  const TemporaryFolder dir;
  {
    auto writer = value_or_throw(SafetensorsWriter::create(dir / "m", {{"a", StoredType::kU8, {4}}}));
    writer.write("a", "aaaa", 4);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_FALSE(SafetensorsWriter::create(dir / "m", {{"a", StoredType::kU8, {4}}, {"a", StoredType::kU8, {4}}}));
  EXPECT_FALSE(SafetensorsWriter::create(dir / "m", {{"__metadata__", StoredType::kU8, {4}}}));
  EXPECT_FALSE(SafetensorsWriter::create(dir / "m", {{"\xff", StoredType::kU8, {4}}}));
  EXPECT_FALSE(SafetensorsWriter::create(dir / "none/m", {{"a", StoredType::kU8, {4}}}));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Safetensors, damage_is_refused_with_what_is_wrong) {
  const auto one = [](const std::string& fields) { return file_of("{\"w\":{" + fields + "}}", "xxxx"); };
  const std::pair<std::string, std::string> table[] = {
      {"", "0 bytes, too short"},
      {"1234567", "7 bytes, too short"},
      {std::string(16, '\xff'), "a header of 18446744073709551615 bytes, at most"},
      {file_of(kHeader, kData).substr(0, 100), "too short for a header of"},
      {file_of(kHeader, kData.substr(1)), "19 bytes of data, but its tensors take 20"},
      {file_of(kHeader, kData + "x"), "21 bytes of data, but its tensors take 20"},
      {file_of("{]", ""), "not valid JSON"},
      {file_of("[1]", ""), "a JSON array, expected an object"},
      {file_of(R"({"__metadata__":{"a":1}})", ""), "__metadata__: a is not text"},
      {file_of(R"({"w":3})", ""), "tensor w: expected dtype, shape and data_offsets"},
      {one(R"("dtype":7,"shape":[2],"data_offsets":[0,4])"), "dtype 7 is not text"},
      {one(R"("dtype":"F64","shape":[2],"data_offsets":[0,4])"), "4 bytes of data, but F64 [2] take 16"},
      {one(R"("dtype":"BOOL","shape":[3],"data_offsets":[0,4])"), "4 bytes of data, but BOOL [3] take 3"},
      {one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "shape [-4]"},
      {one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4])"), "shape [4294967296,"},
      {one(R"("dtype":"U8","shape":"4","data_offsets":[0,4])"), "shape \"4\""},
      {one(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "data_offsets [0]"},
      {one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "data_offsets [4,0]"},
      {one(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), "4 bytes of data, but U8 [3] take 3"},
      {one(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "tensor w begins at byte 1 of the data, expected 0"},
      {file_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("v":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
               "xxxx"),
       "tensor v begins at byte 2 of the data, expected 4"},
      {file_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
               "xxxx"),
       "tensor w is listed twice"}};
  for (const auto& [bytes, message] : table) {
    const TemporaryFolder dir;
    write_all(dir / "m", bytes);
    const auto file = SafetensorsFile::open(dir / "m");
    ASSERT_FALSE(file) << message;
    EXPECT_EQ(file.error().code, ExitCode::kFile);
    EXPECT_NE(file.error().message.find(message), std::string::npos) << message << ": " << file.error().message;
    EXPECT_NE(file.error().message.find(dir / "m"), std::string::npos) << file.error().message;
  }
  EXPECT_FALSE(SafetensorsFile::open("/nonexistent"));
}

TEST(Safetensors, tensors_of_types_that_nothing_reads_are_listed) {
  const TemporaryFolder dir;
  write_all(dir / "m", file_of(R"({"mask":{"dtype":"BOOL","shape":[1,4],"data_offsets":[0,4]},)"
                               R"("odd":{"dtype":"F4","shape":[4],"data_offsets":[4,6]},)"
                               R"("w":{"dtype":"F32","shape":[1],"data_offsets":[6,10]}})",
                               "\1\1\1\1xxABCD"));
  const auto file = value_or_throw(SafetensorsFile::open(dir / "m"));
  ASSERT_EQ(file.entries().size(), 3u);
  const SafetensorsEntry &mask = *file.find("mask"), &odd = *file.find("odd"), &w = *file.find("w");
  EXPECT_FALSE(mask.is_readable());
  EXPECT_EQ(mask.dtype(), "BOOL");
  EXPECT_EQ(mask.bytes(), 4);
  EXPECT_EQ(odd.bytes(), 2);
  EXPECT_TRUE(w.is_readable());
  EXPECT_EQ(w.dtype(), "F32");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data(w).data()), 4), "ABCD");
}

TEST(Safetensors, mutated_files_are_an_error_or_readable_never_a_crash) {
  const TemporaryFolder dir(parent_in_memory());
  const std::string good = file_of(kHeader, kData);
  int opened = 0, refused = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    Draw draw(i);
    std::string bytes = good;
    for (int64_t flips = draw(3); flips >= 0; --flips)
      bytes[static_cast<size_t>(draw(static_cast<int64_t>(bytes.size())))] =
          draw(2) == 0 ? "0123456789-[]{}\":,"[draw(18)] : static_cast<char>(draw(256));
    if (draw(6) == 0) bytes.resize(static_cast<size_t>(draw(static_cast<int64_t>(bytes.size()))));
    write_all(dir / "m", bytes);
    const auto file = SafetensorsFile::open(dir / "m");
    ++(file ? opened : refused);
    if (!file) continue;
    for (const SafetensorsEntry& entry : file.value().entries())
      EXPECT_EQ(static_cast<int64_t>(file.value().data(entry).size()), entry.bytes());
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tri
