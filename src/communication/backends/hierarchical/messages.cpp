// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/messages.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/deadline.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "comm/peer_check.h"

namespace lockstep::backends {

using comm::Call;
using comm::OperationPtr;
using std::chrono::milliseconds;

namespace {

constexpr int kNoteTag = std::numeric_limits<int>::max();
constexpr milliseconds kGrace{1'000};  // for the answer of rank 0, which waits for all others

}  // namespace

// A call of the network that starts on the caller's thread or on that of a queue.
class Messages::Message final : public QueuedCall {
 public:
  // `after`: receives that start before this one. `is_connected`: set when the call has started.
  Message(const Call& call, std::shared_ptr<comm::CallBackend> network, std::vector<Start> after,
          std::shared_ptr<std::atomic<bool>> is_connected)
      : QueuedCall(call),
        network_(std::move(network)),
        after_(std::move(after)),
        is_connected_(std::move(is_connected)) {}

  // When the call has started, or could not.
  Start has_started() { return has_started_.get_future().share(); }

  void wait(milliseconds timeout) override {
    const Deadline deadline(timeout);
    await_run(timeout, timeout);
    const auto rest = std::max(deadline.remaining(), milliseconds(1));
    if (operation_) operation_->wait(timeout == kNoTimeout ? timeout : rest);
    end_event();
  }
  void end_wait(milliseconds timeout) override {
    await_run(milliseconds(0), timeout);
    if (operation_) operation_->end_wait(timeout);
    end_event();
  }
  bool is_completed() override {
    return QueuedCall::is_completed() && (!operation_ || operation_->is_completed());
  }
  int source_rank() const override { return operation_ ? operation_->source_rank() : -1; }

 private:
  void make() override {
    // Before the waiting thread continues, which may end the process.
    const auto network = std::move(network_);
    const auto is_connected = std::move(is_connected_);
    const auto end = c10::make_scope_exit([this] { has_started_.set_value(); });
    for (const auto& other : after_) other.wait();
    operation_ = network->start(call(), [](comm::CallStage) {});
    *is_connected = true;
  }

  std::shared_ptr<comm::CallBackend> network_;
  std::vector<Start> after_;
  std::promise<void> has_started_;
  std::shared_ptr<std::atomic<bool>> is_connected_;
  OperationPtr operation_;  // when the call has started
};

Messages::Messages(std::shared_ptr<comm::CallBackend> network, int rank, int size)
    : network_(std::move(network)), rank_(rank), size_(size), channels_(static_cast<std::size_t>(size) + 1) {
  *channels_.back().is_connected = true;  // a receive from any rank does not wait for connections
}

OperationPtr Messages::start(const Call& call) {
  const MutexLock lock(mutex_);
  end_idle_queues();
  auto& channel =
      call.peer == comm::kAnyRank ? channels_.back() : channels_[static_cast<std::size_t>(call.peer)];
  const bool is_receive = call.kind == CallKind::recv;
  std::vector<Start> after;
  for (auto* other : waiting_) {
    const bool has_any_rank = &channel == &channels_.back() || other == &channels_.back();
    if (is_receive && has_any_rank && other != &channel && other->last_receive.valid())
      after.push_back(other->last_receive);
  }
  const bool starts_now = *channel.is_connected && !channel.queue && after.empty();
  auto message = std::make_shared<Message>(call, network_, std::move(after), channel.is_connected);
  if (starts_now) {
    message->run();
    return message;
  }
  if (!channel.queue) {
    channel.queue = std::make_shared<CallQueue>();
    waiting_.push_back(&channel);
  }
  if (is_receive) channel.last_receive = message->has_started();
  CallQueue::add(channel.queue, message);
  return message;
}

void Messages::end_idle_queues() {
  std::erase_if(waiting_, [](Channel* channel) {
    if (!*channel->is_connected || !channel->queue->is_empty()) return false;
    std::exchange(channel->queue, nullptr)->end();
    channel->last_receive = {};
    return true;
  });
}

void Messages::end() {
  const MutexLock lock(mutex_);
  for (auto* channel : waiting_) std::exchange(channel->queue, nullptr)->end();
  waiting_.clear();
}

OperationPtr Messages::start_note(at::Tensor& note, bool is_send, int peer, milliseconds limit) {
  Call call{
      .kind = is_send ? CallKind::send : CallKind::recv, .peer = peer, .tag = kNoteTag, .timeout = limit};
  (is_send ? call.inputs : call.outputs) = note;
  return start(call);
}

void Messages::monitored_barrier(milliseconds limit) {
  rank_ == 0 ? await_all(limit) : report_to_first(limit);
}

void Messages::await_all(milliseconds limit) {
  const Deadline deadline(limit);
  const auto rest = [&] { return std::max(deadline.remaining(), milliseconds(1)); };
  auto note = at::zeros({1}, at::kLong);
  std::set<int> missing;
  for (int rank = 1; rank < size_; ++rank) missing.insert(rank);
  try {
    while (!missing.empty()) {
      const auto arrival = start_note(note, false, comm::kAnyRank, limit);
      arrival->wait(rest());
      missing.erase(arrival->source_rank());
      const MutexLock lock(mutex_);
      *channels_[static_cast<std::size_t>(arrival->source_rank())].is_connected = true;
    }
    for (int rank = 1; rank < size_; ++rank) {
      missing.insert(rank);
      start_note(note, true, rank, limit)->wait(kGrace);
      missing.clear();
    }
  } catch (const std::exception&) {
    throw_error<TimeoutError>(ErrorDetails{.ranks = {missing.begin(), missing.end()}},
                              "rank{} {} {} not there after {} ms", missing.size() == 1 ? "" : "s",
                              fmt::join(missing, ", "), missing.size() == 1 ? "was" : "were", limit.count());
  }
}

void Messages::report_to_first(milliseconds limit) {
  const Deadline deadline(limit + kGrace);
  auto note = at::zeros({1}, at::kLong);
  auto answer = at::empty({1}, at::kLong);
  try {
    const auto sent = start_note(note, true, 0, limit);
    const auto answered = start_note(answer, false, 0, limit);
    sent->wait(deadline.remaining());
    answered->wait(std::max(deadline.remaining(), milliseconds(1)));
  } catch (const std::exception& error) {  // Gloo closes the connections of a rank whose wait has a timeout
    throw_error<TimeoutError>(ErrorDetails{.ranks = {0}},
                              "rank 0 gave up waiting for the others, or has ended ({})",
                              first_line_of(error.what()));
  }
}

}  // namespace lockstep::backends
