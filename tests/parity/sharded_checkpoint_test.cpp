// SPDX-License-Identifier: BSD-3-Clause
// Tensors in parts on several ranks: written by some, read by another number of them, and by Python.
#include <csignal>
#include <sstream>
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/sharded_tensors.h"
#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace dcp = distributed_checkpoint;
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

std::string backend_of_run() { return std::getenv("BACKEND"); }
fs::path folder_of_run() { return std::getenv("FOLDER"); }

Dict contents_of(const Context& context) {
  return {{"model", sharded_tensors(whole_tensors(), context.rank(), context.world_size())},
          {"plain", torch::ones({3})},
          {"epoch", 3}};
}

const Scenario writes("write parts of tensors", [] {
  const auto context = init({.backend = backend_of_run()});
  // Twice: the second save replaces the first.
  dcp::save(Dict{{"model", Dict{{"rows", torch::zeros({2})}}}}, folder_of_run() / "cpp");
  dcp::save(contents_of(context), folder_of_run() / "cpp");
});

const Scenario reads("read different parts of tensors", [] {
  const auto context = init({.backend = backend_of_run()});
  const auto model = sharded_tensors(whole_tensors(), context.rank(), context.world_size());
  Dict there{{"model", zeros_like(model)}, {"plain", torch::zeros({3})}, {"epoch", 0}};
  dcp::load(there, folder_of_run() / "cpp");
  EXPECT_TRUE(equal(there["model"], Value(model)));
  EXPECT_TRUE(equal(there["plain"], torch::ones({3})));
  EXPECT_EQ(there["epoch"].as_int(), 3);
});

void run_on(const Scenario& scenario, const fs::path& folder, const char* backend, int ranks) {
  expect_all_passed(
      run_ranks(scenario, {.world_size = ranks, .env = {{"FOLDER", folder.string()}, {"BACKEND", backend}}}));
}

class ShardedCheckpoint : public ::testing::TestWithParam<std::tuple<const char*, int>> {};
std::size_t data_files_in(const fs::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("__")) ++count;
  }
  return count;
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShardedCheckpoint,
                         ::testing::Values(std::tuple("gloo", 2), std::tuple("shm", 2), std::tuple("gloo", 3),
                                           std::tuple("shm", 4)));

TEST_P(ShardedCheckpoint, IsReadWholeAndInDifferentPartsByBothLanguages) {
  const auto& [backend, ranks] = GetParam();
  const TempFolder folder;
  save(whole_tensors(), folder.path() / "whole.pt");
  run_on(writes, folder.path(), backend, ranks);
  EXPECT_EQ(run_python("parity/sharded_checkpoint.py",
                       {.args = {"read", folder.path().string()}, .timeout = std::chrono::seconds(200)}),
            "same\n");
  auto whole = dcp::load(folder.path() / "cpp");
  for (const auto& [name, tensor] : whole_tensors()) {
    EXPECT_TRUE(equal(whole["model"][name], tensor.as_tensor().contiguous())) << repr(name);
  }
  for (const int others : {1, 3, 4}) run_on(reads, folder.path(), backend, others);
  dcp::Reader(folder.path() / "cpp").verify();
  // No file of the previous save remains.
  EXPECT_EQ(data_files_in(folder.path() / "cpp"), static_cast<std::size_t>(ranks));
}

const Scenario refuses("incomplete parts", [] {
  const auto context = init({.backend = backend_of_run()});
  const auto folder = folder_of_run() / "refused";
  const int rank = context.rank();
  dcp::save(Dict{{"epoch", 1}}, folder);
  const auto refused = [&](Numbers size, const at::Tensor& tensor, const Numbers& offsets) {
    const ShardedTensor part{.size = std::move(size),
                             .dtype = torch::kFloat,
                             .local_shards = {{.tensor = tensor, .shard_offsets = offsets}}};
    const auto error = error_of([&] { dcp::save(Dict{{"w", part}}, folder); });
    const auto all = context.group().all_gather_object(error);
    EXPECT_EQ(all[0], all[1]) << "not the same error on all ranks";
    EXPECT_THAT(error, HasSubstr("'w'"));
    return error;
  };
  EXPECT_THAT(refused({6}, torch::ones({4}), {rank * 2}),
              HasSubstr("the parts [4] at [0] and [4] at [2] overlap"));
  EXPECT_THAT(refused({6}, torch::ones({2}), {rank * 4}), HasSubstr("4 of its 6 elements"));
  EXPECT_THAT(refused({6, 2}, torch::ones({3, 1}), {rank * 3, 0}), HasSubstr("6 of its 12 elements"));
  EXPECT_THAT(refused({6 + rank}, torch::ones({3}), {rank * 3}),
              AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  EXPECT_THAT(refused({6}, torch::ones({3}), {rank * 4}),
              AllOf(HasSubstr("rank 1: "), HasSubstr("not within [6]")));
  EXPECT_THAT(refused({6}, torch::ones({3}, rank == 1 ? torch::kLong : torch::kFloat), {rank * 3}),
              HasSubstr("Long"));
  EXPECT_THAT(error_of([&] {
                dcp::save(Dict{{"w", rank == 0 ? Value(torch::ones({3})) : Value("text")}}, folder);
              }),
              HasSubstr("'w' is a tensor of Float [3] on rank 0, but no tensor on rank 1"));
  // One rank cannot write, since its file size is limited: both ranks fail, and the existing files stay.
  const ShardedTensor half{.size = {2000},
                           .dtype = torch::kFloat,
                           .local_shards = {{.tensor = torch::ones({1000}), .shard_offsets = {rank * 1000}}}};
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit whole{};
  ::getrlimit(RLIMIT_FSIZE, &whole);
  const rlimit little{.rlim_cur = 100, .rlim_max = whole.rlim_max};
  if (rank == 1) ::setrlimit(RLIMIT_FSIZE, &little);
  const auto error = error_of([&] { dcp::save(Dict{{"w", half}}, folder); });
  ::setrlimit(RLIMIT_FSIZE, &whole);
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1: "), HasSubstr("too large")));
  EXPECT_TRUE(equal(dcp::load(folder), Dict{{"epoch", 1}}));
  Dict wanted{{"epoch", 0}, {"w", half}};
  EXPECT_THAT(error_of([&] { dcp::load(wanted, folder); }), HasSubstr("no entry 'w'"));
  EXPECT_EQ(wanted["epoch"].as_int(), 0);
  // Without the other ranks.
  const auto own = folder_of_run() / ("rank" + std::to_string(rank));
  if (rank == 1) dcp::save(Dict{{"epoch", 1}}, own, {.no_dist = true});
  if (rank == 1) dcp::load(wanted = Dict{{"epoch", 0}}, own, {.no_dist = true});
  EXPECT_EQ(wanted["epoch"].as_int(), rank);
  EXPECT_THAT(error_of([&] { dcp::load(wanted, own, {.process_group = context.group(), .no_dist = true}); }),
              HasSubstr("no_dist and process_group are set"));
});

TEST(ShardedCheckpoint, OverlappingOrMissingPartsAreRejectedOnAllRanks) {
  const TempFolder folder;
  run_on(refuses, folder.path(), "gloo", 2);
}

TEST(ShardedCheckpoint, ASingleFileDoesNotHoldParts) {
  EXPECT_THAT(error_of([] {
                save_bytes(Dict{{"w", ShardedTensor{.size = {3}, .dtype = torch::kFloat}}});
              }),
              HasSubstr("ShardedTensor(float32, [3], 0 shards here)"));
}

Numbers numbers_in(const std::string& text) {
  std::istringstream stream(text);
  Numbers numbers;
  for (std::int64_t number = 0; stream >> number;) numbers.push_back(number);
  return numbers;
}

TEST(ShardedCheckpoint, PartsHaveDTensorsOffsets) {
  std::istringstream lines(run_python("parity/sharded_checkpoint.py", {.args = {"layouts"}}));
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    std::istringstream columns(line);
    std::vector<Numbers> fields;
    for (std::string field; std::getline(columns, field, '|');) fields.push_back(numbers_in(field));
    fields.resize(6);
    std::vector<std::optional<std::int64_t>> placements;
    for (const auto dimension : fields[3]) {
      placements.push_back(dimension < 0 ? std::nullopt : std::optional(dimension));
    }
    const auto [shape, offset] =
        dcp::compute_local_shape_and_global_offset(fields[0], fields[1], fields[2], placements);
    EXPECT_EQ(shape, fields[4]) << line;
    EXPECT_EQ(offset, fields[5]) << line;
  }
  EXPECT_GT(cases, 30);
}

}  // namespace
}  // namespace lockstep::testing
