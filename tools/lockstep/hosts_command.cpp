// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --hosts`, and `lockstep node` on the hosts.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "commands.h"
#include "machine/command.h"
#include "run_arguments.h"

namespace lockstep::cli {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr std::chrono::seconds kOrderLimit{60};

// --export, options that are set in the environment, and the secret.
Variables environment_for_hosts(const RunArguments& arguments, const Env& env) {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (text.starts_with("PET_")) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& word : arguments.exported) {
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const auto value = equals == std::string::npos ? env.get(name) : word.substr(equals + 1);
    if (name.empty() || !value) {
      throw_error<ArgumentError>("--export {}: the variable is not set here; use NAME=VALUE", word);
    }
    variables[name] = *value;
  }
  const auto secret = launch::read_secret(arguments.secret_file, env);
  variables["LOCKSTEP_SECRET"] = secret.empty() ? random_hex(4) : secret.text();
  return variables;
}

// The hosts find most errors, but a user reads each of them once.
launch::LaunchOptions checked_here(const RunArguments& arguments, const Env& env) {
  constexpr int many = std::numeric_limits<int>::max();
  return launch_options(arguments, {.cores = many, .gpus = many}, env);
}

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

launch::HostsOptions hosts_options(const RunArguments& arguments, const std::vector<std::string>& words,
                                   const Env& env) {
  const auto checked = checked_here(arguments, env);
  launch::HostsOptions options{
      .hosts = launch::parse_hosts(arguments.hosts),
      .shell = machine::remote_shell(arguments.ssh),
      .program = arguments.lockstep.empty() ? own_program().string() : arguments.lockstep,
      .stop_signals = checked.stop_signals,
      .grace_period = checked.grace_period};
  const auto environment = environment_for_hosts(arguments, env);
  for (std::size_t index = 0; index < options.hosts.size(); ++index) {
    auto of_host = words;
    of_host.insert(of_host.begin() + 1, {"--host-index", std::to_string(index)});
    options.orders.push_back({.arguments = std::move(of_host),
                              .environment = environment,
                              .folder = std::filesystem::current_path().string()});
  }
  return options;
}

Command node_command(CLI::App& app) {
  auto* node = app.add_subcommand("node", "Used by lockstep run --hosts");
  node->group("");
  return {.app = node, .run = [](const auto& /*rest*/) { return run_order(); }};
}

}  // namespace lockstep::cli
