// SPDX-License-Identifier: BSD-3-Clause
#include "comm/call_recorder.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "base/rank_progress.h"
#include "comm/call_site.h"

namespace lockstep::comm {
namespace {

class RecordedOperation final : public Operation {
 public:
  RecordedOperation(std::shared_ptr<CallRecorder> recorder, std::uint64_t number, OperationPtr operation)
      : recorder_(std::move(recorder)), number_(number), operation_(std::move(operation)) {}

  void wait(std::chrono::milliseconds timeout) override {
    const PhaseScope phase(Phase::communication);
    await();
    end([&] { operation_->wait(timeout); });
  }
  void end_wait(std::chrono::milliseconds timeout) override {
    end([&] { operation_->end_wait(timeout); });
  }
  bool is_completed() override {
    if (operation_->is_completed()) {
      note_end();
      return true;
    }
    await();
    return false;
  }
  int source_rank() const override { return operation_->source_rank(); }
  c10::intrusive_ptr<c10d::Work> stream_work() const override { return operation_->stream_work(); }

 private:
  void await() {
    if (!is_awaited_.exchange(true)) recorder_->await(number_);
  }

  template <class Wait>
  void end(const Wait& wait) {
    try {
      wait();
    } catch (...) {
      recorder_->fail(number_);
      throw;
    }
    if (!has_ended_.exchange(true)) recorder_->complete(number_);
  }

  // A call that has ended may have failed, which wait() says.
  void note_end() {
    if (has_ended_) return;
    try {
      end([&] { operation_->wait(kNoTimeout); });
    } catch (const std::exception&) {  // the caller's wait() throws it again
      has_ended_ = true;
    }
  }

  std::shared_ptr<CallRecorder> recorder_;
  std::uint64_t number_;
  OperationPtr operation_;
  std::atomic<bool> is_awaited_ = false;
  std::atomic<bool> has_ended_ = false;
};

}  // namespace

node::CallDraft draft_of(const Call& call) {
  node::CallDraft draft{.kind = call.kind,
                        .root = call.root,
                        .peer = is_message(call.kind) ? std::max(call.peer, -1) : -1,  // -1 for kAnyRank
                        .where = call.where};
  if (const auto* tensor = main_tensor(call)) {
    draft.dtype = tensor->scalar_type();
    draft.shape = tensor->sizes();
  }
  if (has_operation(call.kind)) draft.op = call.op;
  if (const auto* site = CallSite::current()) {
    draft.where = site->where();
    draft.contents = site->contents();
    draft.index = site->index();
  }
  return draft;
}

CallRecorder::CallRecorder(std::shared_ptr<node::NodeGroup> group)
    : group_(std::move(group)), recorder_(&group_->own_status()) {}

OperationPtr CallRecorder::record(const Call& call, c10::function_ref<OperationPtr()> start) {
  std::uint64_t number = 0;
  {
    const auto draft = draft_of(call);
    node::FlightRecorder::RecorderLock lock(recorder_);
    number = lock.begin(draft);
    lock.note(number, draft);
  }
  try {
    if (auto operation = start())
      return std::make_shared<RecordedOperation>(shared_from_this(), number, std::move(operation));
  } catch (...) {
    fail(number);
    throw;
  }
  complete(number);
  return nullptr;
}

void CallRecorder::await(std::uint64_t number) {
  node::FlightRecorder::RecorderLock(recorder_).await(number);
}

void CallRecorder::complete(std::uint64_t number) {
  node::FlightRecorder::RecorderLock(recorder_).complete(number);
}

}  // namespace lockstep::comm
