// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/MemoryFormat.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace lockstep {

/// Lays out the module's parameters and buffers, and the gradients there are, in `format`: those with 4
/// dimensions for ChannelsLast, with 5 for ChannelsLast3d, both for Contiguous; all others stay. Convolutions
/// are faster with ChannelsLast where the images have it too:
/// `images.contiguous(at::MemoryFormat::ChannelsLast)`. Values and shapes stay, and tensors the same, so
/// optimizers may be made before or after; a DistributedDataParallel after it, since its buckets take the
/// layout that they find. Throws ArgumentError for Preserve. PyTorch:
/// `module.to(memory_format=torch.channels_last)`, which has no name in C++.
void to_memory_format(torch::nn::Module& module, at::MemoryFormat format);

template <typename Contained>
void to_memory_format(const torch::nn::ModuleHolder<Contained>& module, at::MemoryFormat format) {
  to_memory_format(*module.ptr(), format);
}

}  // namespace lockstep
