// SPDX-License-Identifier: BSD-3-Clause
#include <mutex>
#include <unistd.h>

#include <fmt/ranges.h>

#include <lockstep/base/world.h>

#include "base/launched_rank.h"
#include "training/line_log.h"
#include "training/terminal.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void write_scalars(SummaryWriter& writer, std::int64_t step, const Scalars& scalars) {
  for (const auto& [name, value] : scalars) writer.add_scalar(name, value, step);
}

class TensorBoardLog {
 public:
  TensorBoardLog(const fs::path& log_dir, std::int64_t first_step)
      : writer_(log_dir, {.purge_step = first_step}) {}

  // TensorBoard shows each folder as a run.
  static fs::path path_of_rank(const fs::path& log_dir) {
    return log_dir / fmt::format("rank{}", current_world().rank);
  }

  void write(std::int64_t step, const Scalars& scalars) { write_scalars(writer_, step, scalars); }

 private:
  SummaryWriter writer_;
};

}  // namespace

struct Logger::State {
  Write write;
  LoggerOptions options;
  std::mutex mutex{};
};

Logger::Logger(Write write, LoggerOptions options)
    : state_(std::make_shared<State>(std::move(write), options)) {}

void Logger::log(std::int64_t step, const Scalars& scalars) const {
  const auto world = shared_world("Logger");
  if (!state_->options.every_rank && world.rank != 0) return;
  const std::lock_guard lock(state_->mutex);
  state_->write(step, scalars);
}

Logger console_logger(LoggerOptions options) {
  const auto write = [options](std::int64_t step, const Scalars& scalars) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : scalars) parts.push_back(fmt::format("{} {:.6g}", name, value));
    const auto rank = options.every_rank ? fmt::format("rank {}, ", current_world().rank) : "";
    training::write_line(STDOUT_FILENO, fmt::format("{}step {}: {}\n", rank, step, fmt::join(parts, ", ")));
  };
  return Logger(write, options);
}

Logger tensorboard_logger(fs::path log_dir, LoggerOptions options) {
  return training::logger_to<TensorBoardLog>(std::move(log_dir), options);
}

Logger tensorboard_logger(SummaryWriter writer, LoggerOptions options) {
  return Logger(
      [writer = std::move(writer)](std::int64_t step, const Scalars& scalars) mutable {
        write_scalars(writer, step, scalars);
      },
      options);
}

}  // namespace lockstep
