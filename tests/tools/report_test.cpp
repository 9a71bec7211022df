// SPDX-License-Identifier: BSD-3-Clause
// The page of `lockstep run --report`, of real ranks.
#include <csignal>
#include <fstream>
#include <iterator>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/version.h>

#include "tool_program.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::Truly;

class RunReport : public testing::ToolProgram {
 protected:
  RunReport() : ToolProgram("run") {}

  testing::ToolProgram::Words options(const Words& program) const {
    Words words{"--nproc-per-node", "2", "--report", page_, "--"};
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }

  // The data of the page.
  nlohmann::json data() const {
    struct stat status {};
    EXPECT_EQ(::stat(page_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
    std::ifstream file(page_);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::string mark = "id=\"data\">";
    const auto begin = text.find(mark) + mark.size();
    return nlohmann::json::parse(text.substr(begin, text.find("</script>", begin) - begin));
  }

  static std::int64_t sum(const nlohmann::json& values) {
    std::int64_t total = 0;
    for (const auto& value : values) total += value.get<std::int64_t>();
    return total;
  }

 private:
  std::string page_ = file("report.html");
};

TEST_F(RunReport, HasStepsPhasesNumbersAndTheEnd) {
  expect_success(options({LOCKSTEP_REPORT_RANK, "30"}));
  const auto report = data();
  EXPECT_THAT(report["outcome"].get<std::string>(), HasSubstr("The run ended without an error after"));
  EXPECT_EQ(report["failed"], false);
  EXPECT_THAT(report["faults"], SizeIs(0)) << report["faults"];
  EXPECT_THAT(report["ends"], SizeIs(2));
  ASSERT_THAT(report["tracks"], SizeIs(2));
  const auto communication = std::ranges::find(report["phases"], "communication") - report["phases"].begin();
  for (const auto& track : report["tracks"]) {
    EXPECT_EQ(track["steps"], 30);
    EXPECT_EQ(sum(track["points"]["steps"]), 30);
    EXPECT_GT(sum(track["points"]["spent"][static_cast<std::size_t>(communication)]), 0);
    ASSERT_THAT(track["numbers"], SizeIs(1));
    EXPECT_EQ(track["numbers"][0]["name"], "loss");
    EXPECT_EQ(track["numbers"][0]["least"].back(), 1);
    EXPECT_THAT(track["memory"]["resident"], Each(Ge(1 << 20)));
    EXPECT_EQ(track["traffic"][0]["backend"], "shm");
  }
  EXPECT_GE(report["arrivals"]["seen"], 30);
  EXPECT_EQ(report["command"][1], "run");
  const nlohmann::json versions = report["facts"];
  EXPECT_EQ(versions[0], nlohmann::json({"Lockstep", lockstep::version()}));
  EXPECT_NE(versions[1][1], "not known");
}

TEST_F(RunReport, NamesTheRankThatWasKilled) {
  const auto result = run(options({LOCKSTEP_REPORT_RANK, "20", "1"}));
  EXPECT_EQ(result.code, 128 + SIGKILL) << result.err;
  const auto report = data();
  EXPECT_THAT(report["outcome"].get<std::string>(),
              AllOf(HasSubstr("Rank 1 was killed by SIGKILL"), HasSubstr("exit code 137")));
  EXPECT_EQ(report["failed"], true);
  EXPECT_THAT(report["attempts"][0]["failure"].back().get<std::string>(), HasSubstr("rank 1 failed first"));
  // Rank 0, which hears of the death at once, can be waited for first.
  EXPECT_THAT(report["ends"], Contains(Truly([](const nlohmann::json& end) {
                return end["rank"] == 1 &&
                       end["text"].get<std::string>().find("SIGKILL") != std::string::npos;
              })))
      << report["ends"];
  ASSERT_THAT(report["tracks"], SizeIs(2));
  EXPECT_EQ(report["tracks"][1]["steps"], 20);
}

#ifdef LOCKSTEP_WITH_LIBDW

TEST_F(RunReport, HasTheStackOfARankThatIsStuck) {
  auto words = options({LOCKSTEP_REPORT_RANK, "5", "1", "stuck"});
  words.insert(words.begin(), "run");
  testing::LauncherProcess launcher(
      words, {.env = {{"LOCKSTEP_LOG_LEVEL", "debug"}}, .output = testing::Output::one_pipe});
  launcher.wait_for("stacks of stuck ranks were read");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM) << launcher.out();
  const auto faults = data()["faults"];
  ASSERT_THAT(faults, ::testing::Not(SizeIs(0)));
  EXPECT_EQ(faults[0]["cause"], "missing");
  EXPECT_EQ(faults[0]["ranks"], nlohmann::json({1}));
  EXPECT_THAT(faults[0]["stacks"].get<std::string>(),
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr("wait_without_end"), HasSubstr("\n    main")));
}

#endif

TEST_F(RunReport, HasTheReplacementOfARank) {
  const std::string rank = LAUNCHER_RANK_PROGRAM;
  auto words = options(
      {"/bin/sh", "-c",
       "test $RANK = 0 && { " + rank + " phase running; exec sleep 1000; };" + "until test \"$(" + rank +
           " phase)\" = \"phase running\"; do sleep 0.01; done; echo on $TORCHELASTIC_RESTART_COUNT;"
           "test $TORCHELASTIC_RESTART_COUNT = 1 && exec sleep 1000; exit 3"});
  words.insert(words.begin(), {"run", "--on-loss", "replace", "--max-restarts", "1"});
  testing::LauncherProcess launcher(words);
  launcher.wait_for("on 1");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  const auto report = data();
  ASSERT_THAT(report["attempts"], SizeIs(2));
  EXPECT_THAT(report["attempts"][0]["failure"],
              ElementsAre("rank 1 exited with code 3; its replacement runs (1 of 1 restarts)"));
  EXPECT_EQ(report["attempts"][1]["ranks"], 2);
  EXPECT_THAT(report["outcome"].get<std::string>(), HasSubstr("and 1 restart"));
  ASSERT_THAT(report["ends"], SizeIs(3));
  EXPECT_NE(report["ends"][0]["pid"], report["ends"][1]["pid"]);
}

TEST_F(RunReport, IsWrittenWhenTheLauncherIsInterrupted) {
  auto words = options({"/bin/sh", "-c", "echo begun; exec sleep 100", "--token=abc"});
  words.insert(words.begin(), "run");
  testing::LauncherProcess launcher(words);
  launcher.wait_for("begun", 2);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  const auto report = data();
  EXPECT_THAT(report["outcome"].get<std::string>(), HasSubstr("SIGTERM ended the run"));
  EXPECT_THAT(report["tracks"], SizeIs(0));
  ASSERT_THAT(report["ends"], SizeIs(2));
  EXPECT_EQ(report["ends"][0]["was_stopped"], true);
  EXPECT_EQ(report["command"].back(), "--token=[redacted]");
}

TEST_F(RunReport, RefusesAFolderThatDoesNotExist) {
  EXPECT_THAT(expect_failure({"--report", file("none/report.html"), "--", "/bin/true"}, 2),
              AllOf(HasSubstr("--report"), HasSubstr("No such file or directory; use an existing folder")));
}

}  // namespace
}  // namespace lockstep
