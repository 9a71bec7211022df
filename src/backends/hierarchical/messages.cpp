// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/messages.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "comm/missing_ranks.h"

namespace lockstep::backends {

using comm::Call;
using comm::OperationPtr;
using std::chrono::milliseconds;

namespace {

constexpr int kNoteTag = std::numeric_limits<int>::max();
constexpr milliseconds kGrace{1'000};  // for the answer of rank 0, which waits for all others

}  // namespace

// Those to and from one rank.
struct Messages::Channel {
  std::mutex mutex;
  std::shared_ptr<CallQueue> queue;  // until the ranks are connected
  std::atomic<bool> is_connected{false};
};

// A call of the network that starts on the caller's thread or on that of a queue.
class Messages::Message final : public QueuedCall {
 public:
  Message(const Call& call, std::shared_ptr<comm::CallBackend> network, std::shared_ptr<Channel> channel)
      : QueuedCall(call), network_(std::move(network)), channel_(std::move(channel)) {}

  void wait(milliseconds timeout) override {
    const Deadline deadline(timeout);
    await_run(timeout, timeout);
    if (operation_)
      operation_->wait(timeout == kNoTimeout ? timeout : std::max(deadline.remaining(), milliseconds(1)));
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
    operation_ = network_->start(call(), [](comm::CallStage) {});
    if (channel_) channel_->is_connected = true;
  }

  std::shared_ptr<comm::CallBackend> network_;
  std::shared_ptr<Channel> channel_;
  OperationPtr operation_;  // when the call has started
};

Messages::Messages(std::shared_ptr<comm::CallBackend> network, int rank, int size)
    : network_(std::move(network)), rank_(rank), channels_(static_cast<std::size_t>(size)) {
  for (auto& channel : channels_) channel = std::make_shared<Channel>();
}

OperationPtr Messages::start(const Call& call) {
  if (call.peer == comm::kAnyRank) {  // does not wait for connections
    auto message = std::make_shared<Message>(call, network_, nullptr);
    message->run();
    return message;
  }
  const auto& channel = channels_[static_cast<std::size_t>(call.peer)];
  auto message = std::make_shared<Message>(call, network_, channel);
  const std::lock_guard lock(channel->mutex);
  auto& queue = channel->queue;
  if (channel->is_connected && (!queue || queue->is_empty())) {
    if (queue) std::exchange(queue, nullptr)->end();
    message->run();
    return message;
  }
  if (!queue) queue = std::make_shared<CallQueue>();
  CallQueue::add(queue, message);
  return message;
}

void Messages::end() {
  for (const auto& channel : channels_) {
    const std::lock_guard lock(channel->mutex);
    if (channel->queue) std::exchange(channel->queue, nullptr)->end();
  }
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
  const int size = static_cast<int>(channels_.size());
  std::vector<at::Tensor> notes;
  std::vector<OperationPtr> arrivals;
  for (int rank = 1; rank < size; ++rank) {
    notes.push_back(at::empty({1}, at::kLong));
    arrivals.push_back(start_note(notes.back(), false, rank, limit));
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size; ++rank) {
    try {
      arrivals[static_cast<std::size_t>(rank - 1)]->wait(std::max(deadline.remaining(), milliseconds(1)));
    } catch (const std::exception&) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    throw comm::MissingRanks(
        fmt::format("rank{} {} {} not there after {} ms", missing.size() == 1 ? "" : "s",
                    fmt::join(missing, ", "), missing.size() == 1 ? "was" : "were", limit.count()),
        missing);
  }
  auto answer = at::zeros({1}, at::kLong);
  std::vector<OperationPtr> answers;
  for (int rank = 1; rank < size; ++rank) answers.push_back(start_note(answer, true, rank, limit));
  for (const auto& each : answers) each->wait(kGrace);
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
    const std::string text = error.what();
    throw TimeoutError(fmt::format("rank 0 gave up waiting for the others, or has ended ({})",
                                   text.substr(0, text.find('\n'))));
  }
}

}  // namespace lockstep::backends
