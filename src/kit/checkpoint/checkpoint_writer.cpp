// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "checkpoint/tensor_copies.h"
#include "serialize/torch_format.h"

namespace lockstep::checkpointing {
namespace {

// Note [Saves by rank 0]
//
// Rank 0 writes one file; the other ranks only learn the outcome (on_first).
//
// Phases of a save: finish the previous one, prepare the folder, pickle the value, write and publish.
//
// Threads: the caller's thread does everything. With async_save, it copies the storages (Snapshot) and starts
// one thread, `writing_`, which writes and publishes.
//
// Invariants: at most one thread runs, because each save() starts with finish(). While it runs, it alone uses
// `folder_` and the snapshot. Its error is thrown by exactly one later call of finish(), on all ranks.
class FirstRankWriter : public CheckpointWriter {
 public:
  using CheckpointWriter::CheckpointWriter;

  ~FirstRankWriter() override {
    try {
      finish();
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
    }
  }

  void save(std::int64_t step, const Value& contents, std::optional<double> metric) override {
    on_first(group_, [&] { run_both([&] { finish(); }, [&] { begin_and_write(step, contents, metric); }); });
  }

  void wait() override {
    on_first(group_, [&] { finish(); });
  }

  void drain() override {
    if (writing_.valid()) writing_.wait();
  }

 private:
  void begin_and_write(std::int64_t step, const Value& contents, std::optional<double> metric) {
    prepare_folder(step);
    const CheckpointInfo info{.step = step, .file = folder_.file_of(step), .metric = metric};
    if (options_.async_save) {
      const auto& copy = snapshot_.take(contents);
      writing_ = std::async(std::launch::async, [this, &copy, info] { write(copy, info); });
    } else {
      write(serialize::pickle_value(contents), info);
    }
  }

  void write(const serialize::Pickled& pickled, const CheckpointInfo& info) {
    publish(options_, folder_, info,
            [&] { serialize::write_file(pickled, info.file, {.sync = options_.sync}); });
  }

  void finish() {
    if (writing_.valid()) writing_.get();
  }

  Snapshot snapshot_;
  std::future<void> writing_;
};

std::vector<CheckpointInfo> with_new(std::vector<CheckpointInfo> infos, const CheckpointInfo& info) {
  std::erase_if(infos, [&](const CheckpointInfo& each) { return each.step == info.step; });
  infos.push_back(info);
  std::ranges::sort(infos, {}, &CheckpointInfo::step);
  return infos;
}

// Updates links first, so that they never point at a removed or damaged checkpoint.
void remove_checkpoints(const CheckpointManagerOptions& options, const CheckpointFolder& folder,
                        std::vector<CheckpointInfo> infos, const std::vector<CheckpointInfo>& removed) {
  std::erase_if(infos, [&](const CheckpointInfo& each) {
    return std::ranges::find(removed, each.step, &CheckpointInfo::step) != removed.end();
  });
  const auto whole = without(std::move(infos), folder.damaged());
  const auto best = by_metric(whole, options.higher_is_better);
  folder.link("last", whole.empty() ? std::nullopt : std::optional(whole.back().file));
  folder.link("best", best.empty() ? std::nullopt : std::optional(best.front().file));
  for (const auto& each : removed) folder.remove(each);
}

}  // namespace

void CheckpointWriter::prepare_folder(std::int64_t step) {
  folder_.make(options_.sync);
  if (!std::exchange(has_written_, true)) folder_.remove_leftovers();
  folder_.check_is_latest(step);
}

void run_both(const std::function<void()>& first, const std::function<void()>& second) {
  std::exception_ptr failure;
  std::string message;
  try {
    first();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    message = error.what();
  }
  try {
    second();
  } catch (const CheckpointError& error) {
    if (!failure) throw;
    throw_error<CheckpointError>("{}; the previous save failed, too: {}", error.what(), message);
  } catch (...) {
    if (failure) log(LogLevel::error, message);
    throw;
  }
  if (failure) std::rethrow_exception(failure);
}

std::unique_ptr<CheckpointWriter> write_on_first_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group) {
  return std::make_unique<FirstRankWriter>(options, folder, std::move(group));
}

void publish(const CheckpointManagerOptions& options, CheckpointFolder& folder, const CheckpointInfo& info,
             const std::function<void()>& write) {
  folder.make(options.sync);
  const auto before = folder.list();
  const auto infos = with_new(before, info);
  // A new checkpoint's metric is written first, because retention might remove a checkpoint without one. A
  // replaced checkpoint keeps its metric until it is replaced.
  const bool is_new = std::ranges::find(before, info.step, &CheckpointInfo::step) == before.end();
  if (is_new) folder.write_metrics(infos, options.sync);
  write();
  folder.found_whole(info.step);
  if (!is_new) folder.write_metrics(infos, options.sync);
  remove_checkpoints(options, folder, infos, to_remove(infos, folder.damaged(), info.step, options));
  // A checkpoint of the same step by another kind of writer.
  for (const auto& each : before) {
    if (each.step == info.step && each.file != info.file) folder.remove(each);
  }
}

void remove_after(const CheckpointManagerOptions& options, const CheckpointFolder& folder,
                  const CheckpointInfo& info) {
  const auto infos = folder.list();
  const auto first = std::ranges::upper_bound(infos, info.step, {}, &CheckpointInfo::step);
  remove_checkpoints(options, folder, infos, {first, infos.end()});
  const auto left = folder.list();
  folder.write_metrics(left, options.sync);
  if (left.empty() || left.back().step <= info.step) return;
  throw_error<CheckpointError>("{}: cannot be removed, so it is still the latest checkpoint",
                               left.back().file.string());
}

}  // namespace lockstep::checkpointing
