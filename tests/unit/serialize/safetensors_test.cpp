// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <fstream>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/safetensors.h>

#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using safetensors::load_file;
using safetensors::SafeOpen;
using safetensors::save_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Dict small() { return {{"weight", at::arange(6.0).view({2, 3})}, {"bias", at::ones({3}, at::kHalf)}}; }

void write_file(const std::string& file, const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::ofstream(file, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << header << data;
}

std::string complaint_about(const Dict& tensors, const safetensors::SaveFileOptions& options = {}) {
  const TempFolder folder;
  const auto file = folder.file("out.safetensors");
  try {
    save_file(tensors, file, options);
    ADD_FAILURE() << "saved";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), StartsWith(file + ": "));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    return error.what();
  }
  return "";
}

TEST(Safetensors, RoundTrip) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  save_file(small(), file, {.metadata = {{"format", "pt"}}});
  EXPECT_TRUE(equal(load_file(file), small()));
  EXPECT_TRUE(equal(load_file(file, {.mmap = true}), small()));
}

TEST(Safetensors, OnTheMetaDeviceHaveShapesOnly) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  save_file(small(), file);
  const auto tensors = load_file(file, {.map_location = at::kMeta});
  const auto& weight = tensors.at("weight").as_tensor();
  EXPECT_TRUE(weight.is_meta());
  EXPECT_EQ(weight.sizes(), (std::vector<std::int64_t>{2, 3}));
}

// A file of this size cannot be read in the time and memory of a test.
TEST(SafeOpen, ReadsOnlyTheHeader) {
  const TempFolder folder;
  const auto file = folder.file("large.safetensors");
  constexpr std::uint64_t bytes = 1ULL << 36;
  std::string header = R"({"x":{"dtype":"F32","shape":[1024,1024,16384],"data_offsets":[0,68719476736]}})";
  header.resize(96, ' ');  // the data starts at a multiple of 8, but not of 16
  write_file(file, header, "");
  std::filesystem::resize_file(file, sizeof(std::uint64_t) + header.size() + bytes);
  const SafeOpen opened(file);
  EXPECT_EQ(opened.nbytes("x"), bytes);
  EXPECT_EQ(opened.shape("x"), (std::vector<std::int64_t>{1024, 1024, 16384}));
  EXPECT_EQ(opened.dtype("x"), at::kFloat);
  EXPECT_EQ(opened.get_tensor("x")[1000][1000][10000].item<float>(), 0);
}

TEST(SafeOpen, ReturnsTensorsThatOutliveIt) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  save_file(small(), file, {.metadata = {{"format", "pt"}, {"a", "b"}}});
  at::Tensor weight;
  {
    const SafeOpen opened(file);
    EXPECT_THAT(opened.keys(), ElementsAre("weight", "bias"));  // the wider dtype first
    EXPECT_EQ(opened.metadata(), (safetensors::Metadata{{"format", "pt"}, {"a", "b"}}));
    EXPECT_FALSE(opened.contains("nothing"));
    weight = opened.get_tensor("weight");
  }
  EXPECT_TRUE(weight.equal(small().at("weight").as_tensor()));
  weight.fill_(7);  // writes to a private page, not to the file
  EXPECT_TRUE(equal(load_file(file), small()));
}

TEST(SafeOpen, ListsTheNamesWhenATensorIsMissing) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  save_file(small(), file);
  const SafeOpen opened(file);
  try {
    opened.get_tensor("wieght");
    ADD_FAILURE() << "found";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith(file), HasSubstr("'wieght'"), HasSubstr("'weight', 'bias'")));
  }
}

// Python pads the header to 8 bytes; a writer that does not leaves numbers at odd addresses.
TEST(Safetensors, MayHaveUnalignedOffsets) {
  const TempFolder folder;
  const auto file = folder.file("odd.safetensors");
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_NE(header.size() % 4, 0U);
  const std::array<float, 2> numbers = {1.5F, -2.F};
  write_file(file, header, {reinterpret_cast<const char*>(numbers.data()), sizeof(numbers)});
  EXPECT_TRUE(load_file(file, {.mmap = true}).at("x").as_tensor().equal(at::tensor({1.5F, -2.F})));
}

TEST(Safetensors, AreWrittenContiguous) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  const auto complex = at::complex(at::arange(2.0), at::ones({2})).to(at::kComplexFloat);
  const Dict views = {{"transposed", at::arange(6.0).view({2, 3}).t()},
                      {"expanded", at::ones({1}).expand({4})},
                      {"conjugate", complex.conj()},
                      {"parameter", Parameter{at::ones({2})}}};
  save_file(views, file);
  const auto tensors = load_file(file);
  for (const auto& [name, value] : views) {
    EXPECT_TRUE(tensors.at(name).as_tensor().is_contiguous());
    EXPECT_TRUE(tensors.at(name).as_tensor().equal(value.as_tensor())) << name.as_string();
  }
}

TEST(Safetensors, RejectSharedMemory) {
  const auto base = at::arange(10.0);
  EXPECT_THAT(complaint_about({{"lm_head", base}, {"other", at::ones({2})}, {"wte", base}}),
              HasSubstr("'lm_head' and 'wte' share memory"));
  EXPECT_THAT(complaint_about({{"all", base}, {"part", base.slice(0, 4, 6)}}), HasSubstr("share memory"));
}

TEST(Safetensors, AcceptDisjointPartsOfOneStorage) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  const auto base = at::arange(10.0);
  const Dict parts = {
      {"head", base.slice(0, 0, 4)}, {"none", base.slice(0, 4, 4)}, {"tail", base.slice(0, 4)}};
  save_file(parts, file);
  EXPECT_TRUE(equal(load_file(file), parts));
}

TEST(Safetensors, RejectUnsupportedValues) {
  EXPECT_THAT(complaint_about({{"epoch", 3}}), HasSubstr("'epoch' is a int"));
  EXPECT_THAT(complaint_about({{3, at::ones({1})}}), HasSubstr("the key 3 is a int"));
  EXPECT_THAT(complaint_about({{"nested", Dict{}}}), HasSubstr("'nested' is a dict"));
  EXPECT_THAT(complaint_about({{"__metadata__", at::ones({1})}}), HasSubstr("__metadata__"));
  EXPECT_THAT(complaint_about({{"x", at::ones({1}, at::kComplexDouble)}}), HasSubstr("ComplexDouble"));
  EXPECT_THAT(complaint_about({{"x", at::ones({2, 2}).to_sparse()}}), HasSubstr("'x' is sparse"));
  EXPECT_THAT(complaint_about({{"x", at::empty({2}, at::kMeta)}}), HasSubstr("meta device"));
  EXPECT_THAT(complaint_about({{"x", at::Tensor()}}), HasSubstr("'x' is undefined"));
  EXPECT_THAT(complaint_about({{"\xff", at::ones({1})}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(complaint_about({}, {.metadata = {{"k", "\xff"}}}), HasSubstr("not UTF-8"));
}

TEST(Safetensors, KeepTheOldFileIfTheNewOneFails) {
  const TempFolder folder;
  const auto file = folder.file("a.safetensors");
  save_file(small(), file);
  EXPECT_THROW(save_file({{"epoch", 3}}, file), CheckpointError);
  EXPECT_TRUE(equal(load_file(file), small()));
  EXPECT_THROW(save_file(small(), folder.file("no/such/folder.safetensors")), CheckpointError);
}

TEST(SafetensorsFolder, RejectsWhatIsNoIndex) {
  const TempFolder folder;
  const auto index = folder / "model.safetensors.index.json";
  save_file(small(), folder / "a.safetensors");
  const auto complaint = [&](const std::string& text) {
    std::ofstream(index) << text;
    try {
      safetensors::load_torch_state_dict(folder.path());
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint(R"({"weight_map": {"weight": "a.safetensors"}})"), "");
  for (const auto* const wrong :
       {"", "[]", "{}", R"({"weight_map": 1})", R"({"weight_map": {"weight": 1}})",
        R"({"weight_map": {"weight": "../a.safetensors"}})", R"({"weight_map": {"weight": "/a"}})"}) {
    EXPECT_THAT(complaint(wrong), AllOf(StartsWith(index.string()), HasSubstr("needs a weight_map")))
        << wrong;
  }
  EXPECT_THAT(complaint(R"({"weight_map": {"none": "a.safetensors"}})"),
              AllOf(StartsWith(index.string()), HasSubstr("a.safetensors has no tensor 'none'")));
  EXPECT_THAT(complaint(R"({"weight_map": {"weight": "b.safetensors"}})"), HasSubstr("b.safetensors"));
}

// Each writer's tensors have its number; a file has one tensor.
TEST(SafetensorsFolder, HasTheFilesOfOneOfSeveralWriters) {
  const TempFolder folder;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> writers;
    for (int writer = 0; writer < 3; ++writer) {
      writers.emplace_back([&, writer] {
        Dict state;
        for (int i = 0; i < 5; ++i) state.set(fmt::format("{}", i), at::full({64}, writer));
        safetensors::save_torch_state_dict(state, folder.path(), {.max_shard_size = 1, .sync = false});
      });
    }
    for (auto& writer : writers) writer.join();
    const auto loaded = safetensors::load_torch_state_dict(folder.path());
    for (const auto& [name, value] : loaded)
      EXPECT_TRUE(value.as_tensor().equal(loaded.at("0").as_tensor())) << "round " << round;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_THAT(entry.path().filename().string(), StartsWith("model")) << "nothing else is left";
}

TEST(SafetensorsFolder, NamesTheFolderThatCannotBeWritten) {
  EXPECT_THROW(safetensors::save_torch_state_dict(small(), "/proc/nowhere"), CheckpointError);
  EXPECT_THROW(safetensors::load_torch_state_dict("/proc/nowhere"), CheckpointError);
}

}  // namespace
}  // namespace lockstep::testing
