// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/allocator_environment.h>

namespace lockstep::launch {
namespace {

struct PreloadedAllocator {
  const char* name;
  std::array<const char*, 2> files;
  const char* package;
};

constexpr std::array kPreloaded{
    PreloadedAllocator{"jemalloc", {"libjemalloc.so.2", "libjemalloc.so.1"}, "libjemalloc2"},
    PreloadedAllocator{"tcmalloc", {"libtcmalloc.so.4", "libtcmalloc_minimal.so.4"}, "libtcmalloc-minimal4"},
};

// Where Debian, Fedora and a user's own builds put libraries.
std::vector<std::filesystem::path> library_folders() {
  std::vector<std::filesystem::path> folders;
#if defined(__x86_64__)
  folders.emplace_back("/usr/lib/x86_64-linux-gnu");
#elif defined(__aarch64__)
  folders.emplace_back("/usr/lib/aarch64-linux-gnu");
#endif
  for (const char* folder : {"/usr/lib64", "/usr/lib", "/usr/local/lib"}) folders.emplace_back(folder);
  return folders;
}

std::optional<std::string> find_library(const PreloadedAllocator& allocator) {
  for (const auto& folder : library_folders()) {
    for (const char* file : allocator.files) {
      std::error_code ignored;
      if (std::filesystem::exists(folder / file, ignored)) return (folder / file).string();
    }
  }
  return std::nullopt;
}

std::map<std::string, std::string> preload(const PreloadedAllocator& allocator, const Env& inherited) {
  const auto library = find_library(allocator);
  if (!library) {
    throw LaunchError(fmt::format("memory-allocator {}: {} was not found; on Debian: apt-get install {}",
                                  allocator.name, allocator.files.front(), allocator.package));
  }
  const auto before = inherited.get("LD_PRELOAD");
  return {{"LD_PRELOAD", before ? *library + ":" + *before : *library}};
}

}  // namespace

void check_allocator(const std::string& name) {
  if (name == "default" || name == "tuned") return;
  if (std::ranges::any_of(kPreloaded, [&](const auto& known) { return name == known.name; })) return;
  throw ArgumentError(fmt::format("memory-allocator {}: give default, tuned, jemalloc or tcmalloc", name));
}

std::map<std::string, std::string> allocator_environment(const std::string& name, const Env& inherited) {
  check_allocator(name);
  if (name == "default") return {};
  if (name == "tuned")
    return {{"MALLOC_MMAP_MAX_", "0"},
            {"MALLOC_TRIM_THRESHOLD_", "17179869184"},
            {"MALLOC_TOP_PAD_", "67108864"},
            {"MALLOC_ARENA_MAX", "1"}};
  return preload(*std::ranges::find_if(kPreloaded, [&](const auto& known) { return name == known.name; }),
                 inherited);
}

}  // namespace lockstep::launch
