// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "training/append_file.h"
#include "training/line_log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kBegin = R"({"step": )";

std::optional<std::int64_t> step_of_object(std::string_view line) {
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  return parse_number<std::int64_t>(line.substr(0, line.find_first_of(",}")));
}

std::string json_name(const std::string& name) {
  using Json = nlohmann::json;
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

class JsonLinesLog {
 public:
  JsonLinesLog(const fs::path& file, std::int64_t first_step)
      : lines_(file, training::kept_lines(file, 0, first_step, step_of_object).size()) {}

  static fs::path path_of_rank(const fs::path& file) { return training::of_this_rank(file); }

  void write(std::int64_t step, const Scalars& scalars) {
    training::check_names("json_lines_logger", scalars);
    auto line = fmt::format("{}{}", kBegin, step);
    for (const auto& [name, value] : scalars) {
      line += fmt::format(", {}: {}", json_name(name), json_number(value));
    }
    lines_.append(line + "}\n");
  }

 private:
  training::AppendFile lines_;
};

}  // namespace

Logger json_lines_logger(fs::path file, LoggerOptions options) {
  return training::logger_to<JsonLinesLog>(std::move(file), options);
}

}  // namespace lockstep
