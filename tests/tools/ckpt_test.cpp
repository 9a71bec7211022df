// SPDX-License-Identifier: BSD-3-Clause
// `lockstep ckpt`, the real program, on files that the live Python has written.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/python.h"
#include "tools/tool_program.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// In a folder with the files of ckpt_files.py.
class CkptFiles : public Ckpt {
 protected:
  CkptFiles() { run_python("tools/ckpt_files.py", {.args = {"make", path("").string()}}); }

  void expect_python_agrees(const std::string& what) const {
    EXPECT_EQ(run_python("tools/ckpt_files.py", {.args = {"check", path("").string(), what}}), what + "\n");
  }
};

TEST_F(CkptFiles, ShowsTheContentsOfACheckpoint) {
  const auto metadata = expect_success({"show", file("run.pt")});
  EXPECT_THAT(metadata, ContainsRegex("state_dict\\.0\\.weight +Tensor +float32 +\\[8, 3, 3, 3\\] +864\n"));
  EXPECT_THAT(metadata, ContainsRegex("state_dict\\.1\\.num_batches_tracked +Tensor +int64 +\\[\\] +8\n"));
  EXPECT_THAT(metadata, ContainsRegex("\nepoch +int +3\n"));
  EXPECT_THAT(metadata, ContainsRegex("arch +str +'small'\n"));
  EXPECT_THAT(metadata, ContainsRegex("optimizer\\.param_groups\\.0\\.params\\.1 +int +1\n"));
  EXPECT_THAT(metadata, HasSubstr(" 18 tensors of 550 elements, 2.2 kB\n"));
}

TEST_F(CkptFiles, ShowsBothFormatsAsJson) {
  const auto rows = [&](const std::string& name) {
    std::map<std::string, nlohmann::json> by_key;
    const auto document = nlohmann::json::parse(expect_success({"show", file(name), "--json"}));
    EXPECT_EQ(document["tensors"], 9);
    for (const auto& entry : document["entries"]) by_key[entry["key"]] = entry;
    return by_key;
  };
  const auto of_pt = rows("model.pt");
  EXPECT_EQ(of_pt, rows("model.safetensors"));
  EXPECT_EQ(of_pt, rows("legacy.pth"));
  EXPECT_EQ(of_pt.at("0.weight"), (nlohmann::json{{"key", "0.weight"},
                                                  {"type", "Tensor"},
                                                  {"dtype", "float32"},
                                                  {"shape", {8, 3, 3, 3}},
                                                  {"bytes", 864}}));
  const auto document = nlohmann::json::parse(expect_success({"show", "--json", file("model.safetensors")}));
  EXPECT_EQ(document["metadata"]["author"], "me");
}

TEST_F(Ckpt, ShowsALargeFileWithoutReadingIt) {
  const std::string header =
      R"({"x":{"dtype":"F32","shape":[1024,1024,16384],"data_offsets":[0,68719476736]}})";
  const std::uint64_t length = header.size();
  std::ofstream(path("large.safetensors"), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
  fs::resize_file(path("large.safetensors"), sizeof(length) + length + 68719476736);
  EXPECT_THAT(expect_success({"show", file("large.safetensors")}), HasSubstr("68.7 GB"));
}

TEST_F(CkptFiles, FindsNoDifferenceBetweenTheFormats) {
  EXPECT_EQ(expect_success({"diff", file("model.pt"), file("model.safetensors")}),
            "no difference in 9 entries\n");
  EXPECT_EQ(expect_success({"diff", file("legacy.pth"), file("model.pt")}), "no difference in 9 entries\n");
}

TEST_F(CkptFiles, ReportsDifferences) {
  const auto result = run({"diff", file("model.safetensors"), file("changed.pt")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("values: 0.weight: 2 of 216 differ, by at most 0.5\n"),
                                HasSubstr("dtype: 1.bias: float32 in A, float16 in B\n"),
                                HasSubstr("shape: 2.weight: [2, 8] in A, [4, 4] in B\n"),
                                HasSubstr("only in A: 2.bias: float32 [2]\n"),
                                HasSubstr("only in B: extra: float32 [3]\n"),
                                HasSubstr("5 differences: 9 entries in A, 9 in B\n")));
  EXPECT_THAT(result.out, Not(HasSubstr("running_mean")));
}

TEST_F(CkptFiles, DiffRespectsTheTolerance) {
  const auto values = [&](const Words& options) {
    Words words = {"diff", file("model.pt"), file("changed.pt")};
    words.insert(words.end(), options.begin(), options.end());
    return run(words).out;
  };
  EXPECT_THAT(values({"--atol", "0.4"}), HasSubstr("values: 0.weight: 1 of 216 differ"));
  EXPECT_THAT(values({"--atol", "0.6"}), Not(HasSubstr("0.weight")));
}

TEST_F(CkptFiles, DiffComparesOtherValuesToo) {
  const auto result = run({"diff", file("run.pt"), file("parallel_run.pt")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("value: epoch: 3 in A, 1 in B\n"), HasSubstr("only in A: arch: str 'small'\n"),
                    HasSubstr("only in B: state_dict.module.0.weight")));
}

TEST_F(CkptFiles, ConvertsFilesForPython) {
  expect_success({"convert", file("model.pt"), file("converted.safetensors")});
  expect_python_agrees("converted");
  expect_success({"convert", file("run.pt"), file("converted.safetensors"), "--key", "ema.model"});
  expect_python_agrees("converted");
  expect_success({"convert", file("model.safetensors"), file("back.pt")});
  expect_python_agrees("back");
  expect_success({"convert", "--key=state_dict", file("run.pt"), file("nested.ckpt")});
  expect_python_agrees("nested");
}

TEST_F(CkptFiles, NamesConvertibleDicts) {
  EXPECT_THAT(
      expect_failure({"convert", file("run.pt"), file("out.safetensors")}),
      AllOf(HasSubstr("run.pt: "), HasSubstr("'epoch' is int 3"), HasSubstr("--key: state_dict, ema.model")));
  EXPECT_THAT(expect_failure({"convert", file("run.pt"), file("out.safetensors"), "--key", "model"}),
              AllOf(HasSubstr("'model'"), HasSubstr("--key: state_dict, ema.model")));
  EXPECT_FALSE(fs::exists(path("out.safetensors")));
}

TEST_F(CkptFiles, ConvertsTiedTensorsOnRequest) {
  EXPECT_THAT(expect_failure({"convert", file("tied.bin"), file("untied.safetensors")}),
              AllOf(HasSubstr("'wte.weight' and 'lm_head.weight' share memory"), HasSubstr("--copy-shared")));
  expect_success({"convert", file("tied.bin"), file("untied.safetensors"), "--copy-shared"});
  expect_python_agrees("untied");
}

TEST_F(CkptFiles, VerifiesFiles) {
  const auto out = expect_success({"verify", file("run.pt"), file("legacy.pth"), file("model.safetensors")});
  EXPECT_THAT(out, ContainsRegex("run\\.pt: OK, [0-9]+ entries, checksums match\n"));
  EXPECT_THAT(out, ContainsRegex("legacy\\.pth: OK, 9 entries; the format has no checksums\n"));
  EXPECT_THAT(out, ContainsRegex("model\\.safetensors: OK, 9 entries; the format has no checksums\n"));
}

TEST_F(CkptFiles, FindsDamage) {
  fs::resize_file(path("model.safetensors"), fs::file_size(path("model.safetensors")) - 1);
  const auto result =
      run({"verify", file("damaged.pt"), file("run.pt"), file("model.safetensors"), file("no.pt")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              AllOf(ContainsRegex("damaged\\.pt: record .* is damaged"), HasSubstr("run.pt: OK"),
                    ContainsRegex("model\\.safetensors: .*cut short"), HasSubstr("no.pt: cannot be read"),
                    HasSubstr("3 of 4 checkpoints are damaged or missing\n")));
}

// A link to itself stands for what may not be read, which root may.
TEST_F(CkptFiles, UnreadableFilesDoNotCountAsDamaged) {
  fs::create_symlink("loop.pt", path("loop.pt"));
  const auto result = run({"verify", file("loop.pt"), file("run.pt")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(
      result.out,
      AllOf(ContainsRegex("loop\\.pt: cannot be read: .*; it may be intact\n"), HasSubstr("run.pt: OK"),
            HasSubstr("1 of 2 checkpoints cannot be read and may be intact"), Not(HasSubstr("damaged"))));
  const auto both = run({"verify", file("loop.pt"), file("damaged.pt"), file("run.pt")}).out;
  EXPECT_THAT(both, AllOf(HasSubstr("1 of 3 checkpoints are damaged or missing\n"),
                          HasSubstr("1 of 3 checkpoints cannot be read")));
}

TEST_F(CkptFiles, StripsThePrefixOfDataParallel) {
  EXPECT_EQ(expect_success({"strip-prefix", file("parallel.pt"), file("stripped.pt")}), "9 keys renamed\n");
  expect_python_agrees("stripped");
  expect_success({"strip-prefix", file("parallel_run.pt"), file("stripped_run.pt"), "--key", "state_dict"});
  expect_python_agrees("stripped_run");
  expect_success(
      {"strip-prefix", "--key", "state_dict", file("parallel_run.pt"), file("converted.safetensors")});
  expect_python_agrees("converted");
}

TEST_F(CkptFiles, ReportsAMissingPrefix) {
  EXPECT_THAT(expect_failure({"strip-prefix", file("parallel.pt"), file("out.pt"), "--prefix", "model."}),
              AllOf(HasSubstr("parallel.pt: no key starts with 'model.'"), HasSubstr("'module.0.weight'")));
  EXPECT_FALSE(fs::exists(path("out.pt")));
}

TEST_F(CkptFiles, MergesFilesThatAgree) {
  expect_success({"merge", file("first.safetensors"), file("second.pt"), file("merged.safetensors")});
  expect_python_agrees("merged");
}

TEST_F(CkptFiles, RejectsConflictingFiles) {
  EXPECT_THAT(expect_failure({"merge", file("model.pt"), file("changed.pt"), file("out.pt")}),
              AllOf(HasSubstr("changed.pt: the tensor '0.weight'"), HasSubstr("model.pt")));
  EXPECT_FALSE(fs::exists(path("out.pt")));
}

TEST_F(Ckpt, ExitsWith2ForAnInvalidCommandLine) {
  EXPECT_THAT(expect_failure({"shw", file("run.pt")}, 2), HasSubstr("lockstep ckpt --help"));
  expect_failure({}, 2);
  expect_failure({"diff", file("run.pt")}, 2);
  expect_failure({"merge", file("run.pt"), file("out.pt")}, 2);
  EXPECT_THAT(expect_failure({"convert", file("run.pt"), file("out.txt")}, 2), HasSubstr(".safetensors"));
  EXPECT_THAT(expect_failure({"diff", file("run.pt"), file("run.pt"), "--atol", "-1"}, 2),
              HasSubstr("--atol"));
}

TEST_F(Ckpt, NamesAnUnreadableFile) {
  EXPECT_THAT(expect_failure({"show", file("none.pt")}), HasSubstr("none.pt: cannot be read: No such file"));
  EXPECT_THAT(expect_failure({"convert", file("none.safetensors"), file("out.pt")}),
              HasSubstr("none.safetensors: "));
}

TEST_F(Ckpt, AcceptsFileNamesThatEqualCommands) {
  EXPECT_THAT(expect_failure({"diff", "run", "bench"}), HasSubstr("run: cannot be read"));
  EXPECT_THAT(expect_failure({"show", "--", "--json"}), HasSubstr("--json: cannot be read"));
}

TEST_F(Ckpt, PrintsHelp) {
  EXPECT_THAT(expect_success({"--help"}),
              AllOf(HasSubstr("show"), HasSubstr("strip-prefix"), HasSubstr("merge")));
  EXPECT_THAT(expect_success({"convert", "--help"}), HasSubstr("--copy-shared"));
}

}  // namespace
}  // namespace lockstep::testing
