// SPDX-License-Identifier: BSD-3-Clause
#include "ckpt_command.h"

#include <cerrno>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::cli {
namespace {

std::string ckpt_program() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe");
  return (own.parent_path() / "lockstep-ckpt").string();
}

[[noreturn]] void become(std::vector<std::string> words) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv.front(), argv.data());
  throw LaunchError(
      fmt::format("lockstep ckpt needs the program {}, which cannot be started: {}; build the target "
                  "lockstep_ckpt, or install all of Lockstep",
                  words.front(), errno_text(errno)));
}

}  // namespace

CkptCommand::CkptCommand(CLI::App& app)
    : command_(app.add_subcommand("ckpt",
                                  "Show, compare, convert and verify checkpoints: lockstep ckpt show FILE")) {
  command_->set_help_flag();
  // A file may have the name of a subcommand.
  command_->prefix_command();
}

void CkptCommand::run(const std::vector<std::string>& rest) const {
  auto words = command_->remaining();
  words.insert(words.begin(), ckpt_program());
  words.insert(words.end(), rest.begin(), rest.end());
  become(std::move(words));
}

}  // namespace lockstep::cli
