// SPDX-License-Identifier: BSD-3-Clause
#include "machine/nvidia_smi.h"

#include <charconv>
#include <sstream>

namespace lockstep::machine {
namespace {

constexpr std::uint64_t kMebibyte = 1 << 20;

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The last field takes the rest of the line, commas and all.
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

// "[N/A]", "[Not Supported]", "[Unknown Error]" and "N/A" say nothing.
std::string known(const std::string& field) { return field.starts_with('[') || field == "N/A" ? "" : field; }

template <typename Number>
std::optional<Number> number(const std::string& field) {
  Number value{};
  const auto* end = field.data() + field.size();
  const auto [stop, code] = std::from_chars(field.data(), end, value);
  if (field.empty() || code != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> mebibytes(const std::string& field) {
  const auto value = number<std::uint64_t>(field);
  return value ? std::optional(*value * kMebibyte) : std::nullopt;
}

constexpr std::size_t kGpuFields = 14;
constexpr std::size_t kProcessFields = 4;

std::optional<Gpu> parse_gpu(const std::string& line) {
  const auto fields = fields_of(line, kGpuFields);
  if (fields.size() != kGpuFields || !number<int>(fields[0])) return std::nullopt;
  return Gpu{.index = *number<int>(fields[0]),
             .name = known(fields[13]),
             .uuid = known(fields[1]),
             .pci_bus = known(fields[2]),
             .memory_total = mebibytes(fields[3]),
             .memory_used = mebibytes(fields[4]),
             .utilization = number<int>(fields[5]),
             .temperature = number<int>(fields[6]),
             .power = number<double>(fields[7]),
             .power_limit = number<double>(fields[8]),
             .driver = known(fields[9]),
             .compute_mode = known(fields[10]),
             .mig_mode = known(fields[11]),
             .ecc_errors = number<std::int64_t>(fields[12])};
}

std::optional<PlacedProcess> parse_process(const std::string& line) {
  const auto fields = fields_of(line, kProcessFields);
  if (fields.size() != kProcessFields || !number<int>(fields[1])) return std::nullopt;
  return PlacedProcess(
      fields[0],
      {.pid = *number<int>(fields[1]), .command = known(fields[3]), .memory = mebibytes(fields[2])});
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
  return {"nvidia-smi",
          "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.used,utilization.gpu,temperature.gpu,"
          "power.draw,power.limit,driver_version,compute_mode,mig.mode.current,"
          "ecc.errors.uncorrected.volatile.total,name",
          "--format=csv,noheader,nounits"};
}

std::vector<std::string> process_query() {
  return {"nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name",
          "--format=csv,noheader,nounits"};
}

std::vector<Gpu> parse_gpus(const std::string& answer) { return rows_of<Gpu>(answer, parse_gpu); }

std::vector<PlacedProcess> parse_processes(const std::string& answer) {
  return rows_of<PlacedProcess>(answer, parse_process);
}

}  // namespace lockstep::machine
