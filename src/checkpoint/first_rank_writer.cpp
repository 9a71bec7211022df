// SPDX-License-Identifier: BSD-3-Clause
#include <exception>
#include <future>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/snapshot.h"
#include "serialize/write_file.h"

namespace lockstep::checkpointing {
namespace {

class FirstRankWriter : public CheckpointWriter {
 public:
  FirstRankWriter(const CheckpointManagerOptions& options, CheckpointFolder& folder, Group group)
      : options_(options), folder_(folder), group_(std::move(group)) {}

  ~FirstRankWriter() override {
    try {
      finish();
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
    }
  }

  void save(std::int64_t step, const Value& contents, std::optional<double> metric) override {
    on_first(group_, [&] {
      // The failure of the save before comes out of this call, which is none: it goes on first.
      run_both([&] { finish(); }, [&] { begin_and_write(step, contents, metric); });
    });
  }

  void wait() override {
    on_first(group_, [&] { finish(); });
  }

  void settle() override {
    if (writing_.valid()) writing_.wait();
  }

 private:
  void begin_and_write(std::int64_t step, const Value& contents, std::optional<double> metric) {
    begin();
    folder_.check_is_latest(step);
    const CheckpointInfo info{.step = step, .file = folder_.file_of(step), .metric = metric};
    if (options_.async_save) {
      const auto& copy = snapshot_.take(contents);
      writing_ = std::async(std::launch::async, [this, &copy, info] { write(copy, info); });
    } else {
      write(serialize::pickle_value(contents), info);
    }
  }

  // Who only reads changes nothing in the folder, where another process may be writing.
  void begin() {
    folder_.make(options_.sync);
    if (!std::exchange(has_written_, true)) folder_.remove_leftovers();
  }

  // In the writing thread when saves are asynchronous.
  void write(const serialize::Pickled& pickled, const CheckpointInfo& info) {
    publish(options_, folder_, info,
            [&] { serialize::write_file(pickled, info.file, {.sync = options_.sync}); });
  }

  void finish() {
    if (writing_.valid()) writing_.get();
  }

  const CheckpointManagerOptions& options_;
  CheckpointFolder& folder_;
  Group group_;
  bool has_written_ = false;
  Snapshot snapshot_;
  std::future<void> writing_;
};

}  // namespace

void run_both(const std::function<void()>& first, const std::function<void()>& second) {
  std::exception_ptr failure;
  std::string words;
  try {
    first();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    words = error.what();
  }
  try {
    second();
  } catch (const CheckpointError& error) {
    if (!failure) throw;
    throw CheckpointError(fmt::format("{}; the save before failed, too: {}", error.what(), words));
  } catch (...) {
    if (failure) log(LogLevel::error, words);
    throw;
  }
  if (failure) std::rethrow_exception(failure);
}

std::unique_ptr<CheckpointWriter> write_on_first_rank(const CheckpointManagerOptions& options,
                                                      CheckpointFolder& folder, Group group) {
  return std::make_unique<FirstRankWriter>(options, folder, std::move(group));
}

}  // namespace lockstep::checkpointing
