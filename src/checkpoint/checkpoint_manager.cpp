// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <charconv>
#include <exception>
#include <functional>
#include <future>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/rendezvous/init.h>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/share.h"
#include "checkpoint/snapshot.h"
#include "serialize/write_file.h"

namespace lockstep {
namespace {

using checkpointing::CheckpointFolder;
using checkpointing::Group;

void check(const CheckpointManagerOptions& options) {
  const auto refuse_negative = [](const char* name, std::int64_t value) {
    if (value < 0) {
      throw ArgumentError(
          fmt::format("CheckpointManager: {} = {} makes no sense; give 0 or more", name, value));
    }
  };
  refuse_negative("keep_last", options.keep_last);
  refuse_negative("keep_best", options.keep_best);
  refuse_negative("keep_every", options.keep_every);
}

Group group_of(const CheckpointManagerOptions& options) {
  if (options.group) return options.group;
  return is_initialized() ? Group(default_group()) : std::nullopt;
}

// "" stands for none.
std::string text_of(const std::optional<CheckpointInfo>& info) {
  if (!info) return "";
  return fmt::format("{} {}", info->step, info->metric ? fmt::format("{}", *info->metric) : "-");
}

}  // namespace

class CheckpointManager::Implementation {
 public:
  Implementation(std::filesystem::path path, CheckpointManagerOptions options)
      : options_(std::move(options)), folder_(std::move(path)), group_(group_of(options_)) {
    checkpointing::on_first(group_, [&] { folder_.make(); });
  }

  ~Implementation() {
    try {
      finish();
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
    }
  }

  void save(std::int64_t step, const Value& contents, std::optional<double> metric) {
    if (step < 0) throw ArgumentError(fmt::format("CheckpointManager: step {} is below 0", step));
    checkpointing::on_first(group_, [&] {
      // The failure of the save before comes out of this call, which is none: it goes on first.
      const auto failure = failure_of([&] { finish(); });
      begin_writing();
      if (options_.async_save) {
        const auto& copy = snapshot_.take(contents);
        writing_ = std::async(std::launch::async, [this, &copy, step, metric] { write(copy, step, metric); });
      } else {
        write(serialize::pickle_value(contents), step, metric);
      }
      if (failure) std::rethrow_exception(failure);
    });
  }

  void wait() {
    checkpointing::on_first(group_, [&] { finish(); });
  }

  std::vector<CheckpointInfo> list() const { return folder_.list(); }
  const std::filesystem::path& path() const { return folder_.path(); }

  std::optional<Checkpoint> load_first_whole(bool by_metric, const LoadOptions& options) {
    std::optional<CheckpointInfo> chosen;
    std::optional<Value> contents;
    checkpointing::on_first(group_, [&] {
      finish_quietly();
      auto candidates = folder_.list();
      if (by_metric) {
        candidates = checkpointing::by_metric(std::move(candidates), options_.higher_is_better);
      } else {
        std::ranges::reverse(candidates);
      }
      std::string reasons;
      for (auto& candidate : candidates) {
        contents = try_load(candidate, options, reasons);
        if (!contents) continue;
        chosen = std::move(candidate);
        return;
      }
      if (!candidates.empty()) {
        throw CheckpointError(fmt::format("{}: none of the {} checkpoints can be loaded:{}", path().string(),
                                          candidates.size(), reasons));
      }
    });
    chosen = shared(chosen);
    if (!chosen) return std::nullopt;
    return Checkpoint{.info = *chosen, .contents = distribute(*chosen, std::move(contents), options)};
  }

  Checkpoint load(std::int64_t step, const LoadOptions& options) {
    std::optional<CheckpointInfo> chosen;
    std::optional<Value> contents;
    checkpointing::on_first(group_, [&] {
      finish_quietly();
      for (const auto& info : folder_.list()) {
        if (info.step == step) chosen = info;
      }
      if (!chosen)
        throw CheckpointError(fmt::format("{}: there is no checkpoint of step {}", path().string(), step));
      contents = lockstep::load(chosen->file, first_look(options));
    });
    chosen = shared(chosen);
    return {.info = *chosen, .contents = distribute(*chosen, std::move(contents), options)};
  }

 private:
  // In the writing thread when saves are asynchronous.
  void write(const serialize::Pickled& pickled, std::int64_t step, std::optional<double> metric) const {
    folder_.make();
    auto infos = with_step(folder_.list(), step, metric);
    if (infos.back().step > step) {
      log(LogLevel::warning,
          fmt::format("{}: step {} is saved, but there is a checkpoint of step {}, which stays the latest",
                      path().string(), step, infos.back().step));
    }
    // Before the checkpoint: one without its metric might be taken for one that need not stay.
    folder_.write_metrics(infos, options_.sync);
    serialize::write_file(pickled, folder_.file_of(step), {.sync = options_.sync});
    const auto removed = checkpointing::to_remove(infos, step, options_);
    std::erase_if(infos, [&](const CheckpointInfo& info) {
      return std::ranges::find(removed, info.step, &CheckpointInfo::step) != removed.end();
    });
    const auto best = checkpointing::by_metric(infos, options_.higher_is_better);
    folder_.link("last.pt", infos.back().file);
    folder_.link("best.pt", best.empty() ? std::nullopt : std::optional(best.front().file));
    for (const auto& info : removed) folder_.remove(info);
  }

  std::vector<CheckpointInfo> with_step(std::vector<CheckpointInfo> infos, std::int64_t step,
                                        std::optional<double> metric) const {
    std::erase_if(infos, [&](const CheckpointInfo& info) { return info.step == step; });
    infos.push_back({.step = step, .file = folder_.file_of(step), .metric = metric});
    std::ranges::sort(infos, {}, &CheckpointInfo::step);
    return infos;
  }

  // Who only reads changes nothing in the folder, where another process may be writing.
  void begin_writing() {
    if (std::exchange(has_written_, true)) return;
    folder_.make();
    folder_.remove_leftovers();
  }

  static std::exception_ptr failure_of(const std::function<void()>& action) {
    try {
      action();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  void finish() {
    if (writing_.valid()) writing_.get();
  }

  // For a load, a save that failed is one that is not there; its error still comes out of the next save().
  void finish_quietly() const {
    if (writing_.valid()) writing_.wait();
  }

  // Where every rank reads for itself, rank 0 only looks whether the file is whole.
  LoadOptions first_look(LoadOptions options) const {
    options.verify = true;
    if (options_.reading == CheckpointReading::every_rank) options.map_location = at::kMeta;
    return options;
  }

  std::optional<Value> try_load(const CheckpointInfo& info, const LoadOptions& options,
                                std::string& reasons) const {
    try {
      return lockstep::load(info.file, first_look(options));
    } catch (const CheckpointError& error) {
      log(LogLevel::warning, fmt::format("a checkpoint is passed over: {}", error.what()));
      reasons += fmt::format("\n  {}", error.what());
      return std::nullopt;
    }
  }

  // Rank 0's choice on all ranks.
  std::optional<CheckpointInfo> shared(const std::optional<CheckpointInfo>& chosen) const {
    const auto text = checkpointing::share_text(group_, text_of(chosen));
    if (text.empty()) return std::nullopt;
    const auto space = text.find(' ');
    CheckpointInfo info;
    std::from_chars(text.data(), text.data() + space, info.step);
    info.file = folder_.file_of(info.step);
    double metric = 0;
    const auto [stop, code] = std::from_chars(text.data() + space + 1, text.data() + text.size(), metric);
    if (code == std::errc()) info.metric = metric;
    return info;
  }

  Value distribute(const CheckpointInfo& info, std::optional<Value> contents,
                   const LoadOptions& options) const {
    if (options_.reading == CheckpointReading::broadcast) {
      return checkpointing::share_value(group_, contents ? *contents : Value(), options.map_location);
    }
    checkpointing::on_every(group_, [&] {
      auto own = options;
      own.verify = true;
      contents = lockstep::load(info.file, own);
    });
    return std::move(*contents);
  }

  CheckpointManagerOptions options_;
  CheckpointFolder folder_;
  Group group_;
  bool has_written_ = false;
  checkpointing::Snapshot snapshot_;
  std::future<void> writing_;
};

CheckpointManager::CheckpointManager(std::filesystem::path folder, CheckpointManagerOptions options) {
  check(options);
  implementation_ = std::make_unique<Implementation>(std::move(folder), std::move(options));
}

CheckpointManager::~CheckpointManager() = default;

void CheckpointManager::save(std::int64_t step, const Value& contents, std::optional<double> metric) {
  implementation_->save(step, contents, metric);
}

void CheckpointManager::wait() { implementation_->wait(); }

std::vector<CheckpointInfo> CheckpointManager::checkpoints() const { return implementation_->list(); }

std::optional<Checkpoint> CheckpointManager::load_latest(const LoadOptions& options) {
  return implementation_->load_first_whole(false, options);
}

std::optional<Checkpoint> CheckpointManager::load_best(const LoadOptions& options) {
  return implementation_->load_first_whole(true, options);
}

Checkpoint CheckpointManager::load(std::int64_t step, const LoadOptions& options) {
  return implementation_->load(step, options);
}

const std::filesystem::path& CheckpointManager::folder() const { return implementation_->path(); }

Value load_on_all(const ProcessGroup& group, const std::filesystem::path& file, const LoadOptions& options,
                  CheckpointReading reading) {
  Value value;
  if (reading == CheckpointReading::every_rank) {
    checkpointing::on_every(group, [&] { value = load(file, options); });
    return value;
  }
  checkpointing::on_first(group, [&] { value = load(file, options); });
  return checkpointing::share_value(group, value, options.map_location);
}

}  // namespace lockstep
