// SPDX-License-Identifier: BSD-3-Clause
#include "report_parts.h"

#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/version.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "machine/host.h"
#include "observe/private_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

// "Debian GNU/Linux 12 (bookworm)"; empty if the system does not say.
std::string system_name() {
  constexpr std::string_view key = "PRETTY_NAME=";
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::erase(line, '"');
    return line.substr(key.size());
  }
  return {};
}

}  // namespace

void require_report_file(const fs::path& file) {
  const auto folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const auto refusal =
      file.has_filename() ? observe::reason_not_to_replace(file) : "it is a folder; name a file";
  if (!refusal.empty()) throw_error<ArgumentError>("--report {}: {}", file.string(), refusal);
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw_error<ArgumentError>("--report {}: the folder {} cannot be written: {}; use an existing folder",
                             file.string(), folder.string(), errno_text(errno));
}

std::string local_time(double seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 64> text{};
  (void)std::strftime(text.data(), text.size(), "%F %T %z", &parts);
  return text.data();
}

std::vector<std::string> own_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

observe::Facts report_facts(const std::string& libtorch) {
  utsname system{};
  (void)::uname(&system);
  const auto processor = machine::read_processor();
  const auto memory = machine::read_memory();
  observe::Facts facts{{"Lockstep", version()},
                       {"LibTorch", libtorch.empty() ? "not known" : libtorch},
                       {"Compiler", fmt::format("{}, of this command", kCompiler)},
                       {"Host", host_name()},
                       {"System", system_name()},
                       {"Kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
                       {"C library", fmt::format("glibc {}", ::gnu_get_libc_version())},
                       {"Processor", processor.model},
                       {"Usable cores", std::to_string(processor.usable)},
                       {"Memory", memory.total == 0 ? "not known" : bytes_text(memory.total)}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

}  // namespace lockstep::cli
