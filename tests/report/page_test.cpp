#include "lib/report/page.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

#include "lib/report/curves.h"
#include "tests/io/temporary_folder.h"
#include "tests/report/synthetic/synthetic_run.h"

namespace tri {
namespace {

using Json = nlohmann::json;

// Strings that could end a page or start a program in it.
const std::vector<std::string> kHostile = {"</script><script>alert(1)</script>",
                                           "<img src=x onerror=alert(1)>",
                                           "\"' onmouseover='alert(1)",
                                           "]]>",
                                           "<!--",
                                           "&lt;b&gt;&#0;",
                                           "{{data}}",
                                           "\\u003c/script\\u003e",
                                           "javascript:alert(1)",
                                           "\xff\xfe no UTF-8",
                                           "\x1b[2J\x07 bells",
                                           "line\nline\r\n\tline",
                                           "\xe2\x80\xa8 U+2028",
                                           "${alert(1)}",
                                           "')TRIREME_PAGE\""};

RunData hostile_run() {
  RunData run{.dir = kHostile[0], .name = kHostile[1]};
  double time = 1763800000;
  for (const std::string& text : kHostile) {
    run.config.push_back({"model." + text, text});
    run.config.push_back({text, text});
    run.incidents.push_back({.time = time, .step = 1, .kind = text, .text = text});
    run.changes.push_back({.time = time, .start = 1, .name = text, .before = text, .after = text});
    run.remarks.push_back(text);
    run.metrics.not_finite.push_back({.step = 1, .time = time, .places = text});
    RunEvent start{.time = time++, .kind = RunEventKind::kStart, .host = text, .text = text};
    start.fields["version"] = text;
    run.events.push_back(start);
  }
  run.config.push_back({"run.device", kHostile[0]});
  run.metrics.take(R"({"step":1,"loss":2.5,"step_ms":10,"time":1763800001})");
  return run;
}

std::string page_of(const std::vector<RunData>& runs) {
  return report_page(runs, {.made = 1763900000, .version = kHostile[0]}, kHostile[0] + kHostile[9] + kHostile[10]);
}

// Elements open and close in pairs, attributes are quoted, brackets are escaped; the bodies of scripts and styles end
// at their closing tags, as in browsers. Returns what is wrong, and the names of the elements in `seen`.
std::string ill_formed(const std::string& page, std::multiset<std::string>& seen) {
  static const std::regex tag(R"(<(/?)([a-z0-9]+)((?:\s+[a-zA-Z-]+(?:="[^"<]*")?)*)\s*(/?)>)");
  std::vector<std::string> open;
  size_t at = 0;
  while (at < page.size()) {
    const size_t next = page.find('<', at);
    const std::string text = page.substr(at, next - at);
    if (text.find('>') != text.npos) return "a bare > in: " + text.substr(0, 80);
    static const std::regex reference(R"(&(?!(amp|lt|gt|quot|#39);))");
    if (std::regex_search(text, reference)) return "a bare & in: " + text.substr(0, 80);
    if (next == page.npos) break;
    if (page.compare(next, 9, "<!DOCTYPE") == 0) {
      at = page.find('>', next) + 1;
      continue;
    }
    std::smatch found;
    const std::string rest = page.substr(next, 600);
    if (!std::regex_search(rest, found, tag, std::regex_constants::match_continuous))
      return "no tag: " + rest.substr(0, 80);
    at = next + static_cast<size_t>(found.length());
    const std::string name = found[2];
    if (found[1] == "/") {
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    } else if (found[4] != "/") {
      open.push_back(name);
      seen.insert(name);
      if (name == "script" || name == "style") at = page.find("</" + name, at);
      if (at == page.npos) return name + " does not end";
    } else {
      seen.insert(name);
    }
  }
  return open.empty() ? "" : open.back() + " is never closed";
}

std::string between(const std::string& page, const std::string& begin, const std::string& end) {
  const size_t from = page.find(begin) + begin.size();
  return page.substr(from, page.find(end, from) - from);
}

TEST(ReportPage, is_well_formed_and_has_no_element_but_its_own) {
  std::multiset<std::string> plain, hostile;
  EXPECT_EQ(ill_formed(page_of({RunData{.dir = "/a", .name = "a"}}), plain), "");
  EXPECT_EQ(ill_formed(page_of({hostile_run()}), hostile), "");
  EXPECT_EQ(plain, hostile) << "a text from a file has become an element";
  EXPECT_EQ(plain.count("script"), 2u);
}

TEST(ReportPage, the_check_of_forms_sees_what_is_wrong) {
  std::multiset<std::string> seen;
  for (const char* wrong :
       {"<p>", "<p></b></p>", "<p>a > b</p>", "<p>a & b</p>", "<p class=x></p>", "<p>a < b</p>", "<script>"})
    EXPECT_NE(ill_formed(wrong, seen), "") << wrong;
  EXPECT_EQ(ill_formed("<p class=\"x\">a &amp; b<br /></p>", seen), "");
}

TEST(ReportPage, loads_nothing) {
  const std::string page = page_of({RunData{.dir = "/a", .name = "a"}});
  std::string bare = page;
  const std::string names = "http://www.w3.org/2000/svg";  // the name of a language, which is not loaded
  for (size_t at; (at = bare.find(names)) != bare.npos;) bare.erase(at, names.size());
  for (const char* load : {"http:", "https:", "src=", "@import", "url(\"", "fetch(", "XMLHttpRequest", "WebSocket",
                           "import(", "<link", "<iframe", "innerHTML", "eval(", "document.write"})
    EXPECT_EQ(bare.find(load), bare.npos) << load;
  EXPECT_NE(page.find("default-src 'none'"), page.npos) << "the browser knows it as well";
}

TEST(ReportPage, texts_from_files_arrive_unchanged_except_for_invalid_utf8) {
  const std::string page = page_of({hostile_run()});
  const Json data = Json::parse(between(page, "<script type=\"application/json\" id=\"data\">", "</script>"));
  const Json& run = data["runs"][0];
  EXPECT_EQ(run["name"], kHostile[1]);
  for (size_t i = 0; i < kHostile.size(); ++i) {
    if (kHostile[i].front() == '\xff') continue;
    EXPECT_EQ(run["incidents"]["rows"][i][3], kHostile[i]);
    EXPECT_EQ(run["config"]["fields"][2 * i][1], kHostile[i]);
  }
  EXPECT_EQ(page_data({hostile_run()}, {}).find_first_of("<>&"), std::string::npos);
}

TEST(ReportPage, data_of_a_run) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.steps = 300, .restarts = 2, .windows = 6});
  const auto run = read_run_data(folder / "run");
  ASSERT_TRUE(run) << run.error().message;
  const Json all = Json::parse(page_data({run.value()}, {.made = 5, .version = "v"}));
  const Json& data = all["runs"][0];
  EXPECT_EQ(data["num_steps"], 300);
  EXPECT_EQ(data["x"]["step"].size(), 300u) << "as many points as steps, where there are few";
  EXPECT_FALSE(data["curves"]["loss"].contains("low"));
  EXPECT_EQ(data["curves"]["mfu"]["mean"].size(), 300u);
  for (const char* of_gpu : {"gpu_watts", "gpu_ghz", "gpu_gib", "gpu_celsius"})
    EXPECT_EQ(data["curves"][of_gpu]["mean"].size(), 300u) << of_gpu;
  EXPECT_EQ(data["curves"]["gpu_gib"]["mean"][0], 71);
  EXPECT_EQ(data["parts"].size(), 8u);
  EXPECT_EQ(data["lost"].size(), 2u);
  EXPECT_EQ(data["restarts"].size(), 2u);
  EXPECT_EQ(data["evaluations"].size(), 7u);
  EXPECT_EQ(data["checkpoints"]["count"], run.value().metrics.checkpoints.size());
  EXPECT_EQ(data["wall"]["attempts"].size(), 3u);
  EXPECT_EQ(data["config"]["changes"][0][2], "lr.peak");
  double slots = 0, sums = 0;
  for (const Json& of_category : data["wall"]["slots"])
    for (const Json& seconds : of_category) slots += seconds.get<double>();
  for (const Json& sum : data["wall"]["sums"]) sums += sum["seconds"].get<double>();
  EXPECT_NEAR(slots, sums, 0.01 * sums);
  EXPECT_NEAR(sums, data["wall"]["end"].get<double>() - data["wall"]["begin"].get<double>(), 1);
  double covered = 0;
  for (const Json& interval : data["wall"]["intervals"])
    covered += interval[1].get<double>() - interval[0].get<double>();
  EXPECT_NEAR(covered, data["wall"]["end"].get<double>() - data["wall"]["begin"].get<double>(), 1)
      << "no gaps in lanes";
  size_t lost = 0, equal = 0;
  for (const Json& piece : data["lost"]) lost += piece["step"].size();
  EXPECT_EQ(lost, run.value().metrics.lost.size()) << "as few as these are all shown";
  for (size_t i = 1; i < data["wall"]["intervals"].size(); ++i)
    equal += data["wall"]["intervals"][i][2] == data["wall"]["intervals"][i - 1][2];
  EXPECT_LE(equal, 2u) << "only at the starts of the second and third attempt";
  EXPECT_EQ(data["wall"]["attempts"][0]["code"], 4);
  EXPECT_EQ(data["wall"]["attempts"][2]["code"], 0);
  EXPECT_TRUE(data["story"][1][1].get<bool>()) << data["story"];
  EXPECT_EQ(data["recent"]["steps"], 100);
  EXPECT_EQ(data["incidents"]["rows"][0][4], true);
  EXPECT_EQ(data["heat"]["slices"].size(), 6u);
  EXPECT_EQ(data["heat"]["hosts"]["names"], Json::array({"node0000"}));
  for (const Json& quantity : data["heat"]["quantities"])
    EXPECT_EQ(quantity["bytes"][0].get<std::string>().size(), 12u);
}

TEST(ReportPage, loads_of_experts) {
  TemporaryFolder folder;
  write_synthetic_run(folder / "run", {.steps = 80, .windows = 0, .expert_layers = 3, .experts = 5});
  const auto run = read_run_data(folder / "run");
  ASSERT_TRUE(run) << run.error().message;
  const Json experts = Json::parse(page_data({run.value()}, {}))["runs"][0]["experts"];
  EXPECT_EQ(experts["layers"], Json::array({1, 2, 3}));
  EXPECT_EQ(experts["experts"], 5);
  EXPECT_EQ(experts["slices"].size(), 40u);
  EXPECT_EQ(experts["slices"].back()[0], 80);
  const std::string bytes = experts["bytes"].back();
  EXPECT_EQ(bytes.size(), 20u) << "15 bytes in base64";
  // In the last group of three bytes, the last expert of the last layer has no rows.
  EXPECT_EQ(bytes.back(), 'A');
  EXPECT_EQ(experts["balances"].back()[2][1], 1);
  EXPECT_GT(experts["balances"].back()[2][0], 2.0);
  const auto facts = run_facts(run.value());
  EXPECT_TRUE(std::ranges::any_of(facts, [](const RunFact& fact) {
    return fact.label == "Experts" && fact.value.find("3 dead (in 3 layers)") != std::string::npos;
  }));
  EXPECT_TRUE(Json::parse(page_data({hostile_run()}, {}))["runs"][0]["experts"].is_null()) << "a dense model";
}

TEST(ReportPage, data_contain_every_axis_of_the_ranks) {
  TemporaryFolder folder;
  for (const int x : {1, 2}) {
    const std::string dir = folder / fmt::format("x{}", x);
    write_synthetic_run(dir, {.steps = 20, .pp = 2, .dp = 2 / x, .tp = 2, .x = x, .windows = 2, .hang = true});
    const auto run = read_run_data(dir);
    ASSERT_TRUE(run) << run.error().message;
    const Json data = Json::parse(page_data({run.value()}, {}))["runs"][0];
    Json axes = Json::array({Json::array({"tp", 2}), Json::array({"dp", 2 / x}), Json::array({"pp", 2})});
    if (x > 1) axes.push_back(Json::array({"x", x}));
    EXPECT_EQ(data["heat"]["axes"], axes);
    EXPECT_EQ(data["waits"][0]["axes"], axes);
  }
}

TEST(ReportPage, stays_small_however_long_the_run) {
  RunData run{.dir = "/long", .name = "long"};
  for (int step = 1; step <= 50000; ++step) {
    run.metrics.take(
        fmt::format(R"({{"step":{},"tokens":{},"loss":{},"grad_norm":0.123456789,"lr":0.000123456789,)"
                    R"("step_ms":1234.56789,"tokens_per_s":98765.4321,"mfu":0.543219876,"imbalance":0.125,)"
                    R"("compute_ms":987.654321,"tp_ms":12.3456,"time":{}}})",
                    step, 1000 * step, 2 + 1.0 / step, 1763800000 + step));
    if (step % 50 == 0)
      run.metrics.take(fmt::format(R"({{"restart":1,"step":{},"lost_steps":5,"time":1}})", step -= 5));
    if (step % 50 == 45) step += 5;
  }
  for (int i = 0; i < 20000; ++i)
    run.incidents.push_back({.time = 1.0 * i, .kind = "failure", .text = "the same again"});
  const std::string data = page_data({run}, {});
  EXPECT_LT(data.size(), 900000u);
  const Json made = Json::parse(data)["runs"][0];
  EXPECT_EQ(made["incidents"]["count"], 20000);
  EXPECT_EQ(made["incidents"]["rows"].size(), 400u) << "the newest";
  EXPECT_LE(made["x"]["step"].size(), 1600u);
  EXPECT_EQ(made["curves"]["imbalance"]["mean"][0], 0.125);
  const Json& loss = made["curves"]["loss"];
  for (size_t i = 0; i < loss["mean"].size(); ++i) {
    ASSERT_LE(loss["low"][i], loss["mean"][i]);
    ASSERT_LE(loss["mean"][i], loss["high"][i]);
  }
}

TEST(Curves, points_share_out_all_items) {
  for (const size_t count : {0u, 1u, 7u, 100u, 1001u}) {
    const Points points = points_of(count, 10);
    EXPECT_EQ(points.size(), std::min<size_t>(count, 10));
    size_t next = 0;
    for (const auto& [begin, end] : points) {
      EXPECT_EQ(begin, next);
      EXPECT_LT(begin, end);
      next = end;
    }
    EXPECT_EQ(next, count);
  }
}

TEST(Curves, unknown_values_count_for_nothing) {
  const std::vector<double> values = {1, kUnknown, 3, kUnknown, kUnknown, kUnknown};
  const Curve curve = curve_of(std::span<const double>(values), points_of(6, 2), [](double v) { return v; });
  EXPECT_EQ(curve.mean[0], 2);
  EXPECT_EQ(curve.low[0], 1);
  EXPECT_EQ(curve.high[0], 3);
  EXPECT_TRUE(std::isnan(curve.mean[1]));
}

}  // namespace
}  // namespace tri
