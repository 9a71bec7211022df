// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <stop_token>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/distributed_save.h"

namespace lockstep::checkpointing {
namespace {

namespace fs = std::filesystem;
using distributed_checkpoint::DistributedSave;

// Each rank writes its file. Rank 0 then gives the whole its table and its name; while training goes on no
// rank may use the group for that, so that a thread of rank 0 looks for the files.
class EveryRankWriter : public CheckpointWriter {
 public:
  EveryRankWriter(const CheckpointManagerOptions& options, CheckpointFolder& folder, Group group)
      : options_(options), folder_(folder), group_(std::move(group)) {}

  ~EveryRankWriter() override {
    if (std::uncaught_exceptions() > 0) wait_a_while();
    const auto tell = [](auto& work) {
      try {
        if (work.valid()) work.get();
      } catch (const std::exception& error) {
        log(LogLevel::error, error.what());
      }
    };
    tell(writing_);
    tell(publishing_);
  }

  void save(std::int64_t step, const Value& contents, std::optional<double> metric) override {
    on_every(group_, [&] { contents.as_dict(); });
    // The failure of the save before, the same on all ranks, comes out of this call, which is none: it goes
    // on first.
    run_both([&] { finish(); }, [&] { begin_and_write(step, contents.as_dict(), metric); });
  }

  void wait() override { finish(); }

  // A rank that could not write may not have been able to leave its mark either.
  void settle() override {
    if (!saving_) return;
    if (!all_have_written()) stop_.request_stop();
    wait_here();
  }

 private:
  void begin_and_write(std::int64_t step, const Dict& contents, std::optional<double> metric) {
    const CheckpointInfo info{.step = step, .file = folder_.file_of(step, true), .metric = metric};
    begin(info);
    const auto token = distributed_checkpoint::begin_save(place_, group_, options_.sync);
    saving_.emplace(contents, group_, token, options_.async_save ? &copies_ : nullptr);
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
      written = false;  // which comes out of finish()
    }
    if (!group_ || group_->size() == 1) return written;
    const auto all = group_->all_gather_object(written ? "y" : "n");
    return std::ranges::find(all, "n") == all.end();
  }

  // This rank has failed, maybe at something else: what the others are writing is worth a while. Where a rank
  // is lost, as a call that failed tells, it may never write.
  void wait_a_while() {
    if (!group_ || group_->size() == 1 || !publishing_.valid()) return;
    constexpr std::chrono::milliseconds grace{60'000};
    const auto has_failed = [](const CallRecord& call) { return call.state == CallState::failed; };
    const bool alone = std::ranges::any_of(group_->recent_calls(), has_failed);
    if (!alone) publishing_.wait_for(std::min(group_->timeout(), grace));
    stop_.request_stop();
  }

  void write_now(const CheckpointInfo& info) {
    try {
      on_every(group_, [&] { write(); });
      on_first(group_, [&] { commit(info); });
    } catch (...) {
      abandon();
      throw;
    }
    saving_.reset();
  }

  void start(const CheckpointInfo& info) {
    stop_ = {};
    try {
      on_every(group_, [&] { start_threads(info); });
    } catch (...) {
      abandon();
      throw;
    }
  }

  void start_threads(const CheckpointInfo& info) {
    writing_ = std::async(std::launch::async, [this] { write(); });
    if (!is_first(group_)) return;
    publishing_ = std::async(std::launch::async, [this, info] {
      wait_for_files();
      commit(info);
    });
  }

  // Rank 0 chooses where the files go: one that is there is replaced by its table, a new one comes into being
  // under another name.
  void begin(const CheckpointInfo& info) {
    on_first(group_, [&] {
      folder_.make(options_.sync);
      if (!std::exchange(has_written_, true)) folder_.remove_leftovers();
      folder_.check_is_latest(info.step);
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
      if (place_ != info.file) folder_.finish(place_, options_.sync);
    });
  }

  // In a thread of rank 0.
  void wait_for_files() {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds longest{50};
    const auto limit = group_ ? group_->timeout() : std::chrono::milliseconds{0};
    const auto deadline = Clock::now() + limit;
    std::mutex mutex;
    std::condition_variable_any never;
    const auto stop = stop_.get_token();
    for (std::chrono::milliseconds pause{1}; !saving_->is_complete(place_);
         pause = std::min(2 * pause, longest)) {
      if (group_ && Clock::now() > deadline) {
        throw CheckpointError(fmt::format(
            "{}: after {} ms not all ranks have written their parts; do they see the same folder?",
            place_.string(), limit.count()));
      }
      std::unique_lock lock(mutex);
      never.wait_for(lock, stop, pause, [] { return false; });
      if (stop.stop_requested())
        throw CheckpointError(fmt::format("{}: not all ranks have written their parts", place_.string()));
    }
  }

  // Collective.
  void finish() {
    if (!saving_) return;
    try {
      on_every(group_, [&] {
        if (writing_.valid()) writing_.get();
      });
      on_first(group_, [&] {
        if (publishing_.valid()) publishing_.get();
      });
    } catch (...) {
      abandon();
      throw;
    }
    saving_.reset();
  }

  // Files of other ranks are left alone: where only this rank heard of a failure, rank 0 has published them.
  void abandon() {
    stop_.request_stop();
    wait_here();
    writing_ = {};
    publishing_ = {};
    if (saving_) saving_->forget_failure(place_);
    saving_.reset();
    if (is_first(group_)) folder_.remove_unfinished(place_);
  }

  const CheckpointManagerOptions& options_;
  CheckpointFolder& folder_;
  Group group_;
  bool has_written_ = false;
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
