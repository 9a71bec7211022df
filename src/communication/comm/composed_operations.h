// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/call.h"

namespace lockstep::comm {

// Ends with a last step, made once by whoever first notices that the call has ended.
class FinishedOperation : public Operation {
 public:
  FinishedOperation(OperationPtr operation, std::function<void()> finish)
      : operation_(std::move(operation)), finish_(std::move(finish)) {}

  void wait(std::chrono::milliseconds timeout) override {
    operation_->wait(timeout);
    std::call_once(finished_, finish_);
  }
  void end_wait(std::chrono::milliseconds timeout) override {
    operation_->end_wait(timeout);
    std::call_once(finished_, finish_);
  }
  bool is_completed() override {
    if (!operation_->is_completed()) return false;
    try {
      wait(kNoTimeout);
    } catch (const std::exception&) {  // wait() throws it again
    }
    return true;
  }

 private:
  OperationPtr operation_;
  std::function<void()> finish_;
  std::once_flag finished_;
};

// Several calls; each has the whole limit.
class JointOperation : public Operation {
 public:
  explicit JointOperation(std::vector<OperationPtr> operations) : operations_(std::move(operations)) {}

  void wait(std::chrono::milliseconds timeout) override {
    for (const auto& operation : operations_) operation->wait(timeout);
  }
  void end_wait(std::chrono::milliseconds timeout) override {
    for (const auto& operation : operations_) operation->end_wait(timeout);
  }
  bool is_completed() override {
    return std::ranges::all_of(operations_, [](const auto& operation) { return operation->is_completed(); });
  }

 private:
  std::vector<OperationPtr> operations_;
};

}  // namespace lockstep::comm
