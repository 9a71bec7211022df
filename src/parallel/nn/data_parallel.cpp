// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/ops/_unsafe_view.h>
#include <c10/core/GradMode.h>
#include <torch/cuda.h>

#include <lockstep/device/device.h>
#include <lockstep/nn/data_parallel.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "nn/replicas_backward.h"
#include "nn/synced_batch_norm.h"

namespace lockstep {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

std::vector<c10::Device> devices_of(const DataParallelOptions& options) {
  std::vector<c10::Device> devices(options.device_ids.begin(), options.device_ids.end());
  if (!devices.empty()) return devices;
  for (int i = 0; i < static_cast<int>(torch::cuda::device_count()); ++i) devices.push_back(DeviceId(i));
  return devices;
}

void check_module(const torch::nn::Module& module) {
  const auto synced = nn::synced_layers(module);
  if (synced.empty()) return;
  throw_error<ArgumentError>(
      "DataParallel: {} is a SyncBatchNorm, which works between ranks; use DistributedDataParallel, or keep "
      "BatchNorm",
      synced.front().name);
}

void require_devices_of_type(const c10::Device& device) {
  if (device_count(device.type()) > 0) return;
  throw_error<ArgumentError>(
      "DataParallel: device_ids has {}, but this process can use no device of that type; use {{at::kCPU, "
      "at::kCPU}} for two replicas on the CPU, or leave device_ids empty: then the module runs on all CUDA "
      "devices, or by itself if there are none",
      device.str());
}

void check_devices(const torch::nn::Module& module, const std::vector<c10::Device>& device_ids) {
  const auto check = [&](const std::string& name, const Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == device_ids.front()) return;
    throw_error<ArgumentError>(
        "DataParallel: the module must be on {}, device_ids[0], but {} is on {}; move it first",
        device_ids.front().str(), name, tensor.device().str());
  };
  for (const auto& item : module.named_parameters()) check(item.key(), item.value());
  for (const auto& item : module.named_buffers()) check(item.key(), item.value());
}

void make_leaves(std::vector<Tensors>& parts, const Tensors& inputs, nn::Replicas& replicas) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      parts[i][k] = parts[i][k].detach().to(replicas.device(i));
      if (c10::GradMode::is_enabled() && inputs[k].requires_grad()) parts[i][k].requires_grad_();
    }
  }
}

void check_outputs(const std::vector<Tensors>& outputs) {
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    if (outputs[i].size() == outputs[0].size()) continue;
    throw_error<Error>(
        "DataParallel: replica {} returned {} tensors and replica 0 {}; they cannot be gathered", i,
        outputs[i].size(), outputs[0].size());
  }
}

}  // namespace

DataParallelModule::DataParallelModule(std::shared_ptr<torch::nn::Module> module,
                                       const DataParallelOptions& options, const IsReplica& is_replica,
                                       std::source_location where)
    : nn::WrapperModule("DataParallel"),
      options_(options),
      device_ids_(devices_of(options)),
      original_(std::move(module)) {
  const CallerPlace place(where);
  if (!original_) throw ArgumentError("DataParallel: the module is empty (a null holder or pointer)");
  check_module(*original_);
  std::ranges::for_each(device_ids_, require_devices_of_type);
  if (!device_ids_.empty()) check_devices(*original_, device_ids_);
  for (const auto& device : device_ids_) require_device("DataParallel: device_ids", device);
  if (!runs_by_itself())
    replicas_ = std::make_shared<nn::Replicas>(original_, device_ids_, options_.make_replica, is_replica);
}

DataParallelModule::~DataParallelModule() = default;

c10::Device DataParallelModule::output_device() const {
  if (options_.output_device) return *options_.output_device;
  return device_ids_.empty() ? c10::Device(c10::kCPU) : device_ids_.front();
}

bool DataParallelModule::moves_tensors() const {
  return !device_ids_.empty() && !(device_ids_.front().is_cpu() && output_device() == device_ids_.front());
}

Tensor DataParallelModule::to_device(const Tensor& tensor) const { return tensor.to(device_ids_.front()); }

bool DataParallelModule::is_same(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b,
                            [](const Tensor& left, const Tensor& right) { return left.is_same(right); });
}

void DataParallelModule::check_placed(const Tensors& found, const Tensors& expected, const char* what) {
  if (is_same(found, expected)) return;
  throw_error<ArgumentError>(
      "DataParallel: tensors in {} can be found but not replaced (a dictionary in a c10::IValue?), so they "
      "cannot be shared among replicas; use containers of the standard library",
      what);
}

void DataParallelModule::refuse_shared() {
  throw ArgumentError(
      "DataParallel: an argument holds tensors behind a pointer that its copies share (a shared_ptr?), so "
      "replicas cannot have their own; pass it by value");
}

std::vector<Tensors> DataParallelModule::scatter(const Tensors& inputs, std::size_t arguments) {
  check_module(*original_);
  check_devices(*original_, device_ids_);
  const auto count = device_ids_.size();
  // As in PyTorch: without arguments one replica runs.
  auto parts = nn::scatter(inputs, count, options_.dim, arguments == 0 ? 1 : count);
  make_leaves(parts, inputs, *replicas_);
  return parts;
}

Tensors DataParallelModule::as_arguments(const Tensors& parts) {
  Tensors arguments;
  for (const auto& part : parts) {
    arguments.push_back(part.requires_grad() ? at::_unsafe_view(part, part.sizes()) : part);
  }
  return arguments;
}

Tensors DataParallelModule::run(const Tensors& inputs, std::vector<Tensors> parts, const Call& call) {
  const auto count = parts.size();
  replicas_->update(count);
  replicas_->seed();
  nn::ReplicasForward forward{.inputs = std::move(parts), .outputs = std::vector<Tensors>(count)};
  replicas_->run(count, [&](std::size_t i) { forward.outputs[i] = call(i, replicas_->module(i)); });
  check_outputs(forward.outputs);
  Tensors gathered;
  for (std::size_t j = 0; j < forward.outputs[0].size(); ++j) {
    Tensors same;
    for (const auto& outputs : forward.outputs) same.push_back(outputs[j].detach());
    gathered.push_back(nn::gather(same, output_device(), options_.dim));
  }
  if (c10::GradMode::is_enabled()) {
    nn::record_backward(gathered, inputs, std::move(forward), options_.dim, replicas_);
  }
  return gathered;
}

}  // namespace lockstep
