// ranks.h5: this program and h5py read what was written, whatever happens to the writer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <csignal>

#include "io/base/json.h"
#include "io/ranks/ranks_file.h"
#include "tests/io/commands.h"
#include "tests/io/forked.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

RankMesh mesh_of(int pp, int dp, int tp, const std::string& attempt) {
  RankMesh mesh{.attempt = attempt,
                .grid = unnamed_grid(pp, dp, tp),
                .schedule = "1f1b",
                .num_microbatches = 4,
                .chunks = 1,
                .stage_flops = {},
                .places = {}};
  for (int stage = 0; stage < pp; ++stage) mesh.stage_flops.push_back(1e12 * (stage + 1));
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    mesh.places.push_back(
        {fmt::format("node{:02}", rank / 4), rank % 2 == 0 ? fmt::format("0000:{:02}:00.0", rank) : ""});
  return mesh;
}

// Every number of every window is unique.
RankWindow window_of(const RankMesh& mesh, int64_t number, int64_t steps = 50) {
  RankWindow window{.first_step = number * steps + 1,
                    .last_step = (number + 1) * steps,
                    .time = 1.7e9 + static_cast<double>(number) / 8,
                    .ranks = std::vector<RankTimes>(static_cast<size_t>(mesh.world_size()))};
  for (size_t rank = 0; rank < window.ranks.size(); ++rank)
    for (size_t q = 0; q < kNumRankQuantities; ++q)
      window.ranks[rank].seconds[q] = static_cast<float>(number + 1) + static_cast<float>(rank * 64 + q) / 65536;
  return window;
}

void expect_equal(const RankWindow& a, const RankWindow& b) {
  EXPECT_EQ(a.first_step, b.first_step);
  EXPECT_EQ(a.last_step, b.last_step);
  EXPECT_EQ(a.time, b.time);
  EXPECT_EQ(a.ranks, b.ranks);
}

void expect_windows(const std::string& path, int attempt, const RankMesh& mesh, int64_t count) {
  const RanksReader reader = value_or_throw(RanksReader::open(path));
  ASSERT_GT(reader.num_attempts(), attempt);
  EXPECT_EQ(reader.mesh(attempt), mesh);
  ASSERT_EQ(value_or_throw(reader.num_windows(attempt)), count);
  for (int64_t w = 0; w < count; ++w) expect_equal(value_or_throw(reader.read(attempt, w)), window_of(mesh, w));
}

TEST(RanksFile, a_mesh_may_have_other_axes) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  RankMesh mesh = mesh_of(2, 1, 4, "first");
  mesh.grid = RankGrid{{{"tp", 2}, {"x", 2}, {"dp", 1}, {"pp", 2}}};
  RanksWriter writer = value_or_throw(RanksWriter::open(path, mesh));
  value_or_throw(writer.append(window_of(mesh, 0)));
  expect_windows(path, 0, mesh, 1);
  EXPECT_EQ(to_string_place(mesh, 7).find("rank 7 [pp1 dp0 x1 tp1]"), 0u);
}

TEST(RanksFile, a_file_that_does_not_name_its_axes_is_read) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh mesh = mesh_of(2, 3, 2, "first");
  {
    RanksWriter writer = value_or_throw(RanksWriter::open(path, mesh));
    value_or_throw(writer.append(window_of(mesh, 0)));
  }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  EXPECT_GE(H5Adelete_by_name(file, "/attempt_0001", "axes", H5P_DEFAULT), 0);
  EXPECT_GE(H5Fclose(file), 0);
  expect_windows(path, 0, mesh, 1);
}

TEST(RanksFile, a_file_of_a_newer_release_is_refused_and_one_without_a_schema_is_read) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh mesh = mesh_of(1, 2, 1, "first");
  {
    RanksWriter writer = value_or_throw(RanksWriter::open(path, mesh));
    value_or_throw(writer.append(window_of(mesh, 0)));
  }
  hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  const hid_t schema = H5Aopen(file, "schema", H5P_DEFAULT);
  const int64_t newer = kRanksSchema + 1;
  EXPECT_GE(H5Awrite(schema, H5T_NATIVE_INT64, &newer), 0);
  H5Aclose(schema);
  EXPECT_GE(H5Fclose(file), 0);
  const auto refused = RanksReader::open(path);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(path + ": a newer release of Trireme wrote it (schema 2)"), std::string::npos)
      << refused.error().message;
  file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  EXPECT_GE(H5Adelete(file, "schema"), 0);
  EXPECT_GE(H5Fclose(file), 0);
  expect_windows(path, 0, mesh, 1);
}

TEST(RanksFile, windows_of_several_attempts_are_read_back) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh first = mesh_of(2, 2, 2, "20260101"), second = mesh_of(1, 4, 1, "20260102");
  {
    auto writer = value_or_throw(RanksWriter::open(path, first));
    for (int64_t w = 0; w < 300; ++w)
      value_or_throw(writer.append(window_of(first, w)));  // exceeds the capacity of the file, so that it grows
  }
  auto writer = value_or_throw(RanksWriter::open(path, second));
  const RanksReader early = value_or_throw(RanksReader::open(path));
  EXPECT_EQ(value_or_throw(early.num_windows(1)), 0);
  for (int64_t w = 0; w < 3; ++w) value_or_throw(writer.append(window_of(second, w)));
  EXPECT_EQ(value_or_throw(early.num_windows(1)), 3) << "windows that came since it was opened";
  expect_windows(path, 0, first, 300);
  expect_windows(path, 1, second, 3);
  const auto last = value_or_throw(early.last(1, 2));
  ASSERT_EQ(last.size(), 2u);
  expect_equal(last[1], window_of(second, 2));
}

TEST(RanksFile, a_full_file_keeps_means_of_neighbouring_windows) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh mesh = mesh_of(2, 1, 1, "a");
  const int64_t most = 16384;  // bytes: about 130 windows
  auto writer = value_or_throw(RanksWriter::open(path, mesh, most));
  const int64_t count = 1000;
  double sum = 0;
  for (int64_t w = 0; w < count; ++w) {
    RankWindow window = window_of(mesh, w);
    window.ranks[1][RankQuantity::kCompute] = static_cast<float>(w % 7);
    sum += 50.0 * static_cast<double>(w % 7);
    value_or_throw(writer.append(window));
  }
  const RanksReader reader = value_or_throw(RanksReader::open(path));
  const int64_t kept = value_or_throw(reader.num_windows(0));
  EXPECT_LT(kept * 2 * kNumRankQuantities * 4, most);
  EXPECT_GT(kept, 40);
  double kept_sum = 0;
  int64_t next = 1;
  for (int64_t w = 0; w < kept; ++w) {
    const RankWindow window = value_or_throw(reader.read(0, w));
    EXPECT_EQ(window.first_step, next);
    next = window.last_step + 1;
    kept_sum += static_cast<double>(window.steps()) * window.ranks[1][RankQuantity::kCompute];
  }
  EXPECT_EQ(next, count * 50 + 1);
  EXPECT_NEAR(kept_sum, sum, 1e-4 * sum);
}

// Writers are killed at any moment: the file exists and is valid up to the last complete window, and a restarted writer
// continues after it.
TEST(RanksFile, a_killed_writer_leaves_a_file_that_is_read_and_goes_on) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh mesh = mesh_of(2, 2, 1, "killed");
  for (int attempt = 0; attempt < 12; ++attempt) {
    // Writes the same windows repeatedly, so that it is busy when it is killed.
    const pid_t child = ::fork();
    if (child == 0) {
      silence_stderr();
      auto writer = RanksWriter::open(path, mesh);
      for (int64_t w = 0; writer; ++w)
        if (!writer.value().append(window_of(mesh, w)) || w > 5000) break;
      ::_exit(0);
    }
    while (attempt > 2 && !std::filesystem::exists(path)) ::usleep(1000);
    ::usleep(static_cast<useconds_t>(1500 * (attempt + 1)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    auto reader = RanksReader::open(path);
    if (!reader) {
      ASSERT_EQ(reader.error().os_error, ENOENT) << reader.error().message;
      continue;
    }
    for (int a = 0; a < reader.value().num_attempts(); ++a) {
      const int64_t count = value_or_throw(reader.value().num_windows(a));
      for (const int64_t w : {int64_t{0}, count / 2, count - 1})
        if (w >= 0 && w < count) expect_equal(value_or_throw(reader.value().read(a, w)), window_of(mesh, w));
    }
  }
  auto writer = value_or_throw(RanksWriter::open(path, mesh));
  value_or_throw(writer.append(window_of(mesh, 0)));
  const RanksReader reader = value_or_throw(RanksReader::open(path));
  EXPECT_GT(reader.num_attempts(), 1);
  EXPECT_EQ(value_or_throw(reader.num_windows(reader.num_attempts() - 1)), 1);
}

TEST(RanksFile, a_file_that_cannot_be_read_is_renamed_and_stops_no_run) {
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh mesh = mesh_of(1, 2, 1, "whole");
  {
    auto writer = value_or_throw(RanksWriter::open(path, mesh));
    value_or_throw(writer.append(window_of(mesh, 0)));
  }
  const std::string whole = read_all(path);
  for (const std::string& damaged : {std::string(), std::string("no HDF5"), whole.substr(0, whole.size() / 2),
                                     std::string(64, 'x') + whole.substr(64)}) {
    write_all(path, damaged);
    std::filesystem::remove(path + ".damaged");
    EXPECT_FALSE(RanksReader::open(path).ok());
    auto writer = value_or_throw(RanksWriter::open(path, mesh));
    value_or_throw(writer.append(window_of(mesh, 0)));
    expect_windows(path, 0, mesh, 1);
    EXPECT_EQ(read_all(path + ".damaged"), damaged);
  }
}

TEST(RanksFile, h5py_reads_it_while_it_grows) {
  const std::string python = python_with_h5py();
  if (python.empty() && std::getenv("TRIREME_EXPECT_CLIENTS") != nullptr) FAIL() << "no h5py";
  if (python.empty()) GTEST_SKIP() << "skipped: no h5py";
  const TemporaryFolder folder;
  const std::string path = folder / "ranks.h5";
  const RankMesh mesh = mesh_of(2, 3, 2, "20260101");
  auto writer = value_or_throw(RanksWriter::open(path, mesh));
  for (int64_t w = 0; w < 5; ++w) value_or_throw(writer.append(window_of(mesh, w)));
  const std::string program = fmt::format(R"(
import h5py, json
g = h5py.File("{}", "r")["attempt_0001"]
n = int((g["last_step"][:] > 0).sum())
q = g.attrs["quantities"].decode().split(",").index("compute")
print(json.dumps([n, g["times"].shape[1:], float(g["times"][4, 1, 2, 0, q]), g["host"][1, 2, 0].decode(),
                  g["gpu"][1, 2, 0].decode(), g.attrs["mesh"].tolist(), float(g["time"][1]), g["stage_flops"][1]]))
)",
                                          path);
  write_all(folder / "look.py", program);
  const std::string text = output_of(fmt::format("cd / && {} {}", python, folder / "look.py"));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << text;
  EXPECT_EQ(json[0], 5);
  EXPECT_EQ(json[1], nlohmann::json({2, 3, 2, kNumRankQuantities}));
  EXPECT_EQ(json[2].get<float>(), window_of(mesh, 4).ranks[10][RankQuantity::kCompute]);
  EXPECT_EQ(json[3], mesh.places[10].host);
  EXPECT_EQ(json[4], mesh.places[10].gpu);
  EXPECT_EQ(json[5], nlohmann::json({2, 3, 2}));
  EXPECT_EQ(json[6], window_of(mesh, 1).time);
  EXPECT_EQ(json[7], 2e12);
}

}  // namespace
}  // namespace tri
