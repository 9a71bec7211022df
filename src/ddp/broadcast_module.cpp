// SPDX-License-Identifier: BSD-3-Clause
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lockstep/ddp/broadcast_module.h>

#include "ddp/module_sync.h"

namespace lockstep {
namespace {

std::vector<ddp::NamedTensor> tensors_to_send(const torch::nn::Module& module) {
  auto tensors = ddp::distinct(module.named_parameters());
  for (auto& buffer : ddp::distinct(module.named_buffers())) tensors.push_back(std::move(buffer));
  return tensors;
}

std::string describe_tensors(const std::vector<ddp::NamedTensor>& tensors) {
  std::string text;
  for (const auto& item : tensors) {
    text += fmt::format("{} on {}\n", ddp::describe("tensor", item),
                        c10::DeviceTypeName(item.tensor.device().type(), true));
  }
  return text;
}

}  // namespace

void broadcast_module(const ProcessGroup& group, const torch::nn::Module& module, int src,
                      std::source_location where) {
  const auto tensors = tensors_to_send(module);
  ddp::check_same_on_all_ranks(group,
                               {.user = "broadcast_module",
                                .lines = describe_tensors(tensors),
                                .advice = "Build the same module on every rank"},
                               where);
  ddp::broadcast_from(group, src, tensors, where);
}

}  // namespace lockstep
