// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/devices.h"

#include <cstdlib>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "doctor/table.h"

namespace lockstep::doctor {
namespace {

using machine::Gpu;

std::string used_of(std::optional<std::uint64_t> used, std::optional<std::uint64_t> total) {
  if (!total) return "-";
  return fmt::format("{} of {}", bytes_text(used), bytes_text(total));
}

void append(std::string& notes, const std::string& note) {
  if (note.empty()) return;
  notes += (notes.empty() ? "" : ", ") + note;
}

std::string processor_notes(const machine::Processor& processor) {
  std::string notes = fmt::format("{} physical in {} package{}", processor.physical, processor.packages,
                                  processor.packages == 1 ? "" : "s");
  if (processor.allowed < processor.online) {
    append(notes, fmt::format("affinity mask of {}", processor.allowed));
  }
  if (processor.quota) append(notes, fmt::format("cgroup quota of {:.3g}", *processor.quota));
  append(notes, fmt::format("load {:.2f}", processor.load));
  return notes;
}

std::string memory_notes(const machine::Memory& memory) {
  if (!memory.cgroup_limit) return "";
  return fmt::format("cgroup limit of {}, {} left", bytes_text(memory.cgroup_limit),
                     bytes_text(memory.cgroup_left));
}

std::string power_text(const Gpu& gpu) {
  if (!gpu.power) return "";
  if (!gpu.power_limit) return fmt::format("{:.0f} W", *gpu.power);
  return fmt::format("{:.0f} of {:.0f} W", *gpu.power, *gpu.power_limit);
}

std::string gpu_notes(const Gpu& gpu) {
  std::string notes;
  if (gpu.hidden) append(notes, "hidden by CUDA_VISIBLE_DEVICES");
  if (gpu.temperature) append(notes, fmt::format("{} C", *gpu.temperature));
  append(notes, power_text(gpu));
  if (!gpu.driver.empty()) append(notes, "driver " + gpu.driver);
  if (!gpu.compute_mode.empty() && gpu.compute_mode != "Default") append(notes, "mode " + gpu.compute_mode);
  if (gpu.mig_mode == "Enabled") append(notes, "MIG");
  if (gpu.ecc_errors.value_or(0) > 0) {
    append(notes, fmt::format("{} uncorrected ECC errors", *gpu.ecc_errors));
  }
  return notes;
}

void add_gpu(Table& table, const Gpu& gpu) {
  table.add({fmt::format("gpu {}", gpu.index), gpu.name, "", used_of(gpu.memory_used, gpu.memory_total),
             gpu.utilization ? fmt::format("{}%", *gpu.utilization) : "-", gpu_notes(gpu)});
  for (const auto& process : gpu.processes) {
    const auto memory = process.memory ? bytes_text(process.memory) : "memory unknown";
    table.add_note(fmt::format("pid {}, {}: {}", process.pid, memory, process.command));
  }
}

void add_gpus(Table& table, const machine::Gpus& gpus) {
  for (const auto& gpu : gpus.gpus) add_gpu(table, gpu);
  if (!gpus.problem.empty()) {
    table.add({"gpu", "unknown"});
    table.add_note(gpus.problem);
  } else if (gpus.gpus.empty()) {
    table.add({"gpu", "none"});
    table.add_note(gpus.has_smi ? "nvidia-smi lists no GPU" : "nvidia-smi is not on PATH");
  }
}

// JSON's null for what is not known.
template <typename Value>
nlohmann::json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

nlohmann::json gpu_json(const Gpu& gpu) {
  auto processes = nlohmann::json::array();
  for (const auto& process : gpu.processes) {
    processes.push_back({{"pid", process.pid},
                         {"command", text_or_null(process.command)},
                         {"memory_bytes", or_null(process.memory)}});
  }
  return {{"index", gpu.index},
          {"name", text_or_null(gpu.name)},
          {"uuid", text_or_null(gpu.uuid)},
          {"pci_bus", text_or_null(gpu.pci_bus)},
          {"hidden", gpu.hidden},
          {"memory_total_bytes", or_null(gpu.memory_total)},
          {"memory_used_bytes", or_null(gpu.memory_used)},
          {"utilization_percent", or_null(gpu.utilization)},
          {"temperature_celsius", or_null(gpu.temperature)},
          {"power_watts", or_null(gpu.power)},
          {"power_limit_watts", or_null(gpu.power_limit)},
          {"driver", text_or_null(gpu.driver)},
          {"compute_mode", text_or_null(gpu.compute_mode)},
          {"mig_mode", text_or_null(gpu.mig_mode)},
          {"ecc_uncorrected", or_null(gpu.ecc_errors)},
          {"processes", processes}};
}

nlohmann::json processor_json(const machine::Processor& processor) {
  return {{"model", processor.model},          {"online", processor.online}, {"allowed", processor.allowed},
          {"quota", or_null(processor.quota)}, {"usable", processor.usable}, {"physical", processor.physical},
          {"packages", processor.packages},    {"load", processor.load}};
}

nlohmann::json memory_json(const machine::Memory& memory) {
  return {{"total_bytes", memory.total},
          {"available_bytes", memory.available},
          {"cgroup_limit_bytes", or_null(memory.cgroup_limit)},
          {"cgroup_left_bytes", or_null(memory.cgroup_left)}};
}

}  // namespace

Devices read_devices() {
  return {.host = host_name(),
          .processor = machine::read_processor(),
          .memory = machine::read_memory(),
          .nodes = machine::read_numa_nodes(),
          .gpus = machine::read_gpus(machine::cuda_visible_devices())};
}

std::string devices_text(const Devices& devices, std::optional<std::size_t> width) {
  Table table({{.title = "DEVICE"},
               {.title = "NAME", .may_shorten = true},
               {.title = "CORES", .right = true},
               {.title = "MEMORY IN USE", .right = true},
               {.title = "BUSY", .right = true},
               {.title = "NOTES", .may_shorten = true}});
  const auto& processor = devices.processor;
  table.add({"cpu", processor.model, fmt::format("{} of {}", processor.usable, processor.online), "", "",
             processor_notes(processor)});
  const auto& memory = devices.memory;
  table.add({"memory", devices.host, "", used_of(memory.total - memory.available, memory.total), "",
             memory_notes(memory)});
  for (const auto& node : devices.nodes) {
    table.add({fmt::format("numa {}", node.node), "CPUs " + machine::cpu_list_text(node.cpus),
               std::to_string(node.cpus.size()), used_of(node.total - node.free, node.total)});
  }
  add_gpus(table, devices.gpus);
  return table.text(width);
}

nlohmann::json devices_json(const Devices& devices) {
  auto nodes = nlohmann::json::array();
  for (const auto& node : devices.nodes) {
    nodes.push_back(
        {{"node", node.node}, {"cpus", node.cpus}, {"total_bytes", node.total}, {"free_bytes", node.free}});
  }
  auto gpus = nlohmann::json::array();
  for (const auto& gpu : devices.gpus.gpus) gpus.push_back(gpu_json(gpu));
  return {{"host", devices.host},
          {"cpu", processor_json(devices.processor)},
          {"memory", memory_json(devices.memory)},
          {"numa", nodes},
          {"gpus", gpus},
          {"nvidia_smi", devices.gpus.has_smi},
          {"gpu_problem", text_or_null(devices.gpus.problem)}};
}

}  // namespace lockstep::doctor
