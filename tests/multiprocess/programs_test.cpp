// SPDX-License-Identifier: BSD-3-Clause
// The programs of examples/ with two ranks: what they write, that two of them end with the weights of their
// Python counterparts, and that a run which was killed at a random step ends with the weights of the run that
// was not.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/serialize/torch_file.h>

#include "base/deadline.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kWatchdog{180};  // programs that train, beside other tests

class Programs : public ::testing::Test {
 protected:
  static Words command(const std::string& program, const Words& flags, int ranks = 2) {
    Words words{"run", "--nproc-per-node", std::to_string(ranks),
                std::string(PROGRAM_FOLDER) + "/" + program};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }

  // Its stdout.
  static std::string run(const std::string& program, const Words& flags, int ranks = 2) {
    return finished(command(program, flags, ranks));
  }

  static std::string finished(const Words& words) {
    LauncherProcess launcher(words, {.watchdog = kWatchdog});
    EXPECT_EQ(launcher.finish(), 0) << words[3] << '\n' << launcher.out() << launcher.err();
    return launcher.out();
  }

  void expect_same_as_python(const std::string& program, const Words& flags) {
    Words ours = flags;
    ours.insert(ours.end(), {"--run", folder_.file("cpp")});
    run(program, ours);
    Words words{"run", "--nproc-per-node", "2", LOCKSTEP_PYTHON,
                fmt::format("{}/{}.py", TWIN_FOLDER, program)};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--save", folder_.file("python.pt")});
    finished(words);
    EXPECT_TRUE(equal(load(folder_.file("cpp/weights.pt")), load(folder_.file("python.pt"))));
  }

  // A program that starts without the launcher.
  static LauncherProcess::Options alone(const std::string& program) {
    return {.env = {{"OMP_NUM_THREADS", "1"}},
            .watchdog = kWatchdog,
            .program = std::string(PROGRAM_FOLDER) + "/" + program};
  }
  static std::string run_alone(const std::string& program, const Words& flags) {
    LauncherProcess process(flags, alone(program));
    EXPECT_EQ(process.finish(), 0) << program << '\n' << process.out() << process.err();
    return process.out();
  }

  static bool has_reached(const fs::path& folder, int step) {
    std::error_code missing;
    const fs::directory_iterator entries(folder, missing);
    return std::ranges::any_of(begin(entries), end(entries), [&](const fs::directory_entry& entry) {
      const auto name = entry.path().filename().string();
      return name.starts_with("step-") && name.ends_with(".pt") && std::stoi(name.substr(5)) >= step;
    });
  }
  // Kills launcher and ranks when checkpoint `step`, or a later one that has replaced it, is there.
  static void kill_after(LauncherProcess& launcher, const fs::path& folder, int step) {
    const Deadline deadline(std::chrono::seconds(60));
    while (!has_reached(folder, step)) {
      ASSERT_FALSE(deadline.expired()) << folder << " has no checkpoint of step " << step;
      std::this_thread::yield();
    }
    launcher.send(SIGKILL);
    launcher.wait_for_no_family();
  }

  // `weights` is the file that the program writes at its end, in the folder of its run.
  void expect_same_after_a_kill(const std::string& program, const Words& flags, int steps,
                                bool names_weights) {
    const auto with_run = [&](const std::string& name, Words more) {
      Words words = flags;
      words.insert(words.end(), {"--run", folder_.file(name), "--interval", "1"});
      if (names_weights) words.insert(words.end(), {"--weights", folder_.file(name) + "/weights.pt"});
      words.insert(words.end(), more.begin(), more.end());
      return words;
    };
    run(program, with_run("whole", {}));
    const int step = std::uniform_int_distribution(1, steps - 1)(random_);
    SCOPED_TRACE(fmt::format("{} killed after step {}", program, step));
    LauncherProcess launcher(command(program, with_run("killed", {})));
    kill_after(launcher, folder_.path() / "killed", step);
    run(program, with_run("killed", {"--resume"}));
    EXPECT_TRUE(equal(load(folder_.file("whole/weights.pt")), load(folder_.file("killed/weights.pt"))));
  }

  Words finetune(const Words& more, const std::string& epochs = "1") const {
    Words words{"--folder", folder_.file("pictures"), "--size", "32", "--epochs", epochs};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  Words gpt(const std::string& steps) const {
    std::ofstream(folder_.file("text")) << std::string(40, 'a') +
                                               "the quick brown fox jumps over the lazy dog. " +
                                               std::string(200, 'b') + std::string(300, 'c');
    return {"--text", folder_.file("text"), "--steps", steps, "--context", "16", "--layers", "2", "--width",
            "32",     "--batch-size",       "4"};
  }

  TempFolder folder_{};
  std::random_device random_{};
};

TEST_F(Programs, ImageFolderFinetuneDoesNotDependOnItsWorkers) {
  Value expected;
  for (const auto* workers : {"0", "4"}) {
    const auto out =
        run("image_folder_finetune", finetune({"--workers", workers, "--run", folder_.file(workers)}));
    EXPECT_THAT(out, HasSubstr("step 5: accuracy 0."));
    const auto weights = load(folder_.file(workers) + "/weights.pt");
    if (expected.is<None>()) expected = weights;
    EXPECT_TRUE(equal(weights, expected)) << workers << " workers";
  }
  // Other weights to begin with, all of them frozen but fc.
  run("image_folder_finetune",
      finetune({"--weights", folder_.file("0/weights.pt"), "--freeze-layers", "--syncBN", "--bf16",
                "--channels-last", "--run", folder_.file("tuned")}));
  const auto tuned = load(folder_.file("tuned/weights.pt"));
  EXPECT_TRUE(equal(tuned["layer1.0.conv1.weight"], expected["layer1.0.conv1.weight"]));
  EXPECT_FALSE(equal(tuned["fc.weight"], expected["fc.weight"]));
}

TEST_F(Programs, ImageFolderFinetuneTrainsAsPythonDoes) {
  expect_same_as_python("image_folder_finetune", finetune({"--batch-size", "8"}));
}

// One of them in each run of the tests; the nightly command runs these 20 times.
TEST_F(Programs, OneOfThemResumesAfterAKill) {
  if (std::bernoulli_distribution()(random_)) {
    expect_same_after_a_kill("image_folder_finetune", finetune({}, "2"), 10, false);
  } else {
    expect_same_after_a_kill("gpt", gpt("6"), 6, false);
  }
}

TEST_F(Programs, GptTrainsAsPythonDoes) { expect_same_as_python("gpt", gpt("30")); }

TEST_F(Programs, RunWithoutALauncher) {
  EXPECT_THAT(run_alone("gpt", gpt("2")), HasSubstr("step 2: perplexity"));
  EXPECT_THAT(run_alone("image_folder_finetune", finetune({"--arch", "resnet34"})), HasSubstr("accuracy 0."));
}

class GptMesh : public Programs {
 protected:
  // The loss of the last step.
  static double loss_on(const char* mesh, int ranks, const Words& more) {
    Words flags{"--text",         LOCKSTEP_README,
                "--context",      "16",
                "--layers",       "3",
                "--width",        "64",
                "--batch-size",   "8",
                "--mesh",         mesh,
                "--microbatches", "2"};
    flags.insert(flags.end(), more.begin(), more.end());
    const auto out = run("gpt_mesh", flags, ranks);
    const auto at = out.rfind("loss ");
    return at == std::string::npos ? 0 : std::stod(out.substr(at + 5));
  }
};

TEST_F(GptMesh, TrainsAsOneProcessOnAnyMesh) {
  const auto folder = folder_.file("checkpoint");
  loss_on("2,1,2", 4, {"--steps", "4", "--shard", "--folder", folder});
  const auto resumed = loss_on("1,2,1", 4, {"--cp", "2", "--steps", "2", "--resume", "--folder", folder});
  EXPECT_NEAR(resumed, loss_on("1,1,1", 1, {"--steps", "6"}), 1e-5);
}

TEST_F(GptMesh, TrainsTheLibrarysLlamaAsOneProcessOnAnyMesh) {
  const auto folder = folder_.file("checkpoint");
  loss_on("2,2,2", 8, {"--llama", "--steps", "4", "--shard", "--folder", folder});
  const auto resumed =
      loss_on("1,2,1", 4, {"--llama", "--cp", "2", "--steps", "2", "--resume", "--folder", folder});
  EXPECT_NEAR(resumed, loss_on("1,1,1", 1, {"--llama", "--steps", "6"}), 1e-5);
  LauncherProcess three(
      command("gpt_mesh", {"--text", LOCKSTEP_README, "--mesh", "1,1,3", "--llama", "--width", "64"}, 3));
  EXPECT_NE(three.finish(), 0);
  EXPECT_THAT(three.err(), HasSubstr("2 heads cannot be shared equally by 3 ranks"));
}

TEST_F(GptMesh, TrainsExpertsAsOneProcessOnAnyMesh) {
  const auto folder = folder_.file("checkpoint");
  const Words experts{"--shard", "--experts", "4", "--steps", "3"};
  const auto run_on = [&](const char* mesh, int ranks, const Words& more) {
    Words flags = experts;
    flags.insert(flags.end(), more.begin(), more.end());
    return loss_on(mesh, ranks, flags);
  };
  run_on("2,1,1", 4, {"--ep", "2", "--folder", folder});
  const auto resumed = run_on("1,1,2", 4, {"--cp", "2", "--resume", "--folder", folder});
  EXPECT_NEAR(resumed, loss_on("1,1,1", 1, {"--shard", "--experts", "4", "--steps", "6"}), 1e-5);
}

TEST_F(Programs, PointCloudsResumeAfterAKillAndAreTestedOnOneRankAsOnTwo) {
  const Words flags{"--epochs", "2", "--points", "48", "--k", "5"};
  expect_same_after_a_kill("point_clouds", flags, 12, true);
  Words test = flags;
  test.insert(test.end(), {"--test", "--weights", folder_.file("whole/weights.pt")});
  const auto scores = run("point_clouds", test);
  EXPECT_THAT(scores, HasSubstr("class-mean accuracy "));
  const auto score = [](const std::string& out) { return out.substr(out.find("accuracy")); };
  EXPECT_EQ(score(run("point_clouds", test, 1)), score(scores));
}

TEST_F(Programs, DataParallelLoadsItsWeightsWithAndWithoutThePrefix) {
  const auto out = run_alone("data_parallel", {});
  EXPECT_THAT(out, HasSubstr("input [15, 5], output [15, 2]"));
  EXPECT_THAT(out, HasSubstr("(module): "));
  EXPECT_THAT(out, HasSubstr("removed on loading; the weights are equal"));
  EXPECT_THAT(out, HasSubstr("added on loading; the weights are equal"));
}

TEST_F(Programs, ModelParallelHasTheLossOfOneDevice) {
  const auto out = run_alone("model_parallel", {});
  const auto loss_of = [&](const std::string& name) {
    return std::stod(out.substr(out.find("loss", out.find(name)) + 5, 6));
  };
  EXPECT_EQ(loss_of("one device:"), loss_of("model parallel:")) << out;
  // The sums over two halves of a batch round differently.
  EXPECT_NEAR(loss_of("one device:"), loss_of("data parallel:"), 2e-4) << out;
}

TEST_F(Programs, TimingWritesATableAndAChart) {
  const auto out =
      run_alone("timing", {"--epochs", "1", "--samples", "128", "--svg", folder_.file("chart.svg")});
  EXPECT_THAT(out, HasSubstr("ranks  s/epoch  speed-up  accuracy"));
  EXPECT_THAT(out, HasSubstr("    2  "));
  std::ifstream chart(folder_.file("chart.svg"));
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(chart), {}),
              AllOf(HasSubstr("2 ranks</text>"), HasSubstr("%</text>")));
}

TEST_F(Programs, SpawnMnistContinuesFromItsSnapshotsAfterAKill) {
  const auto flags = [&](const char* run) {
    return Words{"--random", "200", "--save-every", "2", "--epochs", "5", "--run", folder_.file(run)};
  };
  EXPECT_THAT(run_alone("spawn_mnist", flags("whole")), HasSubstr("trained 5 epochs"));
  EXPECT_TRUE(fs::exists(folder_.path() / "whole/step-00000004.pt"));  // 2 steps an epoch
  EXPECT_FALSE(fs::exists(folder_.path() / "whole/step-00000002.pt"));
  {
    LauncherProcess process(flags("killed"), alone("spawn_mnist"));
    kill_after(process, folder_.path() / "killed", 4 * std::uniform_int_distribution(1, 2)(random_));
  }
  EXPECT_THAT(run_alone("spawn_mnist", flags("killed")), HasSubstr("trained 5 epochs"));
  const auto model = [&](const char* run) { return load(folder_.file(run) + "/step-00000010.pt")["model"]; };
  EXPECT_TRUE(equal(model("whole"), model("killed")));
}

}  // namespace
}  // namespace lockstep::testing
