// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/launch.h"
#include "support/temp_folder.h"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;

class FindProgram : public ::testing::Test {
 protected:
  FindProgram() {
    std::filesystem::create_directories(folder_ / "a" / "tool");  // a folder of that name is skipped
    std::filesystem::create_directories(folder_ / "b");
    std::ofstream(folder_ / "a" / "plain") << "text";
    std::ofstream(folder_ / "b" / "tool") << "#!/bin/sh\n";
    ::chmod((folder_ / "b" / "tool").c_str(), 0755);
  }

  std::string a() const { return folder_ / "a"; }
  std::string b() const { return folder_ / "b"; }
  Env path(const std::string& value) const { return Env({{"PATH", value}}); }

  void expect_refusal(const std::string& name, const Env& env, int exit_code, const std::string& text) {
    try {
      FAIL() << "found " << find_program(name, env);
    } catch (const ProgramError& error) {
      EXPECT_EQ(error.exit_code(), exit_code);
      EXPECT_THAT(error.what(), HasSubstr(text));
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }

  testing::TempFolder folder_;
};

TEST_F(FindProgram, SearchesPathInOrder) {
  EXPECT_EQ(find_program("tool", path(a() + ":" + b())), b() + "/tool");
  EXPECT_EQ(find_program("sh", Env(std::map<std::string, std::string>{})), "/bin/sh");
}

TEST_F(FindProgram, UsesANameWithASlashUnchanged) {
  EXPECT_EQ(find_program(b() + "/tool", path("")), b() + "/tool");
}

TEST_F(FindProgram, ReportsTheReasonAndExitsLikeAShell) {
  expect_refusal("nosuch", path(a()), 127, "not found");
  expect_refusal(a() + "/nosuch", path(a()), 127, "No such file");
  expect_refusal("plain", path(a()), 126, "chmod +x");
  expect_refusal(a() + "/plain", path(a()), 126, "Permission denied");
  expect_refusal(a(), path(a()), 126, "Is a directory");
}

}  // namespace
}  // namespace lockstep::launch
