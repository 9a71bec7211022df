// SPDX-License-Identifier: BSD-3-Clause
#include "machine/gpu.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <sstream>

#include <fmt/format.h>

#include "base/text.h"
#include "machine/command.h"

namespace lockstep::machine {
namespace {

constexpr const char* kSmi = "nvidia-smi";

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The command line of the process; `program` if the pid is of another process or none, as in a container.
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

void assign_processes(std::vector<Gpu>& gpus, const std::vector<ProcessOnGpu>& processes) {
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
  for (auto entry : split(*visible, ',')) {
    std::erase(entry, ' ');
    const auto* const named = named_by(gpus, entry);
    if (named == nullptr) return;
    for (auto& gpu : gpus) {
      const bool maybe = entry.starts_with("MIG-") && gpu.mig_mode == "Enabled";
      if (&gpu == named || maybe) gpu.hidden = false;
    }
  }
}

Gpus read_gpus(const std::optional<std::string>& visible, std::chrono::milliseconds timeout) {
  if (!is_on_path(kSmi)) return {};
  // nvidia-smi is slow, so both queries run at the same time, where a thread can be started.
  auto second = std::async([&] { return run_command(process_query(), timeout); });
  const auto described = run_command(gpu_query(), timeout);
  const auto processes = second.get();
  if (!described.started) return {.has_smi = false, .gpus = {}, .problem = described.problem};
  Gpus found{.has_smi = true, .gpus = parse_gpus(described.out), .problem = described.problem};
  if (found.problem.empty()) found.problem = processes.problem;
  assign_processes(found.gpus, parse_processes(processes.out));
  mark_hidden(found.gpus, visible);
  return found;
}

namespace {

constexpr std::uint64_t kMebibyte = 1 << 20;

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The last field is the rest of the line, commas included.
std::vector<std::string> fields_of(const std::string& line, std::size_t count) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; fields.size() + 1 < count && std::getline(stream, field, ',');) {
    fields.push_back(trimmed(field));
  }
  std::string rest;
  if (std::getline(stream, rest)) fields.push_back(trimmed(rest));
  return fields;
}

// Unknown: "[N/A]", "[Not Supported]", "[Unknown Error]", "N/A".
std::string known(const std::string& field) { return field.starts_with('[') || field == "N/A" ? "" : field; }

std::optional<std::uint64_t> mebibytes(const std::string& field) {
  const auto value = parse_number<std::uint64_t>(field);
  return value ? std::optional(*value * kMebibyte) : std::nullopt;
}

constexpr std::size_t kGpuFields = 14;
constexpr std::size_t kProcessFields = 4;

std::optional<Gpu> parse_gpu(const std::string& line) {
  const auto fields = fields_of(line, kGpuFields);
  if (fields.size() != kGpuFields || !parse_number<int>(fields[0])) return std::nullopt;
  return Gpu{.index = *parse_number<int>(fields[0]),
             .name = known(fields[13]),
             .uuid = known(fields[1]),
             .pci_bus = known(fields[2]),
             .memory_total = mebibytes(fields[3]),
             .memory_used = mebibytes(fields[4]),
             .utilization = parse_number<int>(fields[5]),
             .temperature = parse_number<int>(fields[6]),
             .power = parse_number<double>(fields[7]),
             .power_limit = parse_number<double>(fields[8]),
             .driver = known(fields[9]),
             .compute_mode = known(fields[10]),
             .mig_mode = known(fields[11]),
             .ecc_errors = parse_number<std::int64_t>(fields[12])};
}

std::optional<ProcessOnGpu> parse_process(const std::string& line) {
  const auto fields = fields_of(line, kProcessFields);
  if (fields.size() != kProcessFields || !parse_number<int>(fields[1])) return std::nullopt;
  return ProcessOnGpu(
      fields[0],
      {.pid = *parse_number<int>(fields[1]), .command = known(fields[3]), .memory = mebibytes(fields[2])});
}

template <typename Row>
std::vector<Row> rows_of(const std::string& answer, std::optional<Row> (*parse)(const std::string&)) {
  std::vector<Row> rows;
  std::istringstream stream(answer);
  for (std::string line; std::getline(stream, line);) {
    if (auto row = parse(line)) rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace

std::vector<std::string> gpu_query() {
  return {kSmi,
          "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.used,utilization.gpu,temperature.gpu,"
          "power.draw,power.limit,driver_version,compute_mode,mig.mode.current,"
          "ecc.errors.uncorrected.volatile.total,name",
          "--format=csv,noheader,nounits"};
}

std::vector<std::string> process_query() {
  return {kSmi, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name",
          "--format=csv,noheader,nounits"};
}

std::vector<Gpu> parse_gpus(const std::string& answer) { return rows_of<Gpu>(answer, parse_gpu); }

std::vector<ProcessOnGpu> parse_processes(const std::string& answer) {
  return rows_of<ProcessOnGpu>(answer, parse_process);
}

namespace {

bool is_gpu_node(const std::string& name) {
  constexpr std::string_view prefix = "nvidia";
  return name.starts_with(prefix) && parse_number<int>(name.substr(prefix.size())).value_or(-1) >= 0;
}

int gpu_nodes(const std::filesystem::path& device_folder) {
  std::error_code unreadable;
  const std::filesystem::directory_iterator entries(device_folder, unreadable);
  if (unreadable) return 0;
  return static_cast<int>(std::ranges::count_if(
      entries, [](const auto& entry) { return is_gpu_node(entry.path().filename().string()); }));
}

bool names_a_device(const std::string& entry, int devices) {
  if (const auto index = parse_number<int>(entry)) return *index >= 0 && *index < devices;
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

}  // namespace

std::optional<std::string> cuda_visible_devices() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int visible_gpus(const std::filesystem::path& device_folder, const std::optional<std::string>& visible) {
  const int devices = gpu_nodes(device_folder);
  if (!visible || devices == 0) return devices;
  int count = 0;
  for (auto entry : split(*visible, ',')) {
    std::erase(entry, ' ');
    if (!names_a_device(entry, devices)) break;
    ++count;
  }
  return count;
}

}  // namespace lockstep::machine
