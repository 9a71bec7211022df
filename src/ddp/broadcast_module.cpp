// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/broadcast_module.h>

#include "ddp/module_sync.h"

namespace lockstep {
namespace {

std::vector<ddp::NamedTensor> tensors_to_send(const torch::nn::Module& module) {
  auto tensors = ddp::distinct(module.named_parameters());
  for (auto& buffer : ddp::distinct(module.named_buffers())) tensors.push_back(std::move(buffer));
  return tensors;
}

// A line each: what the broadcasts of one rank must have in common with those of another.
std::string describe_tensors(const std::vector<ddp::NamedTensor>& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += fmt::format(
        "{} {} {} [{}]{}\n", name, c10::DeviceTypeName(tensor.device().type(), true),
        c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
        tensor.is_contiguous() ? "" : fmt::format(" strides [{}]", fmt::join(tensor.strides(), ", ")));
  }
  return text;
}

// Of two texts that differ, the first line of `text` that does.
std::string first_other_line(const std::string& text, const std::string& other) {
  const auto place = static_cast<std::size_t>(std::ranges::mismatch(text, other).in1 - text.begin());
  if (place == text.size()) return "nothing";
  const auto begin = place == 0 ? std::string::npos : text.rfind('\n', place - 1);
  const auto from = begin == std::string::npos ? 0 : begin + 1;
  return text.substr(from, text.find('\n', from) - from);
}

void check_same_modules(const ProcessGroup& group, const std::string& own, std::source_location where) {
  const auto texts = group.all_gather_object(own, where);
  const auto other = std::ranges::find_if(texts, [&](const auto& text) { return text != texts.front(); });
  if (other == texts.end()) return;
  throw DesyncError(fmt::format(
      "rank {} of {}: broadcast_module: the ranks' modules differ: rank 0 has {}, rank {} has {}. Build the "
      "same module on every rank",
      group.rank(), group.size(), first_other_line(texts.front(), *other), other - texts.begin(),
      first_other_line(*other, texts.front())));
}

}  // namespace

void broadcast_module(const ProcessGroup& group, const torch::nn::Module& module, int src,
                      std::source_location where) {
  const auto tensors = tensors_to_send(module);
  check_same_modules(group, describe_tensors(tensors), where);
  ddp::broadcast_from(group, src, tensors, where);
}

}  // namespace lockstep
