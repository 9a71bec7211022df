// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/rendezvous/init.h>

#include "parity/ddp_case.h"
#include "parity/ddp_record.h"
#include "parity/ddp_training.h"
#include "support/python.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

constexpr const char* kFolderVariable = "LOCKSTEP_TEST_FOLDER";
constexpr const char* kBackendVariable = "LOCKSTEP_PARITY_BACKEND";
constexpr std::chrono::seconds kWatchdog{250};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto path = (std::filesystem::temp_directory_path() / "lockstep-parity-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::system_error(errno, std::generic_category(), path);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const Scenario kTrainAllCases("ddp_parity", [] {
  at::set_num_threads(1);
  const auto context = init({.backend = std::getenv(kBackendVariable)});
  for (const auto& each : ddp_cases()) {
    write_records(record_file(std::getenv(kFolderVariable), each.name, context.rank()), train_with_ddp(each));
  }
});

void train_in_python(const std::filesystem::path& folder, int world_size) {
  {
    std::ofstream file(folder / "cases");
    for (const auto& each : ddp_cases()) file << to_words(each) << '\n';
  }
  run_python("parity/ddp_training.py", {.args = {folder.string(), std::to_string(world_size)},
                                        .env = {{"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}},
                                        .timeout = kWatchdog});
}

void train_in_cpp(const std::filesystem::path& folder, const std::string& backend, int world_size) {
  expect_all_passed(
      run_ranks(kTrainAllCases, {.world_size = world_size,
                                 .env = {{kFolderVariable, folder.string()}, {kBackendVariable, backend}},
                                 .timeout = kWatchdog}));
}

void expect_a_real_run(const std::vector<Record>& python, const DdpCase& each) {
  ASSERT_GE(python.size(), 9U);
  const auto& losses = python.front().values;
  if (!each.loader) {
    EXPECT_GE(losses.size(), static_cast<std::size_t>(each.steps));
  }
  EXPECT_TRUE(std::ranges::all_of(losses, [](float loss) { return std::isfinite(loss); }));
  if (each.bucket_cap_mb > 0 && python.back().name == "rebuilt_bucket_sizes") {
    EXPECT_GE(python.back().values.size(), 3U);
  }
}

void expect_same_bits(const std::vector<Record>& python, const std::vector<Record>& ours) {
  ASSERT_EQ(python.size(), ours.size());
  for (std::size_t i = 0; i < python.size(); ++i) EXPECT_EQ(first_difference(python[i], ours[i]), "");
}

class DdpParity : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(DdpParity, LossesWeightsBuffersAndBucketsToTheLastBit) {
  const auto& [backend, world_size] = GetParam();
  const TemporaryFolder python;
  const TemporaryFolder ours;
  train_in_python(python.path(), world_size);
  train_in_cpp(ours.path(), backend, world_size);
  ASSERT_FALSE(HasFailure());
  for (const auto& each : ddp_cases()) {
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(fmt::format("case {}, rank {} of {}", each.name, rank, world_size));
      const auto expected = read_records(record_file(python.path(), each.name, rank));
      expect_a_real_run(expected, each);
      expect_same_bits(expected, read_records(record_file(ours.path(), each.name, rank)));
    }
  }
}

// Three: sizes that are no power of two divide by way of the reciprocal. Python runs over Gloo; of two
// summands shared memory makes the same sum, of more it adds in another order than Gloo.
INSTANTIATE_TEST_SUITE_P(WorldSize, DdpParity,
                         ::testing::Values(std::pair{"gloo", 1}, std::pair{"gloo", 2}, std::pair{"gloo", 3},
                                           std::pair{"gloo", 4}, std::pair{"shm", 2}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

}  // namespace
}  // namespace lockstep::testing
