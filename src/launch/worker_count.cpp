// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/launch/worker_count.h>

namespace lockstep::launch {
namespace {

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_gpu_node(const std::string& name) {
  constexpr std::string_view prefix = "nvidia";
  return name.starts_with(prefix) && whole_number(name.substr(prefix.size())).value_or(-1) >= 0;
}

int gpu_nodes(const std::filesystem::path& device_folder) {
  std::error_code unreadable;
  const std::filesystem::directory_iterator entries(device_folder, unreadable);
  if (unreadable) return 0;
  return static_cast<int>(std::ranges::count_if(
      entries, [](const auto& entry) { return is_gpu_node(entry.path().filename().string()); }));
}

bool names_a_device(const std::string& entry, int devices) {
  if (const auto index = whole_number(entry)) return *index >= 0 && *index < devices;
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

}  // namespace

int visible_gpus(const std::filesystem::path& device_folder,
                 const std::optional<std::string>& cuda_visible_devices) {
  const int devices = gpu_nodes(device_folder);
  if (!cuda_visible_devices || devices == 0) return devices;
  int visible = 0;
  std::istringstream entries(*cuda_visible_devices);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (!names_a_device(without_spaces(entry), devices)) break;
    ++visible;
  }
  return visible;
}

Machine this_machine() {
  // Not through Env: here the empty value means something other than no value.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return {.cores = usable_cores(),
          .gpus = visible_gpus("/dev", visible ? std::optional<std::string>(visible) : std::nullopt)};
}

int worker_count(const std::string& nproc_per_node, const Machine& machine) {
  if (nproc_per_node == "cpu") return machine.cores;
  if (nproc_per_node == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (nproc_per_node == "gpu") {
    if (machine.gpus > 0) return machine.gpus;
    throw ArgumentError(
        "nproc-per-node is \"gpu\", but no GPU is visible here: /dev has no nvidia0, nvidia1, ..., or "
        "CUDA_VISIBLE_DEVICES hides them. Give a number, \"cpu\" or \"auto\"");
  }
  const auto count = whole_number(nproc_per_node);
  if (count && *count > 0) return *count;
  throw ArgumentError(fmt::format(
      "nproc-per-node is \"{}\": give a whole number above 0, \"gpu\", \"cpu\" or \"auto\"", nproc_per_node));
}

}  // namespace lockstep::launch
