#include "io/tokens/prepare.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/tokens/token_file.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::vector<std::string> documents_of(const std::string& prefix) {
  const TokenFile file = value_or_throw(TokenFile::open(prefix));
  const auto tokenizer = value_or_throw(open_tokenizer("bytes"));
  std::vector<std::string> documents;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(file.document_start(d + 1) - file.document_start(d)));
    file.read(file.document_start(d), tokens);
    EXPECT_EQ(tokens.back(), tokenizer->eod());
    documents.push_back(tokenizer->decode(tokens));
  }
  return documents;
}

TEST(Prepare, each_format_makes_its_documents) {
  const TemporaryFolder folder;
  write_all(folder / "a.txt", "first line\nsecond line\n");
  write_all(folder / "b.txt", "third\r\n\nfourth");
  write_all(folder / "c.jsonl", "{\"text\": \"one \\u00e9\", \"id\": 1}\n{\"id\": 2, \"text\": \"two\\nlines\"}\n");
  const auto run = [&](std::vector<std::string> inputs, TextFormat format) {
    auto summary = prepare({.inputs = std::move(inputs), .output = folder / "out", .format = format});
    EXPECT_TRUE(summary) << summary.error().message;
    const std::vector<std::string> documents = documents_of(folder / "out");
    EXPECT_EQ(summary.value().documents, static_cast<int64_t>(documents.size()));
    int64_t bytes = 0;
    for (const std::string& document : documents) bytes += static_cast<int64_t>(document.size());
    EXPECT_EQ(summary.value().text_bytes, bytes);
    return documents;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(run({folder / "a.txt", folder / "b.txt"}, TextFormat::kText),
            (Texts{"first line\nsecond line\n", "third\r\n\nfourth"}));
  EXPECT_EQ(run({folder / "a.txt", folder / "b.txt"}, TextFormat::kLines),
            (Texts{"first line", "second line", "third", "fourth"}));
  EXPECT_EQ(run({folder / "c.jsonl"}, TextFormat::kJsonl), (Texts{"one \xc3\xa9", "two\nlines"}));
  const auto sidecar = nlohmann::json::parse(read_all(folder / "out.json"));
  EXPECT_EQ(sidecar["tokenizer"], "bytes");
  EXPECT_EQ(sidecar["vocab"], 257);
  EXPECT_EQ(sidecar["documents"], 2);
  EXPECT_EQ(sidecar["text_bytes"], 15);
}

TEST(Prepare, the_result_does_not_depend_on_threads) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 60000; ++i)
    lines += fmt::format("line {} of a text that is cut into several pieces {}\n", i, i * i);
  write_all(folder / "long.txt", lines);
  std::vector<std::string> bins;
  for (const int threads : {1, 2, 7}) {
    ASSERT_TRUE(prepare(
        {.inputs = {folder / "long.txt"}, .output = folder / "out", .format = TextFormat::kLines, .threads = threads}));
    bins.push_back(read_all(folder / "out.bin") + read_all(folder / "out.idx"));
  }
  EXPECT_EQ(documents_of(folder / "out").size(), 60000u);
  EXPECT_EQ(bins[0], bins[1]);
  EXPECT_EQ(bins[0], bins[2]);
}

TEST(Prepare, bad_lines_are_named_and_leave_nothing) {
  const std::pair<std::string, std::string> table[] = {
      {"{\"text\": \"ok\"}\n{broken\n", "c.jsonl:2: not valid JSON"},
      {"[1, 2]\n", "c.jsonl:1: a JSON array, expected an object"},
      {"\n\n{\"txt\": \"x\"}\n", "c.jsonl:3: no field \"text\""},
      {"{\"text\": 5}\n", "c.jsonl:1: field \"text\" is a number"},
      {"\n\n", "no text in the inputs"},
  };
  for (const auto& [text, message] : table) {
    const TemporaryFolder folder;
    write_all(folder / "c.jsonl", text);
    const auto result =
        prepare({.inputs = {folder / "c.jsonl"}, .output = folder / "out", .format = TextFormat::kJsonl});
    ASSERT_FALSE(result) << text;
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
    EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
  }
  const TemporaryFolder folder;
  EXPECT_FALSE(prepare({.inputs = {folder / "missing"}, .output = folder / "out"}));
  EXPECT_FALSE(prepare({.inputs = {}, .output = folder / "out"}));
}

}  // namespace
}  // namespace tri
