// SPDX-License-Identifier: BSD-3-Clause
#include "training/line_log.h"

#include <fstream>
#include <iterator>

#include <lockstep/base/world.h>

#include "base/throw_error.h"

namespace lockstep::training {

std::filesystem::path of_this_rank(const std::filesystem::path& file) {
  const auto name =
      fmt::format("{}.rank{}{}", file.stem().string(), current_world().rank, file.extension().string());
  return file.parent_path() / name;
}

void check_names(const char* logger, const Scalars& scalars) {
  for (const auto& [name, value] : scalars) {
    if (name == "step" || name.find_first_of("\r\n") != std::string::npos) {
      throw_error<ArgumentError>("{}: {:?} cannot be the name of a number", logger, name);
    }
  }
}

std::string kept_lines(const std::filesystem::path& file, int header_lines, std::int64_t step,
                       const std::function<std::optional<std::int64_t>(std::string_view)>& step_of) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  std::size_t kept = 0;
  for (int line = 1;; ++line) {
    const auto end = text.find('\n', kept);
    if (end == std::string::npos) break;
    if (line > header_lines) {
      const auto here = step_of(std::string_view(text).substr(kept, end - kept));
      if (!here) {
        throw_error<Error>("{} cannot be continued: line {} is not one of this kind of log; use another file",
                           file.string(), line);
      }
      if (*here >= step) break;
    }
    kept = end + 1;
  }
  if (!text.empty() && text.find('\n') == std::string::npos) {
    throw_error<Error>("{} cannot be continued: it has no whole line; use another file", file.string());
  }
  text.resize(kept);
  return text;
}

}  // namespace lockstep::training
