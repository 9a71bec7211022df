// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/loader_workers.h>

#include "data/worker_board.h"
#include "device/thread_generator.h"

namespace lockstep::data {
namespace {

constexpr int kDefaultPrefetchFactor = 2;
constexpr std::int64_t kIndicesToShow = 8;

std::string indices_text(const at::Tensor& indices) {
  const auto shown = std::min(indices.numel(), kIndicesToShow);
  const auto* const begin = indices.const_data_ptr<std::int64_t>();
  return fmt::format("[{}{}]", fmt::join(begin, begin + shown, ", "),
                     shown < indices.numel() ? fmt::format(", ... {} in all", indices.numel()) : "");
}

std::string timeout_text(const WorkerBoard& board, const SlotEntry& entry) {
  const auto waited = fmt::format("DataLoader timed out after {} seconds: ",
                                  std::chrono::duration<double>(board.options.timeout).count());
  if (entry.state != SlotEntry::State::loading) {
    return fmt::format(
        "{}no worker has begun batch {} of the pass, with indices {}; all {} are busy with others", waited,
        entry.number, indices_text(entry.indices), board.workers.size());
  }
  const std::chrono::duration<double> loads =
      WorkerClock::now() - board.workers[static_cast<std::size_t>(entry.worker)].since;
  return fmt::format(
      "{}worker {} has been in get_batch() for {:.1f} s, for batch {} of the pass, with indices {}; find out "
      "what it waits for, or give a longer timeout",
      waited, entry.worker, loads.count(), entry.number, indices_text(entry.indices));
}

}  // namespace

LoaderWorkers::LoaderWorkers(const LoaderOptions& options, const WorkerInfo& info)
    : board_(std::make_shared<WorkerBoard>()) {
  device::ThreadGenerator::prepare();
  board_->options = options;
  board_->info = info;
  if (is_thread_rank()) board_->world = current_world();
  const auto now = WorkerClock::now();
  board_->workers.assign(static_cast<std::size_t>(options.num_workers), {.busy = true, .since = now});
  try {
    for (int id = 0; id < options.num_workers; ++id) {
      threads_.emplace_back([board = board_, id] { run_worker(board, id); });
    }
  } catch (...) {
    end();
    throw;
  }
}

LoaderWorkers::~LoaderWorkers() { end(); }

std::size_t LoaderWorkers::capacity() const {
  return static_cast<std::size_t>(board_->options.num_workers) *
         static_cast<std::size_t>(board_->options.prefetch_factor.value_or(kDefaultPrefetchFactor));
}

bool LoaderWorkers::stuck() const {
  const std::lock_guard lock(board_->mutex);
  return board_->stuck;
}

void LoaderWorkers::end() noexcept {
  std::unique_lock lock(board_->mutex);
  board_->ending = true;
  board_->jobs.clear();
  board_->work.notify_all();
  for (std::size_t id = 0; id < threads_.size(); ++id) {
    const auto& worker = board_->workers[id];
    const auto timeout = board_->options.timeout;
    while (!worker.ended && !board_->overdue(worker)) {
      if (timeout.count() == 0) {
        board_->ended.wait(lock);
      } else {
        board_->ended.wait_until(lock, std::max(worker.since, WorkerClock::now() - timeout) + timeout);
      }
    }
    const bool ended = worker.ended;
    lock.unlock();
    if (ended) {
      threads_[id].join();
    } else {
      log(LogLevel::warning,
          fmt::format("DataLoader worker {} is stuck in get_batch(); its thread is left behind", id));
      threads_[id].detach();
    }
    lock.lock();
  }
}

WorkerPass::WorkerPass(std::shared_ptr<LoaderWorkers> workers, std::shared_ptr<BatchSlots> slots,
                       LoaderProgress::Start start)
    : workers_(std::move(workers)),
      board_(workers_->board_),
      pass_(std::make_shared<PassBoard>()),
      stream_(std::move(start.stream)),
      seeds_(start.seeds),
      next_number_(start.first_batch) {
  pass_->slots = std::move(slots);
  pass_->entries.resize(workers_->capacity());
  for (std::size_t slot = 0; slot < pass_->entries.size(); ++slot) request(slot);
}

WorkerPass::~WorkerPass() {
  std::unique_lock lock(board_->mutex);
  std::erase_if(board_->jobs, [this](const WorkerJob& job) { return job.pass == pass_; });
  pass_->waits = true;
  const auto stuck = [this] {
    return std::ranges::any_of(pass_->entries, [this](const SlotEntry& entry) {
      return entry.state == SlotEntry::State::loading &&
             board_->overdue(board_->workers[static_cast<std::size_t>(entry.worker)]);
    });
  };
  const auto timeout = board_->options.timeout;
  while (pass_->loading > 0 && !stuck()) {
    if (timeout.count() == 0) {
      pass_->changed.wait(lock);
    } else {
      pass_->changed.wait_for(lock, timeout);
    }
  }
  if (pass_->loading > 0) board_->stuck = true;
}

void WorkerPass::request(std::size_t slot) {
  if (!stream_) return;
  at::Tensor indices;
  try {
    indices = stream_->next();
  } catch (...) {
    stream_error_ = std::current_exception();
  }
  if (!indices.defined()) {
    stream_.reset();
    return;
  }
  outstanding_.push_back(slot);
  {
    const std::lock_guard lock(board_->mutex);
    pass_->entries[slot] = {.state = SlotEntry::State::queued,
                            .number = next_number_,
                            .seed = seeds_.of(next_number_),
                            .indices = std::move(indices)};
    board_->jobs.push_back({pass_, slot});
  }
  ++next_number_;
  board_->work.notify_one();
}

// Which of the outstanding slots is next and done, by its place among them. With the lock.
std::optional<std::size_t> WorkerPass::choose() const {
  const auto is_done = [this](std::size_t slot) {
    return pass_->entries[slot].state == SlotEntry::State::done;
  };
  const auto last = board_->options.in_order ? outstanding_.begin() + 1 : outstanding_.end();
  const auto found = std::find_if(outstanding_.begin(), last, is_done);
  if (found == last) return std::nullopt;
  return static_cast<std::size_t>(found - outstanding_.begin());
}

// The place of the batch that is handed out next.
std::size_t WorkerPass::wait() {
  std::unique_lock lock(board_->mutex);
  const auto timeout = board_->options.timeout;
  std::optional<std::size_t> place;
  const auto is_there = [&] { return (place = choose()).has_value(); };
  pass_->waits = true;
  if (timeout.count() == 0) {
    pass_->changed.wait(lock, is_there);
  } else if (!pass_->changed.wait_for(lock, timeout, is_there)) {
    board_->stuck = true;
    pass_->waits = false;
    throw TimeoutError(timeout_text(*board_, pass_->entries[outstanding_.front()]));
  }
  pass_->waits = false;
  return *place;
}

std::optional<WorkerPass::Loaded> WorkerPass::next() {
  if (outstanding_.empty()) {
    if (stream_error_) std::rethrow_exception(std::exchange(stream_error_, nullptr));
    return std::nullopt;
  }
  const auto place = wait();
  const auto slot = outstanding_[place];
  outstanding_.erase(outstanding_.begin() + static_cast<std::ptrdiff_t>(place));
  // Done, it is nobody else's.
  auto& entry = pass_->entries[slot];
  Loaded loaded{.samples = entry.indices.numel(), .error = std::move(entry.error)};
  if (!loaded.error) pass_->slots->hand_out(slot);
  request(slot);
  return loaded;
}

bool WorkerPass::next_is_ready() const {
  if (outstanding_.empty()) return false;
  const std::lock_guard lock(board_->mutex);
  const auto place = choose();
  return place && !pass_->entries[outstanding_[*place]].error;
}

}  // namespace lockstep::data
