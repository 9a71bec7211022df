// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep::testing {

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

// As root of a user namespace of its own, so that nobody has to be root outside.
inline bool mount_small_disk(const std::filesystem::path& folder) {
  const auto user = ::getuid();
  const auto group = ::getgid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", fmt::format("0 {} 1", user));
  write_text("/proc/self/gid_map", fmt::format("0 {} 1", group));
  return ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
}

// What a child made of it, who alone sees a disk of 1 MB at `folder`: its exit code, or nullopt where this
// system lets nobody make namespaces. What fails in `body` is printed by the child.
inline std::optional<int> on_small_disk(const std::filesystem::path& folder,
                                        const std::function<void()>& body) {
  constexpr int kNoDisk = 77;
  const auto pid = ::fork();
  if (pid == 0) {
    at::set_num_threads(1);  // a fork does not copy the threads of a pool
    if (!mount_small_disk(folder)) ::_exit(kNoDisk);
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code == kNoDisk ? std::nullopt : std::optional(code);
}

}  // namespace lockstep::testing
