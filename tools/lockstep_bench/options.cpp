// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "collectives.h"

namespace lockstep::bench {
namespace {

const std::map<std::string, c10::ScalarType>& dtypes() {
  using c10::ScalarType;
  static const std::map<std::string, ScalarType> all{
      {"float32", ScalarType::Float},     {"float64", ScalarType::Double}, {"float16", ScalarType::Half},
      {"bfloat16", ScalarType::BFloat16}, {"int32", ScalarType::Int},      {"int64", ScalarType::Long},
      {"uint8", ScalarType::Byte}};
  return all;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  std::string part;
  while (std::getline(stream, part, separator)) parts.push_back(part);
  return parts;
}

std::size_t parse_size(const std::string& text) {
  std::size_t used = 0;
  std::size_t value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::map<std::string, std::size_t> units{
      {"", 1}, {"K", 1UL << 10U}, {"M", 1UL << 20U}, {"G", 1UL << 30U}};
  std::string unit = text.substr(std::min(used, text.size()));
  std::ranges::transform(unit, unit.begin(), [](unsigned char letter) { return std::toupper(letter); });
  const auto found = units.find(unit);
  if (used == 0 || value == 0 || found == units.end()) {
    throw ArgumentError(
        fmt::format("--sizes: \"{}\" is no size; write a number above 0, with K, M or G", text));
  }
  return value * found->second;
}

std::vector<std::size_t> parse_range(const std::string& text) {
  const auto parts = split(text, ':');
  if (parts.size() > 3)
    throw ArgumentError(fmt::format("--sizes: \"{}\" is not first:last or first:last:factor", text));
  const auto first = parse_size(parts.front());
  const auto last = parse_size(parts[1]);
  const auto factor = parts.size() == 3 ? parse_size(parts[2]) : 2;
  if (factor < 2) throw ArgumentError(fmt::format("--sizes: \"{}\": the factor must be 2 or more", text));
  std::vector<std::size_t> sizes;
  for (auto size = first; size <= last; size *= factor) sizes.push_back(size);
  return sizes;
}

void check_names(const Options& options) {
  for (const auto& memory : options.memories) {
    if (memory != "ordinary" && memory != "inplace") {
      throw ArgumentError(fmt::format("--memory: \"{}\" is neither ordinary nor inplace", memory));
    }
  }
}

}  // namespace

std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (const auto& part : split(text, ',')) {
    const auto more = part.find(':') == std::string::npos ? std::vector{parse_size(part)} : parse_range(part);
    sizes.insert(sizes.end(), more.begin(), more.end());
  }
  if (sizes.empty()) throw ArgumentError(fmt::format("--sizes: \"{}\" names no size", text));
  return sizes;
}

c10::ScalarType parse_dtype(const std::string& name) {
  if (const auto found = dtypes().find(name); found != dtypes().end()) return found->second;
  std::string known;
  for (const auto& [each, dtype] : dtypes()) known += (known.empty() ? "" : ", ") + each;
  throw ArgumentError(fmt::format("--dtype: \"{}\" is not one of {}", name, known));
}

std::string name_of(c10::ScalarType dtype) {
  const auto found = std::ranges::find(dtypes(), dtype, [](const auto& entry) { return entry.second; });
  return found == dtypes().end() ? c10::toString(dtype) : found->first;
}

Options parse_options(int argc, char** argv) {
  CLI::App app("Times collectives between ranks", "lockstep bench");
  std::string collective;
  std::string backends = "shm,gloo";
  std::string memories = "ordinary,inplace";
  std::string sizes = "1K:256M:4";
  std::string dtype_names = "float32";
  bool json = false;
  bool csv = false;
  Options options;
  app.add_option("collective", collective, "all, or of these, separated by commas: " + collective_names())
      ->required();
  app.add_option("--backend", backends,
                 "One or more of shm, gloo, ..., and memory: all-reduce without any waiting, the "
                 "least time that the memory allows")
      ->capture_default_str();
  app.add_option("--memory", memories, "ordinary tensors, inplace: those that the backend allocates")
      ->capture_default_str();
  app.add_option("--sizes", sizes,
                 "first:last, first:last:factor or a list; bytes with K, M, G. Of a rank's tensor; for "
                 "gathers, scatters and all-to-all of all parts together")
      ->capture_default_str();
  app.add_option("--dtype", dtype_names, "float32, float64, float16, bfloat16, int32, int64, uint8")
      ->capture_default_str();
  app.add_option("--op", options.op, "sum, avg, min, max")
      ->capture_default_str()
      ->check(CLI::IsMember({"sum", "avg", "min", "max"}));
  app.add_option("--iterations", options.iterations, "Timed calls a row; 0: chosen by the size")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--bind,!--no-bind", options.bind, "Each rank on a core of its own (default)");
  app.add_flag("--check,!--no-check", options.check, "Compare results with what they must be (default)");
  auto* json_flag = app.add_flag("--json", json, "Print one JSON array");
  app.add_flag("--csv", csv, "Print comma-separated values")->excludes(json_flag);
  app.footer(
      "Ranks: lockstep bench --nproc N ... (default 2). Times are medians over the calls, of each call the "
      "slowest\n"
      "rank's; buffers are rewritten before each. algbw = size / time; busbw as nccl-tests define it.");
  app.parse(argc, argv);
  options.collectives = collective == "all" ? split(collective_names(), ',') : split(collective, ',');
  for (auto& name : options.collectives) name.erase(0, name.find_first_not_of(' '));
  options.backends = split(backends, ',');
  options.memories = split(memories, ',');
  options.sizes = parse_sizes(sizes);
  options.dtypes.clear();
  for (const auto& name : split(dtype_names, ',')) options.dtypes.push_back(parse_dtype(name));
  options.format = json ? Format::json : csv ? Format::csv : Format::table;
  check_names(options);
  return options;
}

}  // namespace lockstep::bench
