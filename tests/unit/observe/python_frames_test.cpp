// SPDX-License-Identifier: BSD-3-Clause
#include "observe/python_frames.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "machine/command.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A process whose program has the name of an interpreter, and a PATH whose py-spy prints a text.
class OfAProcess : public ::testing::Test {
 protected:
  OfAProcess() {
    std::filesystem::copy_file("/bin/sleep", folder_.file("python3"));
    process_ = machine::start_program({.file = folder_.file("python3"), .arguments = {"python3", "60"}},
                                      Deadline(std::chrono::seconds(30)));
    ::setenv("PATH", folder_.path().c_str(), 1);
  }
  ~OfAProcess() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::kill(process_.pid, SIGKILL);
    ::waitpid(process_.pid, nullptr, 0);
  }

  observe::PythonFrames frames(std::chrono::seconds limit = std::chrono::seconds(60)) const {
    return observe::python_frames_of(process_.pid, Deadline(limit));
  }

  void write_py_spy(const std::string& script) const {
    const auto file = folder_.file("py-spy");
    std::ofstream(file) << "#!/bin/sh\n" << script << '\n';
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }

 private:
  TempFolder folder_;
  std::string path_ = std::getenv("PATH");
  machine::RunningProgram process_;
};

TEST_F(OfAProcess, AreThoseOfPySpy) {
  EXPECT_THAT(frames().problem, HasSubstr("PATH has no py-spy: pip install py-spy"));
  write_py_spy(R"(echo "[{\"os_thread_id\": $5, \"frames\": [
    {\"name\": \"Loader.read\", \"filename\": \"/data/train.py\", \"line\": 22},
    {\"name\": \"<module>\", \"filename\": \"train.py\", \"line\": 40}]},
    {\"os_thread_id\": null, \"frames\": []}]")");
  const auto found = frames();
  EXPECT_EQ(found.problem, "");
  ASSERT_EQ(found.threads.size(), 1U);
  EXPECT_THAT(found.threads.begin()->second,
              ElementsAre("Python: Loader.read at train.py:22", "Python: <module> at train.py:40"));
  write_py_spy("echo 'Error: Permission denied' >&2; exit 1");
  EXPECT_THAT(frames().problem, HasSubstr("Permission denied"));
  EXPECT_THAT(frames().threads, IsEmpty());
}

TEST_F(OfAProcess, AreBounded) {
  write_py_spy("exec /bin/cat /dev/zero");
  EXPECT_THAT(frames().problem, HasSubstr("py-spy printed more than 8.0 MiB"));
  EXPECT_THAT(frames(std::chrono::seconds(0)).problem, HasSubstr("the time for all processes is over"));
}

TEST(PythonFrames, HaveNoControlCharacters) {
  const auto found = observe::python_frames_from(
      R"([{"os_thread_id": 7, "frames": [{"name": "f\u001b[2J", "filename": "a\n.py", "line": 1}]}])");
  EXPECT_THAT(found.threads.at(7), ElementsAre("Python: f?[2J at a?.py:1"));
}

TEST(PythonFrames, AProcessWithoutPythonHasNone) {
  const auto found = observe::python_frames_of(::getpid(), Deadline(std::chrono::seconds(60)));
  EXPECT_EQ(found.problem, "");
  EXPECT_THAT(found.threads, IsEmpty());
}

TEST(PythonFrames, AnotherTextIsAnError) {
  for (const char* text : {"", "{}}", "[1]", R"([{"os_thread_id": "x", "frames": []}])"})
    EXPECT_THAT(error_of([&] { (void)observe::python_frames_from(text); }), HasSubstr("py-spy has printed"));
}

}  // namespace
}  // namespace lockstep::testing
