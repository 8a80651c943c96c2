// The inputs of `data prepare`, their division, and how a run continues after an interruption.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "io/base/json.h"
#include "io/tokens/input_files.h"
#include "io/tokens/prepare.h"
#include "io/tokens/token_file.h"
#include "tests/io/packed.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

Texts documents_of(const std::string& prefix) {
  const TokenFile file = value_or_throw(TokenFile::open(prefix));
  const DocumentIndex index = value_or_throw(DocumentIndex::open(prefix));
  Texts documents;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    std::vector<int32_t> tokens(static_cast<size_t>(index.document_start(d + 1) - index.document_start(d)));
    file.read(index.document_start(d), tokens);
    documents.push_back(value_or_throw(open_tokenizer("bytes"))->decode(tokens));
  }
  return documents;
}

std::string json_lines(int first, int count) {
  std::string lines;
  for (int i = first; i < first + count; ++i)
    lines += fmt::format("{{\"text\": \"document {} with some words {}\"}}\n", i, int64_t{i} * i % 1009);
  return lines;
}

TEST(PrepareInputs, folders_and_patterns_mean_their_files_in_order) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in/deep");
  fs::create_directories(folder / "in/.hidden");
  write_all(folder / "in/b.txt", "b");
  write_all(folder / "in/a.jsonl.gz", gzip("{\"text\": \"a\"}\n"));
  write_all(folder / "in/deep/c.md", "c");
  write_all(folder / "in/.hidden/x.txt", "x");
  write_all(folder / "in/notes.pdf", "no text");
  write_all(folder / "in/[1].txt", "a name, no pattern");
  const auto names = [&](const Texts& inputs, std::optional<TextFormat> format = {}) {
    Texts found;
    const TextInputs all = value_or_throw(find_inputs(inputs, format));
    for (const TextInput& input : all.files) found.push_back(fs::relative(input.path, folder / "in").string());
    found.push_back(std::to_string(all.passed_over));
    return found;
  };
  EXPECT_EQ(names({folder / "in"}), (Texts{"[1].txt", "a.jsonl.gz", "b.txt", "deep/c.md", "1"}));
  EXPECT_EQ(names({folder / "in/*.txt"}), (Texts{"[1].txt", "b.txt", "0"}));
  EXPECT_EQ(names({folder / "in/[1].txt"}), (Texts{"[1].txt", "0"}));
  EXPECT_EQ(names({folder / "in/d*", folder / "in/b.txt"}), (Texts{"deep/c.md", "b.txt", "0"}));
  EXPECT_EQ(names({folder / "in"}, TextFormat::kLines).size(), 6u);
  const auto refusal = [&](const std::string& input) {
    const auto found = find_inputs({input}, {});
    return found ? std::string() : found.error().message;
  };
  EXPECT_EQ(refusal(folder / "in/zzz*"), (folder / "in/zzz*") + ": no file matches this pattern");
  EXPECT_EQ(refusal(folder / "in/.hidden/.none"), (folder / "in/.hidden/.none") + ": No such file or directory");
  fs::create_directories(folder / "empty");
  const auto empty = find_inputs({folder / "empty"}, {});
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message.find("no file in this folder has a known text extension"), std::string::npos);
  ASSERT_TRUE(prepare({.inputs = {folder / "in"}, .output = folder / "out"}));
  EXPECT_EQ(documents_of(folder / "out"), (Texts{"a name, no pattern", "a", "b", "c"}));
}

TEST(PrepareInputs, links_that_lead_nowhere_or_back_are_named) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in/deep");
  write_all(folder / "in/a.txt", "a");
  for (const char* name : {"in/.#a.txt", "in/old.pdf"}) fs::create_symlink("missing", folder / name);
  fs::create_symlink(".self", folder / "in/.self");
  const auto found = [&] { return find_inputs({folder / "in"}, {}); };
  EXPECT_EQ(value_or_throw(found()).files.size(), 1u);
  EXPECT_EQ(value_or_throw(found()).passed_over, 1) << "old.pdf";
  for (const auto& [name, target] :
       {std::pair{"in/b.txt", "missing.txt"}, {"in/c.txt", "c.txt"}, {"in/up", "."}, {"in/deep/up", "../.."}}) {
    fs::create_symlink(target, folder / name);
    const auto refused = found();
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().message.find(folder / "in"), 0u) << refused.error().message;
    EXPECT_NE(refused.error().message.find(name), std::string::npos) << refused.error().message;
    fs::remove(folder / name);
  }
  fs::create_directory(folder / "beside");
  write_all(folder / "beside/d.txt", "d");
  fs::create_directory_symlink("../beside", folder / "in/link");
  EXPECT_EQ(value_or_throw(found()).files.size(), 2u) << "a link to another folder is followed";
}

TEST(PrepareInputs, inputs_may_have_any_name_and_outputs_are_utf8) {
  const TemporaryFolder folder;
  const std::string latin1 = folder / "caf\xe9.txt";
  write_all(latin1, "text");
  PrepareOptions options{.inputs = {latin1}, .output = folder / "out", .save_seconds = 0};
  value_or_throw(prepare(options));
  EXPECT_EQ(documents_of(folder / "out"), Texts{"text"});
  options.output = folder / "caf\xe9";
  const auto refused = prepare(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  EXPECT_NE(refused.error().message.find("not UTF-8 text"), std::string::npos);
}

TEST(PrepareInputs, a_field_may_lie_in_objects_within_objects) {
  const TemporaryFolder folder;
  write_all(folder / "a.jsonl",
            "{\"a\": {\"b\": \"within\"}, \"text\": \"top\"}\n{\"a.b\": \"its own name\", \"a\": {\"b\": \"within\"}}\n"
            "{\"a\": {\"b\": \"x\", \"c.d\": {\"e\": \"deep\"}}}\n");
  const auto run = [&](const std::string& field) {
    return prepare({.inputs = {folder / "a.jsonl"},
                    .output = folder / "out",
                    .text_field = field,
                    .existing = Existing::kOverwrite});
  };
  ASSERT_TRUE(run("a.b"));
  EXPECT_EQ(documents_of(folder / "out"), (Texts{"within", "its own name", "x"}));
  const auto missing = run("a.c.d.e");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("a.jsonl:1: no field \"a.c.d.e\""), std::string::npos);
  const auto object = run("a");
  ASSERT_FALSE(object);
  EXPECT_NE(object.error().message.find("field \"a\" is an object"), std::string::npos) << object.error().message;
}

TEST(PrepareInputs, splits_divide_documents_by_their_text_alone) {
  const TemporaryFolder folder;
  write_all(folder / "a.jsonl", json_lines(0, 20000));
  write_all(folder / "b.jsonl", json_lines(-500, 1000));  // half of them are also in the other file
  const std::vector<DocumentSplit> splits = value_or_throw(parse_splits("train:0.9,val:0.07,test:0.03"));
  const auto run = [&](Texts inputs, int threads) {
    const auto summary = prepare({.inputs = std::move(inputs),
                                  .output = folder / "out",
                                  .splits = splits,
                                  .threads = threads,
                                  .existing = Existing::kOverwrite});
    EXPECT_TRUE(summary) << summary.error().message;
    std::vector<Texts> parts;
    for (const auto& output : summary.value().outputs) {
      parts.push_back(documents_of(output.prefix));
      EXPECT_EQ(output.documents, static_cast<int64_t>(parts.back().size()));
      const auto sidecar = nlohmann::json::parse(read_all(output.prefix + ".json"));
      EXPECT_EQ(sidecar["documents"], output.documents);
      EXPECT_EQ(output.prefix, folder / ("out_" + sidecar["split"]["name"].get<std::string>()));
    }
    return parts;
  };
  const auto parts = run({folder / "a.jsonl"}, 1);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size() + parts[1].size() + parts[2].size(), 20000u);
  EXPECT_NEAR(static_cast<double>(parts[0].size()) / 20000, 0.9, 0.01);
  EXPECT_NEAR(static_cast<double>(parts[1].size()) / 20000, 0.07, 0.01);
  EXPECT_EQ(run({folder / "a.jsonl"}, 3), parts);
  const auto more = run({folder / "b.jsonl", folder / "a.jsonl"}, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::equal(parts[i].rbegin(), parts[i].rend(), more[i].rbegin())) << "the old ones are where they were";
    for (const std::string& document : more[i]) EXPECT_EQ(split_of(document, splits), i);
  }
  EXPECT_FALSE(fs::exists(folder / "out.bin"));

  const std::pair<const char*, const char*> bad[] = {{"train:0.9", "add up to 0.9"},
                                                     {"a:0.5,a:0.5", "a is given twice"},
                                                     {"a:0.5,b", "\"b\"; expected NAME:SHARE"},
                                                     {"a:0.5,b:x", "\"b:x\""},
                                                     {"a:1.5", "\"a:1.5\""},
                                                     {"", "\"\""},
                                                     {"a:0.5,", "\"\""},
                                                     {"a/b:1", "\"a/b:1\""}};
  for (const auto& [text, message] : bad) {
    const auto parsed = parse_splits(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_NE(parsed.error().message.find(message), std::string::npos) << parsed.error().message;
  }
  write_all(folder / "one.txt", "one document");
  const auto none = prepare({.inputs = {folder / "one.txt"}, .output = folder / "one", .splits = splits});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("none of the 1 documents is in "), std::string::npos) << none.error().message;
  EXPECT_FALSE(fs::exists(folder / "one_train.bin"));
}

class PrepareResumed : public ::testing::Test {
 protected:
  void SetUp() override {
    write_all(folder_ / "a.jsonl", json_lines(0, 150000));  // two rounds
    write_all(folder_ / "b.jsonl", json_lines(150000, 100) + "{broken\n");
    ASSERT_GT(fs::file_size(folder_ / "a.jsonl"), size_t{4} << 20);
  }
  PrepareOptions options(const std::string& output) const {
    return {.inputs = {folder_ / "a.jsonl", folder_ / "b.jsonl"},
            .output = folder_ / output,
            .splits = {{"train", 0.9}, {"val", 0.1}},
            .save_seconds = 0};
  }
  std::string all_of(const std::string& output) const {
    std::string all;
    for (const char* end : {"_train.bin", "_train.idx", "_train.json", "_val.bin", "_val.idx", "_val.json"})
      all += read_all(folder_ / (output + end));
    return all;
  }
  const TemporaryFolder folder_;
};

TEST_F(PrepareResumed, a_run_goes_on_to_the_same_bytes) {
  ASSERT_FALSE(prepare(options("out"))) << "the broken line interrupts it";
  EXPECT_FALSE(fs::exists(folder_ / "out_train.bin"));
  ASSERT_TRUE(fs::exists(folder_ / "out.json.part"));
  // Simulates data written after the state, before the interruption.
  std::ofstream(folder_ / "out_val.bin.part", std::ios::app) << "more";
  write_all(folder_ / "b.jsonl", json_lines(150000, 100));
  auto other = options("out");
  other.text_field = "other";
  const auto refused = prepare(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("belongs to an interrupted run with other options"), std::string::npos);
  other = options("out");
  other.threads = 2;
  const auto resumed = prepare(other);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_GT(resumed.value().resumed, 10000);
  EXPECT_EQ(resumed.value().documents, 150100);
  const auto whole = prepare(options("whole"));
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(whole.value().resumed, 0);
  EXPECT_EQ(resumed.value().text_bytes, whole.value().text_bytes);
  EXPECT_TRUE(all_of("out") == all_of("whole"));
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().string().find(".part"), std::string::npos) << entry.path();
}

TEST_F(PrepareResumed, inputs_that_were_read_and_have_changed_are_refused_or_reread) {
  ASSERT_FALSE(prepare(options("out")));
  write_all(folder_ / "b.jsonl", json_lines(150000, 100));
  write_all(folder_ / "a.jsonl", json_lines(1, 150000));
  const auto refused = prepare(options("out"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("out.json.part"), std::string::npos) << refused.error().message;
  EXPECT_EQ(refused.error().code, ExitCode::kUsage);
  auto again = options("out");
  again.existing = Existing::kOverwrite;
  const auto made = prepare(again);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made.value().resumed, 0);
  ASSERT_TRUE(prepare(options("whole")));
  EXPECT_TRUE(all_of("out") == all_of("whole"));
}

// One bad line at the end of the only file: corrected in place, skipped, or with a change before it.
TEST_F(PrepareResumed, the_work_before_a_bad_line_is_kept) {
  const std::string good = json_lines(0, 30000), rest = json_lines(30000, 100), bad = "{broken\n";
  for (const bool packed : {false, true}) {
    const std::string name = folder_ / (packed ? "one.jsonl.gz" : "one.jsonl");
    const auto put = [&](const std::string& text) { write_all(name, packed ? gzip(text) : text); };
    const auto run = [&](const char* output, SkipBad skip = {}, Existing existing = Existing::kRefuse) {
      return prepare({.inputs = {name}, .output = folder_ / output, .skip_bad = skip, .existing = existing});
    };
    put(good + rest);
    ASSERT_TRUE(run(packed ? "whole_packed" : "whole"));
    const std::string whole = read_all(folder_ / (packed ? "whole_packed.bin" : "whole.bin"));
    for (const std::string output : {"mended", "forced", "skipped", "changed", "begun"}) {
      const std::string path = output + (packed ? "_packed" : "");
      put(good + bad + rest);
      const auto stopped = run(path.c_str());
      ASSERT_FALSE(stopped);
      EXPECT_NE(stopped.error().message.find("one.jsonl" + std::string(packed ? ".gz" : "") + ":30001: not valid JSON"),
                std::string::npos)
          << stopped.error().message;
      EXPECT_NE(stopped.error().message.find("; 30000 documents before it are saved"), std::string::npos);
      EXPECT_FALSE(fs::exists(folder_ / (path + ".bin")));
      if (output == "mended" || output == "forced") put(good + rest);
      if (output == "changed") put(good + json_lines(40000, 10) + rest);
      if (output == "begun") put("\n" + good + rest);
      const auto done = run(path.c_str(), {.most = output == "skipped" ? 1 : 0},
                            output == "forced" ? Existing::kOverwrite : Existing::kRefuse);
      if (output == "begun") {
        ASSERT_FALSE(done);
        EXPECT_NE(done.error().message.find("its inputs have changed from the first one on"), std::string::npos);
        continue;
      }
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(done.value().resumed, 30000);
      EXPECT_EQ(done.value().skipped, output == "skipped" ? 1 : 0);
      EXPECT_EQ(done.value().documents, output == "changed" ? 30110 : 30100);
      if (output != "changed") {
        EXPECT_TRUE(read_all(folder_ / (path + ".bin")) == whole) << path;
      }
    }
  }
}

// With several files, the last saved point before the change counts, whichever file it is in.
TEST_F(PrepareResumed, a_change_in_an_earlier_file_costs_what_comes_after_it) {
  const auto options = [&](const char* output) {
    return PrepareOptions{.inputs = {folder_ / "1.txt", folder_ / "2.txt", folder_ / "3.txt", folder_ / "4.txt"},
                          .output = folder_ / output};
  };
  for (const int file : {1, 2, 3}) write_all(folder_ / fmt::format("{}.txt", file), fmt::format("text {}", file));
  write_all(folder_ / "4.txt", "no text \xff");
  ASSERT_FALSE(prepare(options("out")));
  write_all(folder_ / "1.txt", "text 1");  // a new time, the same text
  write_all(folder_ / "2.txt", "text 2, longer");
  write_all(folder_ / "4.txt", "text 4");
  const auto resumed = prepare(options("out"));
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_EQ(resumed.value().resumed, 1);
  EXPECT_EQ(documents_of(folder_ / "out"), (Texts{"text 1", "text 2, longer", "text 3", "text 4"}));
}

// A run returns to a point before an edit and ends without saving; then the edit is undone.
TEST_F(PrepareResumed, points_after_the_one_that_a_run_went_back_to_are_dropped) {
  const std::vector<DocumentSplit> splits = {{"train", 0.9}, {"val", 0.1}};
  std::vector<Texts> texts(2);  // by split
  for (int i = 0; texts[0].size() < 7 || texts[1].empty(); ++i)
    texts[split_of(fmt::format("{:06}", i), splits)].push_back(fmt::format("{:06}", i));
  const Texts& t = texts[0];
  const auto put = [&](const char* name, const Texts& lines) {
    write_all(folder_ / name, fmt::format("{}\n", fmt::join(lines, "\n")));
  };
  const auto run = [&] {
    return prepare({.inputs = {folder_ / "1", folder_ / "2", folder_ / "3"},
                    .output = folder_ / "out",
                    .format = TextFormat::kLines,
                    .splits = splits,
                    .save_seconds = 1e9});
  };
  put("1", {t[0], t[1]});
  put("2", {t[2], t[3]});
  write_all(folder_ / "3", std::string(100, '\xff'));
  ASSERT_FALSE(run());
  put("2", {t[4], t[5]});
  put("3", {t[6]});
  const auto unsaved = run();
  ASSERT_FALSE(unsaved);
  EXPECT_NE(unsaved.error().message.find("none of the 5 documents is in"), std::string::npos)
      << unsaved.error().message;
  put("2", {t[2], t[3]});
  put("3", {t[6], texts[1][0]});
  const auto done = run();
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(documents_of(folder_ / "out_train"), (Texts{t[0], t[1], t[2], t[3], t[6]}));
}

TEST_F(PrepareResumed, a_state_that_counts_a_byte_order_mark_is_refused) {
  const std::string name = folder_ / "marked.jsonl";
  write_all(name, "\xef\xbb\xbf" + json_lines(0, 3) + "{broken\n");
  PrepareOptions options{.inputs = {name}, .output = folder_ / "out"};
  ASSERT_FALSE(prepare(options));
  write_all(name, "\xef\xbb\xbf" + json_lines(0, 3) + json_lines(3, 1));
  const std::string path = folder_ / "out.json.part";
  auto state = nlohmann::ordered_json::parse(read_all(path));  // as versions without hashes wrote it
  for (auto& mark : state["marks"]) {
    mark.erase("hash");
    mark["position"][1] = mark["position"][1].get<int64_t>() + 3;
  }
  state["inputs"][0] = {state["inputs"][0][0], state["inputs"][0][1], fs::file_size(name), 0};
  const auto modified = value_or_throw(find_inputs({name}, {})).files.at(0).modified;
  state["inputs"][0][3] = modified;
  write_all(path, state.dump());
  const auto refused = prepare(options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("counted the byte order mark at the start of " + name), std::string::npos)
      << refused.error().message;
  options.existing = Existing::kOverwrite;
  const auto done = prepare(options);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done.value().documents, 4);
}

TEST_F(PrepareResumed, a_larger_share_continues_a_run_with_too_many_bad_lines) {
  const std::string name = folder_ / "lines";
  write_all(name, std::string(5000, 'a') + "\xff\n" + std::string(10, '\xff') + "\n");
  const auto run = [&](double share) {
    return prepare(
        {.inputs = {name}, .output = folder_ / "out", .format = TextFormat::kLines, .skip_bad = {.share = share}});
  };
  for (const bool again : {false, true}) {
    const auto refused = run(0.1);
    ASSERT_FALSE(refused);
    const std::string& message = refused.error().message;
    EXPECT_NE(message.find("1 of 2 documents are bad, more than --skip-bad 0.1 allows"), std::string::npos) << message;
    EXPECT_NE(message.find("give a larger --skip-bad, or correct the lines"), std::string::npos) << message;
    EXPECT_EQ(message.find("the same command"), std::string::npos) << message;
    EXPECT_EQ(message.find("the last one: ") == std::string::npos, again) << message;
  }
  const auto done = run(0.5);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done.value().resumed, 1);
  EXPECT_EQ(done.value().skipped, 1);
  EXPECT_EQ(done.value().text_faults, 1);
}

// A run that allows fewer bad lines than were skipped would have to give up work, possibly of hours: it is refused.
TEST_F(PrepareResumed, a_smaller_number_of_bad_lines_does_not_inherit_skipped_ones) {
  const std::string name = folder_ / "c.jsonl", good = json_lines(0, 5), bad = "{broken\n";
  const auto run = [&](SkipBad skip) {
    return prepare({.inputs = {name}, .output = folder_ / "out", .skip_bad = skip, .save_seconds = 0});
  };
  const auto remove_result = [&] {
    for (const char* end : {"bin", "idx", "json"}) fs::remove(folder_ / fmt::format("out.{}", end));
  };
  for (const std::string& text : {good + bad + good + bad + good, bad + good + bad}) {
    const bool begins_bad = text[1] == 'b';
    write_all(name, text);
    ASSERT_FALSE(run({.share = 0.01}));
    for (const int most : {0, 1}) {
      const auto stricter = run({.most = most});
      ASSERT_FALSE(stricter) << most;
      const std::string expected =
          fmt::format("an interrupted run that skipped 2 bad documents, more than --skip-bad {} allows", most);
      EXPECT_NE(stricter.error().message.find(expected), std::string::npos) << stricter.error().message;
      EXPECT_FALSE(fs::exists(folder_ / "out.bin"));
    }
    // Its two remedies: nothing has been lost.
    const auto larger = run({.most = 2});
    ASSERT_TRUE(larger) << larger.error().message;
    EXPECT_EQ(larger.value().skipped, 2);
    remove_result();
    ASSERT_FALSE(run({.share = 0.01}));
    write_all(name, begins_bad ? good : good + good + good);
    const auto corrected = run({.share = 0.01});
    ASSERT_TRUE(corrected) << corrected.error().message;
    EXPECT_EQ(corrected.value().resumed, begins_bad ? 0 : 5);
    EXPECT_EQ(corrected.value().skipped, 0);
    EXPECT_EQ(corrected.value().documents, begins_bad ? 5 : 15);
    remove_result();
  }
}

TEST(PrepareInputs, a_pipe_is_refused_without_waiting_for_its_writer) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& input : {pipe, std::string(folder.path())}) {
    const auto refused = prepare({.inputs = {input}, .output = folder / "out"});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("pipe.jsonl: not a regular file"), std::string::npos);
  }
}

TEST(PrepareInputs, a_share_of_bad_lines_is_of_all_lines) {
  const TemporaryFolder folder;
  std::string bad;
  for (int i = 0; i < 1500; ++i) bad += "{broken\n";
  write_all(folder / "a.jsonl", bad + json_lines(0, 20000));
  const PrepareOptions options{.inputs = {folder / "a.jsonl"}, .output = folder / "out", .skip_bad = {.share = 0.1}};
  const auto done = prepare(options);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done.value().skipped, 1500);
  write_all(folder / "b.jsonl", bad + bad);
  const auto refused = prepare({.inputs = {folder / "b.jsonl"}, .output = folder / "b", .skip_bad = {.share = 0.1}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("b.jsonl:2001: "), std::string::npos) << refused.error().message;
}

TEST_F(PrepareResumed, parts_that_hold_less_than_was_saved_are_refused) {
  ASSERT_FALSE(prepare(options("out")));
  fs::resize_file(folder_ / "out_train.bin.part", 1000);
  const auto refused = prepare(options("out"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("out_train.bin.part: is shorter than the saved state says"),
            std::string::npos);
}

TEST(TokenFileWriter, a_second_writer_of_the_same_files_is_refused) {
  const TemporaryFolder folder;
  auto first = TokenFileWriter::create(folder / "a", TokenType::kU16);
  ASSERT_TRUE(first);
  const auto second = TokenFileWriter::create(folder / "a", TokenType::kU16);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find("a.bin.part: another process is writing it"), std::string::npos);
  first.value().add_document(std::vector<int32_t>{1, 2, 3});
  ASSERT_TRUE(first.value().finish());
  EXPECT_EQ(value_or_throw(TokenFile::open(folder / "a")).num_tokens(), 3);
}

}  // namespace
}  // namespace tri
