// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/buffer_sync.h"

#include <c10/util/ScopeExit.h>

#include "comm/call_site.h"
#include "modules/broadcast.h"

namespace lockstep::ddp {

void BufferSync::broadcast(int source) const {
  // Not counted as changes in place: a second forward before backward is fine, because backward of a training
  // BatchNorm does not read its buffers. PyTorch: `_unsafe_preserve_version_counter`.
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions;
  for (const auto& [name, tensor] : tensors_.buffers()) {
    if (tensor.is_inference()) continue;
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();  // shared with the tensor
    versions.emplace_back(counter, counter.current_version());
  }
  const auto restore = c10::make_scope_exit([&versions] {
    for (auto& [counter, version] : versions) counter.set_version(version);
  });
  const comm::CallSite site(where_, "buffers");
  modules::broadcast_from(group_, source, tensors_.buffers(), where_);
}

void BufferSync::broadcast_in_place(const std::function<at::Tensor(const at::Tensor&)>& like) const {
  std::vector<modules::NamedTensor> sent;
  for (const auto& [name, tensor] : tensors_.buffers()) sent.push_back({name, like(tensor)});
  const comm::CallSite site(where_, "buffers");
  modules::broadcast_from(group_, 0, sent, where_);
}

}  // namespace lockstep::ddp
