// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <fstream>
#include <future>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/machine/command.h>
#include <lockstep/machine/gpu.h>

#include "machine/nvidia_smi.h"

namespace lockstep::machine {
namespace {

constexpr int kSmiNotFound = 127;

std::string base_name(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// The words of a process's command line; `program` where the number is another process's, as it may be in a
// container, or none is seen.
std::string command_line(int pid, const std::string& program) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", pid));
  std::string line;
  std::string first;
  for (std::string word; std::getline(file, word, '\0');) {
    if (line.empty()) first = word;
    line += line.empty() ? word : " " + word;
  }
  return base_name(first) == base_name(program) ? line : program;
}

void place(std::vector<Gpu>& gpus, const std::vector<PlacedProcess>& processes) {
  for (const auto& [uuid, process] : processes) {
    const auto gpu = std::ranges::find(gpus, uuid, &Gpu::uuid);
    if (gpu == gpus.end()) continue;
    gpu->processes.push_back(process);
    gpu->processes.back().command = command_line(process.pid, process.command);
  }
}

Gpu* named_by(std::vector<Gpu>& gpus, const std::string& entry) {
  const auto found = std::ranges::find_if(gpus, [&](const Gpu& gpu) {
    if (entry == std::to_string(gpu.index)) return true;
    const bool is_uuid = entry.size() > 4 && entry.starts_with("GPU-") && gpu.uuid.starts_with(entry);
    return is_uuid || (entry.starts_with("MIG-") && gpu.mig_mode == "Enabled");
  });
  return found == gpus.end() ? nullptr : &*found;
}

}  // namespace

void mark_hidden(std::vector<Gpu>& gpus, const std::optional<std::string>& visible) {
  if (!visible) return;
  for (auto& gpu : gpus) gpu.hidden = true;
  std::istringstream entries(*visible);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::erase(entry, ' ');
    if (named_by(gpus, entry) == nullptr) return;
    for (auto& gpu : gpus) {
      const bool shown = &gpu == named_by(gpus, entry);
      const bool maybe = entry.starts_with("MIG-") && gpu.mig_mode == "Enabled";
      if (shown || maybe) gpu.hidden = false;
    }
  }
}

Gpus read_gpus(const std::optional<std::string>& visible, std::chrono::milliseconds timeout) {
  // nvidia-smi takes its time, so both questions are put at once.
  auto second = std::async(std::launch::async, [&] { return run_command(process_query(), timeout); });
  const auto described = run_command(gpu_query(), timeout);
  const auto processes = second.get();
  if (!described.started) {
    const bool absent = described.exit_code == kSmiNotFound;
    return {.has_smi = false, .gpus = {}, .problem = absent ? "" : described.problem};
  }
  Gpus found{.has_smi = true, .gpus = parse_gpus(described.out), .problem = described.problem};
  if (found.problem.empty()) found.problem = processes.problem;
  place(found.gpus, parse_processes(processes.out));
  mark_hidden(found.gpus, visible);
  return found;
}

}  // namespace lockstep::machine
