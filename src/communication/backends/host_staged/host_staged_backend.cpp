// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <ATen/ops/empty_like.h>

#include "backends/factories.h"
#include "comm/from_c10d.h"
#include "comm/to_c10d.h"

namespace lockstep::backends {
namespace {

using comm::Call;
using comm::OperationPtr;
using comm::Report;
using Tensors = std::vector<at::Tensor>;

Tensors copies_of(at::TensorList tensors) {
  Tensors copies;
  for (const auto& tensor : tensors) {
    copies.push_back(tensor.device().is_cpu() ? tensor.clone() : tensor.to(at::kCPU));
  }
  return copies;
}

Tensors room_for(at::TensorList tensors) {
  Tensors room;
  for (const auto& tensor : tensors) {
    room.push_back(at::empty_like(tensor, tensor.options().device(at::kCPU)));
  }
  return room;
}

// Whether this rank's outputs hold data that the call reads.
bool reads_outputs(const Call& call, int rank) {
  return call.kind == CallKind::all_reduce || call.kind == CallKind::reduce ||
         (call.kind == CallKind::broadcast && call.root == rank);
}

void copy_back(const Tensors& outputs, const Tensors& host) {
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].detach().copy_(host[i].detach());
}

// An operation of the backend for the CPU, whose results are copied to the device by wait().
class StagedOperation final : public comm::Operation {
 public:
  StagedOperation(OperationPtr operation, Tensors outputs, Tensors host)
      : operation_(std::move(operation)), outputs_(std::move(outputs)), host_(std::move(host)) {}

  void wait(std::chrono::milliseconds timeout) override {
    operation_->wait(timeout);
    finish();
  }
  void end_wait(std::chrono::milliseconds timeout) override {
    operation_->end_wait(timeout);
    finish();
  }
  bool is_completed() override { return operation_->is_completed(); }
  int source_rank() const override { return operation_->source_rank(); }

 private:
  // Keeps what it has not copied: the next wait must not succeed.
  void finish() {
    copy_back(outputs_, host_);
    outputs_.clear();
    host_.clear();
  }

  OperationPtr operation_;
  Tensors outputs_;
  Tensors host_;
};

class HostStagedBackend final : public comm::FromC10d {
 public:
  HostStagedBackend(c10::intrusive_ptr<c10d::Backend> host, const BackendTraits& host_traits,
                    const BackendTraits& traits)
      : FromC10d(host->getRank(), host->getSize(), "staged over " + host->getBackendName(), traits,
                 kNoTimeout),
        host_(std::move(host)),
        calls_(comm::calls_of(host_, host_traits)) {}

  const std::string getBackendName() const override { return "staged over " + host_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { host_->setTimeout(timeout); }
  void abort() override { host_->abort(); }

  OperationPtr start(const Call& call, Report report) override {
    const auto inputs = copies_of(call.inputs);
    auto outputs = reads_outputs(call, getRank()) ? copies_of(call.outputs) : room_for(call.outputs);
    Call staged = call;
    staged.inputs = inputs;
    staged.outputs = outputs;
    auto operation = calls_->start(staged, report);
    if (operation) {
      return std::make_shared<StagedOperation>(std::move(operation), call.outputs.vec(), std::move(outputs));
    }
    copy_back(call.outputs.vec(), outputs);
    return nullptr;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> host_;
  std::shared_ptr<comm::CallBackend> calls_;
};

}  // namespace

BackendHandle stage_through_host(const BackendHandle& host, c10::DeviceType device) {
  auto traits = host.traits;
  traits.devices = {device};
  return {.backend = c10::make_intrusive<HostStagedBackend>(host.backend, host.traits, traits),
          .traits = traits,
          .node_group = host.node_group};
}

}  // namespace lockstep::backends
