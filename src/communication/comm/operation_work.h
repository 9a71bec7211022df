// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/operation_futures.h"
#include "device/libtorch_versions.h"

namespace lockstep::comm {

// c10d's view of an operation; null: a call that is complete.
class OperationWork : public libtorch::Work {
 public:
  OperationWork(int rank, c10d::OpType op, OperationPtr operation, std::vector<at::Tensor> outputs,
                std::uint64_t number, std::chrono::milliseconds timeout,
                std::shared_ptr<OperationFutures> futures)
      : Work(rank, op),
        operation_(std::move(operation)),
        outputs_(std::move(outputs)),
        number_(number),
        timeout_(timeout),
        futures_(std::move(futures)) {}

  bool isCompleted() override { return !operation_ || operation_->is_completed(); }
  bool isSuccess() const override {
    return !operation_ || (operation_->is_completed() && exception() == nullptr);
  }
  std::exception_ptr exception() const override {
    if (!operation_ || !operation_->is_completed()) return nullptr;
    try {
      operation_->wait(timeout_);  // returns or throws at once
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    if (operation_) operation_->wait(timeout);
    return true;
  }
  int sourceRank() const override { return operation_ ? operation_->source_rank() : -1; }
  std::uint64_t getSequencenumber() const override { return number_; }
  std::chrono::milliseconds getTimeout() const override { return timeout_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(mutex_);
    if (!future_) future_ = futures_->future_of(operation_, outputs_, timeout_);
    return future_;
  }

 private:
  OperationPtr operation_;
  std::vector<at::Tensor> outputs_;
  std::uint64_t number_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<OperationFutures> futures_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace lockstep::comm
