#include "io/tokens/prepare.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include "io/base/random.h"
#include "io/tokens/token_file.h"
#include "tests/io/packed.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::vector<std::string> documents_of(const std::string& prefix) {
  const TokenFile file = value_or_throw(TokenFile::open(prefix));
  const DocumentIndex index = value_or_throw(DocumentIndex::open(prefix));
  const auto tokenizer = value_or_throw(open_tokenizer("bytes"));
  std::vector<std::string> documents;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(index.document_start(d + 1) - index.document_start(d)));
    file.read(index.document_start(d), tokens);
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
  const auto run = [&](std::vector<std::string> inputs, std::optional<TextFormat> format) {
    auto summary = prepare(
        {.inputs = std::move(inputs), .output = folder / "out", .format = format, .existing = Existing::kOverwrite});
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
  EXPECT_EQ(nlohmann::json::parse(read_all(folder / "out.json"))["format"], "jsonl");
  EXPECT_EQ(run({folder / "b.txt", folder / "c.jsonl"}, std::nullopt),
            (Texts{"third\r\n\nfourth", "one \xc3\xa9", "two\nlines"}))
      << "by their names";
  EXPECT_EQ(nlohmann::json::parse(read_all(folder / "out.json"))["format"], "jsonl, text");
  run({folder / "c.jsonl"}, TextFormat::kJsonl);
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
    lines += fmt::format("line {} of a text that is cut into several pieces {}\n", i, int64_t{i} * i);
  write_all(folder / "long.txt", lines);
  std::vector<std::string> bins;
  for (const int threads : {1, 2, 7}) {
    ASSERT_TRUE(prepare({.inputs = {folder / "long.txt"},
                         .output = folder / "out",
                         .format = TextFormat::kLines,
                         .threads = threads,
                         .existing = Existing::kOverwrite}));
    bins.push_back(read_all(folder / "out.bin") + read_all(folder / "out.idx"));
  }
  EXPECT_EQ(documents_of(folder / "out").size(), 60000u);
  EXPECT_EQ(bins[0], bins[1]);
  EXPECT_EQ(bins[0], bins[2]);
}

TEST(Prepare, bad_lines_are_named_and_leave_nothing) {
  const std::pair<std::string, std::string> table[] = {
      {"{\"text\": \"ok\"}\n{broken\n", "c.jsonl:2: not valid JSON"},
      {"[1, 2]\n", "c.jsonl:1: a JSON array, expected an object; JSON lines has a whole object on each line (jq -c"},
      {"\n \t\r\n{\"txt\": \"x\"}\n", "c.jsonl:3: no field \"text\"; name the text's field with --field: txt"},
      {"{\"\\u001b[2J\\n\": \"x\", \"" + std::string(50, 'n') + "\": \"y\"}\n",
       "c.jsonl:1: no field \"text\"; name the text's field with --field: \xEF\xBF\xBD[2J , " + std::string(40, 'n') +
           "..."},
      {"{\"id\": 5}\n", "c.jsonl:1: no field \"text\"; name the text's field with --field"},
      {"{\"meta\": {\"url\": \"x\", \"n\": 1}, \"raw\": \"x\"}\n", "with --field: meta.url, raw"},
      {"{\"text\": 5}\n", "c.jsonl:1: field \"text\" is a number"},
      {"{\"text\": []}\n", "c.jsonl:1: field \"text\" is an array, expected a string"},
      {"{\"text\": NaN}\n", "c.jsonl:1: field \"text\" is a number, expected a string"},
      {"{\"meta.text\": \"x\", \"meta\": {\"text\": \"y\"}}\n", "with --field: meta.text;"},
      {"{\"s\": NaN, \"text\": \"\\ud83d\", nothing}\n", "c.jsonl:1: not valid JSON at byte 31: invalid literal"},
      {"{\"text\": \"a\xff\"}\n", "c.jsonl:1: not valid JSON at byte 12: invalid string: ill-formed UTF-8 byte"},
      {"{\n\"text\": \"a\"}\n", "unexpected end of input; expected string literal; JSON lines has a whole object on"},
      {"{\"text\": 01}\n", "c.jsonl:1: not valid JSON at byte 11"},
      {"\n\n", "the inputs contain no text"},
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

TEST(Prepare, lines_that_python_writes_are_taken) {
  const TemporaryFolder folder;
  write_all(folder / "c.jsonl",
            "{\"text\": \"a\\ud83db\", \"\\udc00\": 1}\n"
            "{\"text\": \"\\ude00\\ud83d\\ude00\\\\ud83d\"}\n"
            "{\"text\": \"NaN\", \"a\": NaN, \"b\": [-Infinity, Infinity, 1e999, -" +
                std::string(400, '9') + "]}\n");
  ASSERT_TRUE(prepare({.inputs = {folder / "c.jsonl"}, .output = folder / "out"}));
  EXPECT_EQ(documents_of(folder / "out"), (std::vector<std::string>{"a\xef\xbf\xbd"
                                                                    "b",
                                                                    "\xef\xbf\xbd\xf0\x9f\x98\x80\\ud83d", "NaN"}));
}

TEST(Prepare, byte_order_marks_are_no_text) {
  const TemporaryFolder folder;
  const std::string mark = "\xef\xbb\xbf";
  write_all(folder / "a.txt", mark + "ab");
  write_all(folder / "b.txt.gz", gzip(mark + "ab"));
  write_all(folder / "c.jsonl", mark + "{\"text\": \"ab\"}\n" + mark + "{\"text\": \"ab\"}\n");
  write_all(folder / "d.md", mark);
  ASSERT_TRUE(prepare({.inputs = {folder / "a.txt", folder / "b.txt.gz", folder / "c.jsonl", folder / "d.md"},
                       .output = folder / "out"}));
  EXPECT_EQ(documents_of(folder / "out"), std::vector<std::string>(4, "ab"));
  write_all(folder / "e", mark + "ab\r\n" + mark + "ab\n");
  ASSERT_TRUE(prepare({.inputs = {folder / "e"}, .output = folder / "lines", .format = TextFormat::kLines}));
  EXPECT_EQ(documents_of(folder / "lines"), std::vector<std::string>(2, "ab"));
  using namespace std::string_literals;
  for (const auto& [text, name] :
       {std::pair{"\xff\xfe{\0"s, "UTF-16 (little-endian)"}, std::pair{"\xfe\xff\0{"s, "UTF-16 (big-endian)"},
        std::pair{"\xff\xfe\0\0{\0\0\0"s, "UTF-32 (little-endian)"}})
    for (const TextFormat format : {TextFormat::kText, TextFormat::kLines, TextFormat::kJsonl}) {
      write_all(folder / "wide", text);
      const auto refused = prepare({.inputs = {folder / "wide"}, .output = folder / "no", .format = format});
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().message.find("wide: not UTF-8 text: its byte order mark is that of "s + name),
                std::string::npos)
          << refused.error().message;
    }
}

TEST(Prepare, so_many_bad_documents_are_skipped_and_counted) {
  const TemporaryFolder folder;
  write_all(folder / "c.jsonl", "{\"text\": \"a\"}\n{broken\n{\"text\": 5}\n{\"text\": \"b\"}\n{\"text\": \"\xff\"}\n");
  const auto run = [&](const std::string& input, SkipBad skip, std::optional<TextFormat> format = {}) {
    return prepare({.inputs = {folder / input},
                    .output = folder / "out",
                    .format = format,
                    .skip_bad = skip,
                    .existing = Existing::kOverwrite});
  };
  const auto skipped = run("c.jsonl", {.most = 3});
  ASSERT_TRUE(skipped) << skipped.error().message;
  EXPECT_EQ(skipped.value().skipped, 3);
  EXPECT_EQ(documents_of(folder / "out"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(nlohmann::json::parse(read_all(folder / "out.json"))["skipped"], 3);
  EXPECT_TRUE(run("c.jsonl", {.share = 0.6}));
  const auto many = run("c.jsonl", {.most = 2}), share = run("c.jsonl", {.share = 0.5});
  ASSERT_FALSE(many);
  ASSERT_FALSE(share);
  EXPECT_NE(many.error().message.find("c.jsonl:5: "), std::string::npos) << many.error().message;
  EXPECT_NE(many.error().message.find("2 lines skipped before, and --skip-bad allows 2"), std::string::npos);
  EXPECT_NE(share.error().message.find("3 of 5 documents are bad, more than --skip-bad 0.5 allows"), std::string::npos)
      << share.error().message;
  write_all(folder / "d.jsonl", "{\"text\": \"a\"}\n{broken\n");
  const auto first = run("d.jsonl", {});
  ASSERT_FALSE(first);
  EXPECT_TRUE(first.error().message.ends_with(
      "; correct or remove the line, or skip it with --skip-bad 1; 1 document before it is saved, and the same command "
      "continues after that"))
      << first.error().message;
  // Text: lines and files that are not UTF-8.
  write_all(folder / "l", "good\nbad\xff\ngood too\n");
  ASSERT_TRUE(run("l", {.most = 1}, TextFormat::kLines));
  EXPECT_EQ(documents_of(folder / "out"), (std::vector<std::string>{"good", "good too"}));
  std::filesystem::create_directory(folder / "texts");
  write_all(folder / "texts/1.txt", "good");
  write_all(folder / "texts/2.txt", "bad\xff");
  write_all(folder / "texts/3.txt", std::string("\xff\xfe", 2));
  ASSERT_TRUE(run("texts", {.most = 2}));
  EXPECT_EQ(documents_of(folder / "out"), std::vector<std::string>{"good"});
  EXPECT_EQ(value_or_throw(parse_skip_bad("100")).most, 100);
  EXPECT_EQ(value_or_throw(parse_skip_bad("0.25")).share, 0.25);
  EXPECT_FALSE(value_or_throw(parse_skip_bad("0")).any());
  for (const char* text : {"", "x", "-1", "1.5", "1e3", "3 lines"}) EXPECT_FALSE(parse_skip_bad(text)) << text;
}

TEST(Prepare, packed_inputs_make_what_plain_ones_make) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40000; ++i) lines += fmt::format("{{\"text\": \"document {} of \u00e9 {}\"}}\n", i, i * 7919);
  ASSERT_GT(lines.size(), size_t{1} << 20) << "one block only";
  write_all(folder / "a.jsonl", lines);
  write_all(folder / "a.jsonl.gz", gzip(lines));
  write_all(folder / "a.json.zst", zstd(lines));
  write_all(folder / "padded.json.gz", gzip(lines) + std::string(1000, '\0'));  // as tapes and block devices do
  std::vector<std::string> bins;
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.json.zst", "padded.json.gz"}) {
    const auto summary = prepare({.inputs = {folder / name}, .output = folder / (std::string("of_") + name)});
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary.value().documents, 40000);
    bins.push_back(read_all(folder / (std::string("of_") + name + ".bin")));
  }
  EXPECT_TRUE(bins[0] == bins[1] && bins[0] == bins[2] && bins[0] == bins[3]);
  // A line is identified by its number in the text.
  write_all(folder / "bad.jsonl.gz", gzip(lines + "{broken\n"));
  const auto bad = prepare({.inputs = {folder / "bad.jsonl.gz"}, .output = folder / "bad"});
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("bad.jsonl.gz:40001: not valid JSON"), std::string::npos) << bad.error().message;
}

TEST(Prepare, binary_input_is_refused_and_leaves_nothing) {
  std::string noise, latin, wide, late(3 << 20, 'a');
  for (uint64_t i = 0; i < 50000; ++i) noise += static_cast<char>(random_u64(1, i));
  for (int i = 0; i < 1000; ++i) latin += "un caf\xe9 cr\xe8me\n";
  for (const char c : std::string("UTF-16 has a NUL for every letter\n")) wide += {c, '\0'};
  for (int i = 0; i < 4000; ++i) late[(2 << 20) + i * 100] = '\0';
  const std::tuple<const char*, std::string, const char*> table[] = {{"noise", noise, "not UTF-8 text"},
                                                                     {"latin", latin, "the first at offset 6;"},
                                                                     {"wide", wide, "the first at offset 1;"},
                                                                     {"late", late, "the first at offset 2097152;"},
                                                                     {"packed", gzip(latin), "at offset 6;"}};
  for (const auto& [name, text, message] : table)
    for (const TextFormat format : {TextFormat::kText, TextFormat::kLines}) {
      const TemporaryFolder folder;
      write_all(folder / "good.txt", "a good text before\n");
      write_all(folder / "a.txt", text);
      const auto result =
          prepare({.inputs = {folder / "good.txt", folder / "a.txt"}, .output = folder / "out", .format = format});
      ASSERT_FALSE(result) << name;
      EXPECT_NE(result.error().message.find(folder / "a.txt"), std::string::npos) << result.error().message;
      EXPECT_NE(result.error().message.find(message), std::string::npos) << name << ": " << result.error().message;
      for (const char* extension : {".bin", ".idx", ".json"})
        EXPECT_FALSE(std::filesystem::exists(folder / (std::string("out") + extension))) << name;
    }
  // A broken character in a long text is kept and counted.
  const TemporaryFolder folder;
  std::string text(20000, 'a');
  text[777] = '\xff';
  write_all(folder / "a.txt", text);
  const auto summary = prepare({.inputs = {folder / "a.txt"}, .output = folder / "out"});
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary.value().text_faults, 1);
  EXPECT_TRUE(documents_of(folder / "out") == std::vector<std::string>{text});
  EXPECT_FALSE(prepare({.inputs = {folder / "out.bin"}, .output = folder / "other"})) << "no format, no text";
}

TEST(Prepare, only_a_sidecar_that_is_missing_says_nothing_of_the_tokenizer) {
  const TemporaryFolder folder;
  EXPECT_EQ(value_or_throw(prepared_with(folder / "none")).fingerprint, "");
  std::filesystem::create_directory(folder / "out.json");  // exists but cannot be read
  EXPECT_FALSE(prepared_with(folder / "out"));
  write_all(folder / "a.txt", "text");
  ASSERT_TRUE(prepare({.inputs = {folder / "a.txt"}, .output = folder / "made"}));
  const TokenOrigin origin = value_or_throw(prepared_with(folder / "made"));
  EXPECT_EQ(std::tie(origin.fingerprint, origin.tokenizer, origin.vocab), std::make_tuple("bytes", "bytes", 257));
  std::string newer = read_all(folder / "made.json");
  const std::string field = "\"schema\": 1";
  ASSERT_NE(newer.find(field), newer.npos) << newer;
  write_all(folder / "made.json", newer.replace(newer.find(field), field.size(), "\"schema\": 2"));
  EXPECT_FALSE(prepared_with(folder / "made")) << "a newer release wrote it";
}

TEST(Prepare, output_that_is_there_is_overwritten_only_on_demand) {
  const TemporaryFolder folder;
  write_all(folder / "a.txt", "first");
  write_all(folder / "b.txt", "second");
  const auto run = [&](const std::string& input, Existing existing) {
    return prepare({.inputs = {folder / input}, .output = folder / "out", .existing = existing});
  };
  ASSERT_TRUE(run("a.txt", Existing::kRefuse));
  for (const char* there : {".bin", ".idx", ".json"}) {
    const auto refused = run("b.txt", Existing::kRefuse);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, folder / (std::string("out") + there) +
                                           ": already exists; overwrite it with --force, or give another --output");
    EXPECT_EQ(refused.error().code, ExitCode::kUsage);
    if (there == std::string(".bin")) {
      EXPECT_EQ(documents_of(folder / "out"), std::vector<std::string>{"first"});
    }
    std::filesystem::remove(folder / (std::string("out") + there));  // any one of the three is enough
  }
  ASSERT_TRUE(run("a.txt", Existing::kRefuse));
  ASSERT_TRUE(run("b.txt", Existing::kOverwrite));
  EXPECT_EQ(documents_of(folder / "out"), std::vector<std::string>{"second"});
  EXPECT_FALSE(run("missing.txt", Existing::kOverwrite));
  EXPECT_EQ(documents_of(folder / "out"), std::vector<std::string>{"second"}) << "a failure leaves what was there";
}

// The folder is created; a folder's name alone would produce hidden files in it.
TEST(Prepare, output_has_a_name_in_its_folder) {
  const TemporaryFolder folder;
  write_all(folder / "a.txt", "first");
  const auto run = [&](const std::string& output) {
    return prepare({.inputs = {folder / "a.txt"}, .output = output, .existing = Existing::kOverwrite});
  };
  ASSERT_TRUE(run(folder / "new/deep/out"));
  EXPECT_EQ(documents_of(folder / "new/deep/out"), std::vector<std::string>{"first"});
  for (const std::string& output :
       {folder / "new/", folder / "absent/", folder / ".", folder / "new/..", std::string()}) {
    const auto refused = run(output);
    ASSERT_FALSE(refused) << output;
    EXPECT_EQ(refused.error().code, ExitCode::kUsage);
    EXPECT_EQ(refused.error().message.rfind("--output " + output + ": is a folder; ", 0), 0u)
        << refused.error().message;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "absent"));
  EXPECT_NE(run(folder / "new/").error().message.find(", such as " + folder / "new/text"), std::string::npos);
}

TEST(Prepare, tokens_are_never_next_to_the_sidecar_of_others) {
  const TemporaryFolder folder;
  write_all(folder / "a.txt", "first");
  write_all(folder / "b.txt", "second");
  const auto run = [&](const std::string& input) {
    return prepare({.inputs = {folder / input}, .output = folder / "out", .existing = Existing::kOverwrite});
  };
  ASSERT_TRUE(run("a.txt"));
  std::filesystem::remove(folder / "out.json");
  std::filesystem::create_directories(folder / "out.json/which can't be replaced");
  EXPECT_FALSE(run("b.txt"));
  EXPECT_EQ(documents_of(folder / "out"), std::vector<std::string>{"first"});
  // If the new tokens cannot be put in place, the old sidecar has been removed.
  std::filesystem::remove_all(folder / "out.json");
  ASSERT_TRUE(run("a.txt"));
  std::filesystem::remove(folder / "out.idx");
  std::filesystem::create_directories(folder / "out.idx/which can't be replaced");
  EXPECT_FALSE(run("b.txt"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.json"));
}

}  // namespace
}  // namespace tri
