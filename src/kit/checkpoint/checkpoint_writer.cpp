// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <stop_token>
#include <string>
#include <utility>

#include <lockstep/base/log.h>
#include <lockstep/base/mutex.h>

#include "base/limits.h"
#include "base/throw_error.h"
#include "checkpoint/distributed_save.h"
#include "checkpoint/tensor_copies.h"
#include "serialize/torch_format.h"

namespace lockstep::checkpointing {
namespace {

constexpr const char* kAsyncSave = "a save in the background";

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
      writing_ = start_async(kAsyncSave, [this, &copy, info] { write(copy, info); });
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
    throw_error<CheckpointError>(error.details(), "{}; the previous save failed, too: {}", error.what(),
                                 message);
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
  throw_error<CheckpointError>(ErrorDetails{.file = left.back().file},
                               "{}: cannot be removed, so it is still the latest checkpoint",
                               left.back().file.string());
}

namespace {

namespace fs = std::filesystem;
using distributed_checkpoint::DistributedSave;

// Note [Saves by every rank]
//
// A save runs the steps of note [Save protocol] in distributed_save.cpp, in the folder `place_`: the existing
// checkpoint of that step, or a folder with a temporary name that is renamed after commit(). First, finish()
// collects the previous asynchronous save. publish() adds metrics, links and retention to the commit.
//
//                     caller's thread        `writing_`, every rank     `publishing_`, rank 0
//     without async   plan, write, commit
//     async_save      plan, copy tensors     write                      poll is_complete(), commit
//
// Training continues during an asynchronous save and uses the group, so these threads make no collective
// call. The next save(), wait() or load joins them and makes their outcome known to all ranks.
//
// Invariants: `saving_` is set from the plan until the save has succeeded or has been abandoned, on all ranks
// alike. Only rank 0 publishes or removes folders; abandon() removes only the temporary one.
class EveryRankWriter : public CheckpointWriter {
 public:
  using CheckpointWriter::CheckpointWriter;

  ~EveryRankWriter() override {
    if (std::uncaught_exceptions() > 0) wait_with_grace();
    const auto log_error = [](auto& work) {
      try {
        if (work.valid()) work.get();
      } catch (const std::exception& error) {
        log(LogLevel::error, error.what());
      }
    };
    log_error(writing_);
    log_error(publishing_);
  }

  void save(std::int64_t step, const Value& contents, std::optional<double> metric) override {
    on_every(group_, [&] { contents.as_dict(); });
    run_both([&] { finish(); }, [&] { begin_and_write(step, contents.as_dict(), metric); });
  }

  void wait() override { finish(); }

  // A rank that cannot write its file may be unable to leave its mark, too.
  void drain() override {
    if (!saving_) return;
    if (!all_have_written()) stop_.request_stop();
    wait_here();
  }

 private:
  void begin_and_write(std::int64_t step, const Dict& contents, std::optional<double> metric) {
    const CheckpointInfo info{.step = step, .file = folder_.file_of(step, true), .metric = metric};
    begin(info);
    saving_.emplace(contents, group_, distributed_checkpoint::begin_save(place_, group_, options_.sync),
                    options_.async_save ? &copies_ : nullptr);
    options_.async_save ? start(info) : write_now(info);
  }

  void wait_here() const {
    if (writing_.valid()) writing_.wait();
    if (publishing_.valid()) publishing_.wait();
  }

  bool all_have_written() const {
    bool written = true;
    try {
      if (writing_.valid()) writing_.get();
    } catch (...) {
      written = false;  // finish() throws it
    }
    const auto all = gather_texts(group_, written ? "y" : "n");
    return std::ranges::find(all, "n") == all.end();
  }

  // This rank fails, maybe for another reason, so it gives the others time to finish. After a failed
  // collective call a rank is probably lost and may never write.
  void wait_with_grace() {
    if (!group_ || group_->size() == 1 || !publishing_.valid()) return;
    constexpr std::chrono::milliseconds grace{60'000};
    const auto has_failed = [](const CallRecord& call) { return call.state == CallState::failed; };
    const bool rank_lost = std::ranges::any_of(group_->recent_calls(), has_failed);
    if (!rank_lost) publishing_.wait_for(std::min(group_->timeout(), grace));
    stop_.request_stop();
  }

  void write_now(const CheckpointInfo& info) {
    or_abandon([&] {
      on_every(group_, [&] { write(); });
      on_first(group_, [&] { commit(info); });
    });
    saving_.reset();
  }

  void start(const CheckpointInfo& info) {
    stop_ = {};
    or_abandon([&] { on_every(group_, [&] { start_threads(info); }); });
  }

  void start_threads(const CheckpointInfo& info) {
    writing_ = start_async(kAsyncSave, [this] { write(); });
    if (!is_first(group_)) return;
    publishing_ = start_async(kAsyncSave, [this, info] {
      wait_for_files();
      commit(info);
    });
  }

  void begin(const CheckpointInfo& info) {
    on_first(group_, [&] {
      prepare_folder(info.step);
      std::error_code code;
      place_ = fs::is_directory(info.file, code) ? info.file : folder_.new_folder_for(info.step);
    });
    place_ = share_text(group_, place_.string());
  }

  void write() {
    try {
      saving_->write(place_, options_.sync);
    } catch (...) {
      saving_->give_up(place_);
      throw;
    }
  }

  void commit(const CheckpointInfo& info) {
    publish(options_, folder_, info, [&] {
      saving_->commit(place_, options_.sync);
      if (place_ != info.file) folder_.finish(place_, info.file, options_.sync);
    });
  }

  void wait_for_files() {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds longest{50};
    const auto limit = group_ ? group_->timeout() : std::chrono::milliseconds{0};
    const auto deadline = Clock::now() + limit;
    Mutex mutex;
    std::condition_variable_any never;
    const auto stop = stop_.get_token();
    for (std::chrono::milliseconds pause{1}; !saving_->is_complete(place_);
         pause = std::min(2 * pause, longest)) {
      if (group_ && Clock::now() > deadline) {
        throw_error<CheckpointError>(
            ErrorDetails{.file = place_},
            "{}: after {} ms not all ranks have written their parts; check that all ranks see the same "
            "folder",
            place_.string(), limit.count());
      }
      MutexLock lock(mutex);
      never.wait_for(lock, stop, pause, [] { return false; });
      if (stop.stop_requested())
        throw_error<CheckpointError>(ErrorDetails{.file = place_},
                                     "{}: not all ranks have written their parts", place_.string());
    }
  }

  // Collective.
  void finish() {
    if (!saving_) return;
    or_abandon([&] {
      on_every(group_, [&] {
        if (writing_.valid()) writing_.get();
      });
      on_first(group_, [&] {
        if (publishing_.valid()) publishing_.get();
      });
    });
    saving_.reset();
  }

  void or_abandon(const std::function<void()>& action) {
    try {
      action();
    } catch (...) {
      abandon();
      throw;
    }
  }

  // Does not remove the files of other ranks: if only this rank knows of an error, rank 0 has published them.
  void abandon() {
    stop_.request_stop();
    wait_here();
    writing_ = {};
    publishing_ = {};
    if (saving_) saving_->forget_failure(place_);
    saving_.reset();
    if (is_first(group_)) folder_.remove_unfinished(place_);
  }

  fs::path place_;
  TensorCopies copies_;
  std::optional<DistributedSave> saving_;
  std::stop_source stop_;
  std::shared_future<void> writing_;
  std::future<void> publishing_;  // on rank 0
};

}  // namespace

std::unique_ptr<CheckpointWriter> write_on_every_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group) {
  return std::make_unique<EveryRankWriter>(options, folder, std::move(group));
}

}  // namespace lockstep::checkpointing
