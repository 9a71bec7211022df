// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/stage_messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "pipelining/action_errors.h"

namespace lockstep::pipelining {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr std::int64_t kHeaderSize = 128;
constexpr std::size_t kMaxTensors = 15;  // between two stages; a tag more is the header's

std::vector<TensorMeta> metas_of(const Tensors& tensors) {
  std::vector<TensorMeta> metas;
  for (const auto& tensor : tensors)
    metas.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.requires_grad()});
  return metas;
}

std::string dimensions_of(const std::vector<TensorMeta>& metas) {
  std::vector<std::size_t> dimensions;
  for (const auto& meta : metas) dimensions.push_back(meta.sizes.size());
  return fmt::format("{}", fmt::join(dimensions, " + "));
}

Tensor encode(const std::vector<TensorMeta>& metas) {
  std::vector<std::int64_t> words{static_cast<std::int64_t>(metas.size())};
  for (const auto& meta : metas) {
    words.insert(words.end(), {static_cast<std::int64_t>(meta.dtype), meta.requires_grad ? 1 : 0,
                               static_cast<std::int64_t>(meta.sizes.size())});
    words.insert(words.end(), meta.sizes.begin(), meta.sizes.end());
  }
  if (metas.empty() || metas.size() > kMaxTensors) {
    throw_error<ArgumentError>("the stage returns {} tensors; 1 to {} can be sent to the next one",
                               metas.size(), kMaxTensors);
  }
  if (words.size() > static_cast<std::size_t>(kHeaderSize)) {
    throw_error<ArgumentError>(
        "the stage returns {} tensors of {} dimensions; {} tensors that can be sent to the next one have at "
        "most {} dimensions together",
        metas.size(), dimensions_of(metas), metas.size(), kHeaderSize - 1 - 3 * std::ssize(metas));
  }
  auto header = at::zeros({kHeaderSize}, at::kLong);
  std::copy(words.begin(), words.end(), header.data_ptr<std::int64_t>());
  return header;
}

std::vector<TensorMeta> decode(const Tensor& header) {
  const auto on_cpu = header.cpu();
  const auto* word = on_cpu.data_ptr<std::int64_t>();
  std::vector<TensorMeta> metas(static_cast<std::size_t>(*word++));
  for (auto& meta : metas) {
    meta.dtype = static_cast<at::ScalarType>(*word++);
    meta.requires_grad = *word++ != 0;
    const auto dims = *word++;
    meta.sizes.assign(word, word + dims);
    word += dims;
  }
  return metas;
}

std::string describe(const std::vector<TensorMeta>& metas) {
  std::string text;
  for (const auto& meta : metas)
    text += fmt::format("{}{} [{}]{}", text.empty() ? "" : ", ", c10::toString(meta.dtype),
                        fmt::join(meta.sizes, ", "), meta.requires_grad ? " with gradient" : "");
  return text;
}

}  // namespace

StageMessages::StageMessages(ProcessGroup group, const Plan& plan, at::Device device)
    : group_(std::move(group)),
      rank_of_(stage_to_rank(plan)),
      num_stages_(plan.num_stages),
      n_microbatches_(plan.n_microbatches),
      device_(device) {}

// `action`: of the stage that sends.
int StageMessages::tag(bool forward, const Action& action, std::size_t index) const {
  const int row = (forward ? 0 : num_stages_) + action.stage_index;
  return (row * n_microbatches_ + *action.microbatch_index) * static_cast<int>(kMaxTensors + 1) +
         static_cast<int>(index);
}

void StageMessages::send(const Action& action, const Tensor& tensor, int peer, int message_tag) {
  // A Work keeps its tensor, and a step has many messages.
  std::erase_if(sent_, [&](Sent& sent) {
    if (!sent.work.is_completed()) return false;
    at_action(group_.rank(), sent.action, [&] { sent.work.wait(); });
    return true;
  });
  const comm::CallSite site(where_, "tensor between stages");
  sent_.push_back({action, group_.send_async(tensor.detach().contiguous(), peer, message_tag)});
}

void StageMessages::send_forward(const Action& action, const Tensors& outputs) {
  const int peer = peer_of(action.stage_index + 1);
  const auto metas = metas_of(outputs);
  const auto [known, fresh] = announced_.try_emplace(action.stage_index, metas);
  if (fresh) {
    auto first = action;
    first.microbatch_index = 0;
    send(action, encode(metas).to(device_), peer, tag(true, first, kMaxTensors));
  } else if (known->second != metas) {
    throw_error<ArgumentError>(
        "the outputs are {}, those of the first micro-batch were {}; use batches of one kind, or a new "
        "schedule",
        describe(metas), describe(known->second));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) send(action, outputs[i], peer, tag(true, action, i));
}

void StageMessages::post_forward(const Action& action) {
  auto& shapes = shapes_[action.stage_index];
  if (shapes.metas) return post(action, *shapes.metas);
  if (!shapes.header.defined()) {
    auto first = action;
    first.microbatch_index = 0;
    --first.stage_index;
    shapes.header = at::empty({kHeaderSize}, at::TensorOptions(at::kLong).device(device_));
    const comm::CallSite site(where_, "tensor between stages");
    shapes.header_work =
        group_.recv_async(shapes.header, peer_of(first.stage_index), tag(true, first, kMaxTensors));
  }
  shapes.waiting.push_back(action);
  // NCCL runs the messages of two ranks in the order of their calls.
  if (device_.is_cuda()) learn_shapes(shapes);
}

void StageMessages::post(const Action& action, const std::vector<TensorMeta>& metas) {
  auto from = action;
  --from.stage_index;
  Receipt receipt;
  for (const auto& meta : metas) {
    receipt.buffers.push_back(at::empty(meta.sizes, at::TensorOptions(meta.dtype).device(device_)));
    const comm::CallSite site(where_, "tensor between stages");
    receipt.works.push_back(group_.recv_async(receipt.buffers.back(), peer_of(from.stage_index),
                                              tag(true, from, receipt.works.size())));
  }
  forward_[{action.stage_index, *action.microbatch_index}] = std::move(receipt);
}

void StageMessages::learn_shapes(Shapes& shapes) {
  shapes.header_work.wait();
  shapes.metas = decode(shapes.header);
  shapes.header.reset();
  for (const auto& action : std::exchange(shapes.waiting, {})) post(action, *shapes.metas);
}

Tensors StageMessages::take_forward(const Action& action) {
  auto& shapes = shapes_[action.stage_index];
  if (!shapes.metas) learn_shapes(shapes);
  auto found = forward_.extract({action.stage_index, *action.microbatch_index});
  auto& receipt = found.mapped();
  for (auto& work : receipt.works) work.wait();
  for (std::size_t i = 0; i < receipt.buffers.size(); ++i)
    receipt.buffers[i].set_requires_grad((*shapes.metas)[i].requires_grad);
  return std::move(receipt.buffers);
}

void StageMessages::send_backward(const Action& action, const Tensors& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined())
      send(action, gradients[i], peer_of(action.stage_index - 1), tag(false, action, i));
}

void StageMessages::post_backward(const Action& action, const Tensors& outputs) {
  auto from = action;
  ++from.stage_index;
  Receipt receipt{.buffers = Tensors(outputs.size())};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    receipt.buffers[i] = at::empty(outputs[i].sizes(), outputs[i].options().requires_grad(false));
    const comm::CallSite site(where_, "tensor between stages");
    receipt.works.push_back(
        group_.recv_async(receipt.buffers[i], peer_of(from.stage_index), tag(false, from, i)));
  }
  backward_[{action.stage_index, *action.microbatch_index}] = std::move(receipt);
}

Tensors StageMessages::take_backward(const Action& action) {
  // Gradients of outputs arrive after the outputs have; Gloo's works do not say it.
  std::erase_if(sent_, [&](Sent& sent) {
    const bool has_arrived = sent.action.stage_index == action.stage_index &&
                             sent.action.microbatch_index == action.microbatch_index &&
                             sent.action.computation_type == ComputationType::SEND_F;
    if (has_arrived) sent.work.wait();
    return has_arrived;
  });
  auto found = backward_.extract({action.stage_index, *action.microbatch_index});
  for (auto& work : found.mapped().works) work.wait();
  return std::move(found.mapped().buffers);
}

void StageMessages::wait_for_sends() {
  for (auto& [action, work] : std::exchange(sent_, {}))
    at_action(group_.rank(), action, [&] { work.wait(); });
}

void StageMessages::forget_shapes() {
  announced_.clear();
  shapes_.clear();
}

}  // namespace lockstep::pipelining
