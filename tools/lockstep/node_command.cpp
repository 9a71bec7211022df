// SPDX-License-Identifier: BSD-3-Clause
#include "node_command.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/throw_error.h"
#include "launch/host_control.h"

namespace lockstep::cli {
namespace {

constexpr std::chrono::seconds kOrderLimit{60};

void set_variable(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

void enter(const std::string& folder) {
  std::error_code error;
  std::filesystem::current_path(folder, error);
  if (!error) return;
  throw_error<LaunchError>(
      "the folder {}, from which the run was started, cannot be entered on {}: {}; start the run from a "
      "folder that all hosts have",
      folder, host_name(), error.message());
}

int run_order() {
  fmt::print("{}\n", launch::kNodeGreeting);
  std::fflush(stdout);
  const auto order = launch::read_node_order(STDIN_FILENO, Deadline(kOrderLimit));
  ::unsetenv("LOCKSTEP_SECRET_FILE");
  for (const auto& [name, value] : order.environment) set_variable(name, value);
  enter(order.folder);
  return run(order.arguments);
}

}  // namespace

Command node_command(CLI::App& app) {
  auto* node = app.add_subcommand("node", "Used by lockstep run --hosts");
  node->group("");
  return {.app = node, .run = [](const auto& /*rest*/) { return run_order(); }};
}

}  // namespace lockstep::cli
