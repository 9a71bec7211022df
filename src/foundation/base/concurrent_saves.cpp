// SPDX-License-Identifier: BSD-3-Clause
#include "base/concurrent_saves.h"

#include <atomic>
#include <sys/stat.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/base/world.h>

#include "base/launched_rank.h"

namespace lockstep {
namespace {

std::atomic<std::uint64_t>& own_saves() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

bool is_rank_of_several() { return current_world().size > 1 || launched_rank().has_value(); }

}  // namespace

std::optional<ConcurrentSaves::Identity> ConcurrentSaves::identity_of(const std::filesystem::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) return std::nullopt;
  return Identity{.device = status.st_dev, .number = status.st_ino};
}

ConcurrentSaves::ConcurrentSaves(std::filesystem::path file)
    : file_(std::move(file)), before_(identity_of(file_)), own_saves_before_(own_saves().load()) {}

void ConcurrentSaves::saved() { ++own_saves(); }

void ConcurrentSaves::warn_if_any() const {
  static std::atomic<bool> warned{false};
  if (warned || !is_rank_of_several()) return;
  // Another thread of this process may save the file too; only thread ranks then are several ranks.
  if (!is_thread_rank() && own_saves().load() != own_saves_before_) return;
  const auto now = identity_of(file_);
  if (!now || now == before_ || warned.exchange(true)) return;
  log(LogLevel::warning,
      fmt::format(
          "{}: another process replaced it while this rank saved it; the file stays whole, but only the last "
          "save remains. If every rank saves the same file, save it on one rank: `if (rank == 0) save(...)`, "
          "or give each rank a file of its own; if it is the part of a distributed checkpoint, save it on all "
          "ranks together, without no_dist",
          file_.string()));
}

}  // namespace lockstep
