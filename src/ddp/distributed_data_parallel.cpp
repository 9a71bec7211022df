// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/base/error.h>
#include <lockstep/ddp/distributed_data_parallel.h>

#include "ddp/replica.h"

namespace lockstep {
namespace {

const torch::nn::Module& placed(const std::shared_ptr<torch::nn::Module>& module,
                                const std::optional<c10::Device>& device) {
  if (!module) throw ArgumentError("DistributedDataParallel: the module is empty (a null holder or pointer)");
  if (device) module->to(*device);
  return *module;
}

}  // namespace

DistributedDataParallelModule::DistributedDataParallelModule(const std::shared_ptr<torch::nn::Module>& module,
                                                             const DistributedDataParallelOptions& options,
                                                             std::source_location where)
    : torch::nn::Module("DistributedDataParallel"),
      device_(options.device),
      replica_(std::make_unique<ddp::Replica>(placed(module, options.device), options, where)) {}

DistributedDataParallelModule::~DistributedDataParallelModule() = default;

void DistributedDataParallelModule::before_forward() { replica_->before_forward(sync_); }
void DistributedDataParallelModule::after_forward() { replica_->after_forward(sync_); }

torch::OrderedDict<std::string, at::Tensor> DistributedDataParallelModule::named_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> once;
  for (auto& item : ddp::distinct(torch::nn::Module::named_parameters())) once.insert(item.name, item.tensor);
  return once;
}

std::vector<at::Tensor> DistributedDataParallelModule::parameters() const {
  return named_parameters().values();
}

std::vector<BucketInfo> DistributedDataParallelModule::buckets() const {
  const auto& reducer = replica_->reducer();
  std::vector<BucketInfo> infos;
  for (const auto& bucket : reducer.buckets()) {
    BucketInfo info{.bytes = static_cast<std::int64_t>(bucket.flat.nbytes())};
    for (const auto& slot : bucket.slots)
      info.parameters.push_back(reducer.parameters()[slot.parameter].name);
    infos.push_back(std::move(info));
  }
  return infos;
}

const ProcessGroup& DistributedDataParallelModule::process_group() const { return replica_->group(); }

}  // namespace lockstep
