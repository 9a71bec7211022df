// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/training/logging.h>

namespace lockstep::training {

// "log.csv" as "log.rank1.csv" on rank 1.
std::filesystem::path of_this_rank(const std::filesystem::path& file);

// Throws ArgumentError for a name that a line cannot have.
void check_names(const char* logger, const Scalars& scalars);

// The lines of a log that a run keeps that continues at `step`: the whole ones before the first of that step
// or a later one. Empty if there is no file. `step_of` returns nullopt for a line of another kind, which is
// an Error.
std::string kept_lines(const std::filesystem::path& file, int header_lines, std::int64_t step,
                       const std::function<std::optional<std::int64_t>(std::string_view)>& step_of);

// A logger to a Log(path, first step), which it makes at the first record.
template <typename Log>
Logger logger_to(std::filesystem::path path, LoggerOptions options) {
  const auto write = [path = std::move(path), options, log = std::shared_ptr<Log>()](
                         std::int64_t step, const Scalars& scalars) mutable {
    if (!log) log = std::make_shared<Log>(options.every_rank ? Log::path_of_rank(path) : path, step);
    log->write(step, scalars);
  };
  return Logger(write, options);
}

}  // namespace lockstep::training
