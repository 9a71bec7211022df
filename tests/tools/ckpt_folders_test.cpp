// SPDX-License-Identifier: BSD-3-Clause
// `lockstep ckpt`, the real program, on folders of torch.distributed.checkpoint: those that the live Python
// has written, and those of a CheckpointManager whose ranks wrote them together.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "parity/sharded_tensors.h"
#include "support/python.h"
#include "support/ranks.h"
#include "tools/tool_program.h"

namespace lockstep::testing::ckpt_folders_test {
namespace {

namespace dcp = distributed_checkpoint;
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class CkptFolders : public Ckpt {
 protected:
  void make_in_python() const {
    static const TempFolder made;
    static const auto done = run_python("tools/ckpt_folders.py", {.args = {"make", made.path().string()}});
    fs::copy(made.path(), path(""), fs::copy_options::recursive);
  }

  void expect_same_in_python(const std::string& folder, const std::string& other) const {
    EXPECT_EQ(run_python("tools/ckpt_folders.py", {.args = {"same", file(folder), file(other)}}), "same\n");
  }
  void expect_python_loads(const std::string& source, const std::string& folder) const {
    EXPECT_EQ(run_python("tools/ckpt_folders.py", {.args = {"loads", file(source), file(folder)}}),
              "loads\n");
  }
  // The first of its files.
  fs::path data_file_of(const std::string& folder) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path(folder))) {
      if (entry.path().extension() == ".distcp") files.push_back(entry.path());
    }
    EXPECT_FALSE(files.empty());
    return *std::ranges::min_element(files);
  }
};

TEST_F(CkptFolders, ShowPythonFoldersWithoutReadingData) {
  make_in_python();
  const auto metadata = expect_success({"show", file("run")});
  EXPECT_THAT(metadata, ContainsRegex("model\\.0\\.weight +Tensor +float32 +\\[4, 3\\] +48\n"));
  EXPECT_THAT(metadata, ContainsRegex("half +Tensor +bfloat16 +\\[2, 3\\] +12\n"));
  EXPECT_THAT(metadata, ContainsRegex("epoch +int +3\n"));
  EXPECT_THAT(metadata, ContainsRegex("optimizer\\.state\\.0\\.exp_avg +Tensor +float32 +\\[4, 3\\] +48\n"));
  const auto document = nlohmann::json::parse(expect_success({"show", "--json", file("sharded")}));
  EXPECT_EQ(document["tensors"], 3);
  EXPECT_EQ(document["bytes"], 35 * 4 + 12 * 8 + 3 * 4);
}

// A sparse file stands for one that is too large to be read.
TEST_F(CkptFolders, LargeFoldersAreShownQuickly) {
  dcp::save({{"w", torch::ones({3})}}, path("large"));
  const auto before = expect_success({"show", file("large")});
  fs::resize_file(data_file_of("large"), std::uint64_t{1} << 40);
  EXPECT_EQ(expect_success({"show", file("large")}), before);
}

TEST_F(CkptFolders, ConvertPythonFoldersLikePythonsTool) {
  make_in_python();
  expect_success({"convert", file("run"), file("made.pt")});
  expect_same_in_python("run", "made.pt");
  expect_success({"convert", file("sharded"), file("made.safetensors")});
  expect_same_in_python("sharded", "made.safetensors");
  expect_success({"convert", file("run"), file("model.safetensors"), "--key", "model"});
  EXPECT_THAT(expect_failure({"convert", file("run"), file("no.safetensors")}),
              AllOf(HasSubstr("run: "), HasSubstr("--key: model")));
}

TEST_F(CkptFolders, AreConvertedFromFilesForPython) {
  make_in_python();
  expect_success({"convert", file("run_source.pt"), file("ours")});
  expect_python_loads("run_source.pt", "ours");
  // Another one replaces it.
  expect_success({"convert", file("sharded.pt"), file("ours")});
  expect_python_loads("sharded.pt", "ours");
  expect_success({"convert", file("ours"), file("flat.safetensors")});
  expect_success({"convert", file("flat.safetensors"), file("again/")});
  expect_python_loads("flat.safetensors", "again");
  expect_success({"convert", file("run_source.pt"), file("model"), "--key", "model"});
  EXPECT_EQ(expect_success({"diff", file("model"), file("model")}), "no difference in 7 entries\n");
}

TEST_F(CkptFolders, AreComparedWithFiles) {
  make_in_python();
  EXPECT_THAT(expect_success({"diff", file("run"), file("run.pt")}), HasSubstr("no difference in "));
  EXPECT_THAT(expect_success({"diff", file("run_source.pt"), file("run")}), HasSubstr("no difference in "));
  EXPECT_EQ(expect_success({"diff", file("sharded.pt"), file("sharded")}), "no difference in 3 entries\n");
  auto changed = load(path("sharded.pt"));
  changed.as_dict().at("rows").as_tensor()[6][4] += 1;
  changed.as_dict().erase("whole");
  dcp::save(changed.as_dict(), path("changed"));
  const auto result = run({"diff", file("sharded"), file("changed")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("values: rows: 1 of 35 differ, by at most 1\n"),
                                HasSubstr("only in A: whole: float32 [3]\n"), HasSubstr("2 differences")));
}

TEST_F(CkptFolders, MergeAndStripPrefixLikeFiles) {
  dcp::save({{"module.a", torch::ones({2})}, {"b", torch::arange(3)}}, path("first"));
  save(Dict{{"b", torch::arange(3)}, {"c", torch::zeros({1})}}, path("second.pt"));
  expect_success({"merge", file("first"), file("second.pt"), file("both")});
  EXPECT_TRUE(equal(dcp::load(path("both")),
                    Dict{{"module.a", torch::ones({2})}, {"b", torch::arange(3)}, {"c", torch::zeros({1})}}));
  EXPECT_EQ(expect_success({"strip-prefix", file("first"), file("bare")}), "1 keys renamed\n");
  EXPECT_TRUE(equal(dcp::load(path("bare")), Dict{{"a", torch::ones({2})}, {"b", torch::arange(3)}}));
  dcp::save({{"epoch", 1}, {"net", Dict{{"module.a", torch::ones({2})}}}}, path("run"));
  expect_success({"strip-prefix", file("run"), file("stripped"), "--key", "net"});
  EXPECT_TRUE(equal(dcp::load(path("stripped")), Dict{{"epoch", 1}, {"net", Dict{{"a", torch::ones({2})}}}}));
}

TEST_F(CkptFolders, AreVerified) {
  make_in_python();
  const auto out = expect_success({"verify", file("run"), file("sharded")});
  EXPECT_THAT(out, ContainsRegex("run: OK, [0-9]+ entries, every part is there, checksums match\n"));
  EXPECT_THAT(out, HasSubstr("sharded: OK, 3 entries, every part is there, checksums match\n"));
}

TEST_F(CkptFolders, DamageIsNamed) {
  make_in_python();
  fs::copy(path("sharded"), path("gone"));
  fs::remove(data_file_of("gone"));
  fs::copy(path("sharded"), path("short"));
  fs::resize_file(data_file_of("short"), fs::file_size(data_file_of("short")) - 1);
  fs::copy(path("sharded"), path("turned"));
  {
    std::fstream stream(data_file_of("turned"), std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    // 7.0, 8.0, ...: the second row.
    const float row[] = {5, 6, 7};
    const auto place = bytes.find(std::string(reinterpret_cast<const char*>(row), sizeof(row)));
    ASSERT_NE(place, std::string::npos);
    stream.seekp(static_cast<std::streamoff>(place));
    stream.put('\x01');
  }
  const auto result = run({"verify", file("gone"), file("short"), file("turned"), file("sharded")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              AllOf(ContainsRegex("gone/__0_0\\.distcp: cannot be read: No such file"),
                    ContainsRegex("short/__0_0\\.distcp: "),
                    ContainsRegex("turned/__0_0\\.distcp: record .* is damaged"), HasSubstr("sharded: OK"),
                    HasSubstr("3 of 4 checkpoints are damaged or missing\n")));
}

// A piece of the right bytes in number and checksum, but not what the metadata says.
TEST_F(CkptFolders, APieceOfADifferentShapeFailsVerification) {
  dcp::save({{"w", torch::arange(6, torch::kFloat).view({2, 3})}}, path("one"));
  dcp::save({{"w", torch::arange(6, torch::kFloat).view({3, 2})}}, path("other"));
  ASSERT_EQ(fs::file_size(data_file_of("one")), fs::file_size(data_file_of("other")));
  fs::copy_file(data_file_of("other"), data_file_of("one"), fs::copy_options::overwrite_existing);
  const auto result = run({"verify", file("one")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("a piece of 'w' is Float [3, 2], but the metadata says Float [2, 3]"));
}

TEST_F(CkptFolders, DistinguishUnfinishedAndForeignFolders) {
  fs::create_directories(path("empty"));
  EXPECT_THAT(expect_failure({"show", file("empty")}),
              HasSubstr("empty: it is not a distributed checkpoint"));
  dcp::save({{"w", torch::ones({3})}}, path("half"));
  fs::remove(path("half") / ".metadata");
  EXPECT_THAT(expect_failure({"show", file("half")}), HasSubstr("half: the save was not completed"));
  EXPECT_THAT(run({"verify", file("half")}).out, HasSubstr("half: the save was not completed"));
  EXPECT_THAT(expect_failure({"diff", file("half"), file("half")}), HasSubstr("not completed"));
  // A killed conversion can be repeated.
  save(Dict{{"w", torch::zeros({3})}}, path("w.pt"));
  expect_success({"convert", file("w.pt"), file("half")});
  EXPECT_TRUE(equal(dcp::load(path("half")), Dict{{"w", torch::zeros({3})}}));
}

TEST_F(CkptFolders, AreNotCreatedInWrongPlaces) {
  save(Dict{{"w", torch::ones({3})}}, path("w.pt"));
  save(Value(List{torch::ones({3})}), path("list.pt"));
  EXPECT_THAT(expect_failure({"convert", file("w.pt"), path("").string()}, 2),
              AllOf(HasSubstr("something else in it"), HasSubstr("a folder of its own")));
  EXPECT_FALSE(fs::exists(path(".metadata")));
  std::ofstream(path("plain")) << "x";
  EXPECT_THAT(expect_failure({"convert", file("w.pt"), file("plain")}, 2), HasSubstr("plain: it is a file"));
  EXPECT_THAT(expect_failure({"convert", file("list.pt"), file("folder")}),
              AllOf(HasSubstr("folder"), HasSubstr("holds a dict"), HasSubstr("list")));
  save(Dict{{"s", torch::eye(3).to_sparse()}}, path("sparse.pt"));
  EXPECT_THAT(expect_failure({"convert", file("sparse.pt"), file("folder")}),
              HasSubstr("'s' is not a tensor that"));
  EXPECT_FALSE(fs::exists(path("folder") / ".metadata"));
}

TEST_F(CkptFolders, TheNewestIsTheOneWithTheLargestNumber) {
  for (const auto* name : {"step-99999999", "step-100000000", "step-20000000.pt", "step-notes-of-mine"})
    fs::create_directories(path("runs") / name);
  EXPECT_THAT(expect_failure({"show", file("runs")}), HasSubstr("as in " + file("runs/step-100000000\n")));
}

const Scenario saves("write checkpoints of every rank", [] {
  const auto context = init({.backend = "gloo"});
  CheckpointManager manager(*Env().get("FOLDER"),
                            {.async_save = true, .sync = false, .writing = CheckpointWriting::every_rank});
  for (const std::int64_t step : {6, 7}) {
    manager.save(step, Dict{{"model", sharded_tensors(whole_tensors(), context.rank(), context.world_size())},
                            {"counts", Dict{{3, step}}},
                            {"step", step}});
  }
});

TEST_F(CkptFolders, ReadFoldersOfAManager) {
  expect_all_passed(run_ranks(saves, {.world_size = 2, .env = {{"FOLDER", file("runs")}}}));
  EXPECT_THAT(expect_failure({"show", file("runs")}),
              AllOf(HasSubstr("it is a folder of checkpoints"), HasSubstr("step-00000007\n")));
  const auto metadata = expect_success({"show", file("runs/step-00000007")});
  EXPECT_THAT(metadata, ContainsRegex("model\\.blocks +Tensor +bfloat16 +\\[7, 11\\] +154\n"));
  EXPECT_THAT(expect_success({"verify", file("runs/step-00000006"), file("runs/last")}),
              Not(HasSubstr("damaged")));
  EXPECT_THAT(run({"diff", file("runs/step-00000006"), file("runs/last")}).out,
              AllOf(HasSubstr("value: step: 6 in A, 7 in B\n"), HasSubstr("2 differences")));
  expect_success({"convert", file("runs/last"), file("last.pt")});
  expect_same_in_python("runs/step-00000007", "last.pt");
  // Keys that are not strings are restored, although Python's tool loses them.
  EXPECT_EQ(load(path("last.pt"))["counts"][3].as_int(), 7);
  for (const auto& [name, tensor] : whole_tensors()) {
    EXPECT_TRUE(equal(load(path("last.pt"))["model"][name], tensor.as_tensor().contiguous())) << repr(name);
  }
}

}  // namespace
}  // namespace lockstep::testing::ckpt_folders_test
