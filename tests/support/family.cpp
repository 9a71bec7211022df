// SPDX-License-Identifier: BSD-3-Clause
#include "support/family.h"

#include <atomic>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/deadline.h"

namespace lockstep::testing {
namespace {

constexpr std::chrono::seconds kFamilyPatience{60};

std::string new_mark() {
  static std::atomic<int> count = 0;
  return fmt::format("{}.{}", ::getpid(), count++);
}

bool carries(pid_t pid, const std::string& entry_wanted) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid));
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry == entry_wanted) return true;
  }
  return false;
}

struct Stat {
  char state = '?';
  pid_t parent = 0;
};

Stat stat_of(pid_t pid) {
  std::string text;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), text, '\0');
  Stat stat;
  const auto name_end = text.rfind(')');
  if (name_end != std::string::npos)
    std::istringstream(text.substr(name_end + 1)) >> stat.state >> stat.parent;
  return stat;
}

}  // namespace

Family::Family() : mark_{{kFamilyVariable, new_mark()}} {}

Family::~Family() {
  for (const pid_t pid : members()) ::kill(pid, SIGKILL);
}

std::vector<pid_t> Family::members() const {
  const auto entry_wanted = fmt::format("{}={}", kFamilyVariable, mark_.at(kFamilyVariable));
  std::vector<pid_t> pids;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    if (carries(pid, entry_wanted)) pids.push_back(pid);
  }
  return pids;
}

std::vector<pid_t> Family::children_of(pid_t parent) const {
  auto pids = members();
  std::erase_if(pids, [&](pid_t pid) { return parent_of(pid) != parent; });
  return pids;
}

void Family::wait_for(std::size_t size) const {
  const Deadline deadline(kFamilyPatience);
  for (auto found = members().size(); found < size; found = members().size()) {
    if (deadline.expired()) throw std::runtime_error(fmt::format("there are only {} processes", found));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void Family::wait_for_none() const {
  const Deadline deadline(kFamilyPatience);
  for (auto left = members(); !left.empty(); left = members()) {
    if (deadline.expired()) throw std::runtime_error(fmt::format("{} processes are left", left.size()));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

pid_t parent_of(pid_t pid) { return stat_of(pid).parent; }

void wait_for_state(pid_t pid, char state) {
  const Deadline deadline(kFamilyPatience);
  while (stat_of(pid).state != state) {
    if (deadline.expired())
      throw std::runtime_error(fmt::format("process {} never was in state {}", pid, state));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void wait_for_wait(pid_t pid, std::string_view function) {
  const Deadline deadline(kFamilyPatience);
  std::string where;
  do {
    if (deadline.expired()) throw std::runtime_error(fmt::format("process {} waits in {}", pid, where));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::getline(std::ifstream(fmt::format("/proc/{}/wchan", pid)), where);
  } while (where.find(function) == std::string::npos);
}

}  // namespace lockstep::testing
