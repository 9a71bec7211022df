// SPDX-License-Identifier: BSD-3-Clause
#include "modules/broadcast.h"

#include <map>
#include <string>
#include <tuple>

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/memory_overlap.h"
#include "modules/python_ranks.h"

namespace lockstep::modules {

at::Tensor flattened(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(tensor.resolve_conj().resolve_neg().reshape({-1}));
  return at::cat(rows);
}

void unflatten_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat) {
  std::int64_t offset = 0;
  for (const auto& tensor : tensors) {
    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

namespace {

// Bounds the memory for flattened copies; PyTorch uses the same limit.
constexpr std::int64_t kFlattenedBytes = 250LL * 1024 * 1024;
// Tensors from this size on are sent without a copy.
constexpr std::size_t kDirectBytes = std::size_t{1024} * 1024;

bool can_be_sent_itself(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// The backend writes without autograd's knowledge; a saved tensor must count as changed.
void broadcast_in_place(const ProcessGroup& group, int source, const at::Tensor& tensor,
                        std::source_location where) {
  group.broadcast(tensor, source, where);
  if (group.rank() != source && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void broadcast_flattened(const ProcessGroup& group, int source, const std::vector<at::Tensor>& tensors,
                         std::source_location where) {
  if (tensors.empty()) return;
  if (tensors.size() == 1 && can_be_sent_itself(tensors.front())) {
    broadcast_in_place(group, source, tensors.front(), where);
    return;
  }
  const auto flat = flattened(tensors);
  group.broadcast(flat, source, where);
  if (group.rank() != source) unflatten_into(tensors, flat);
}

}  // namespace

void check_can_be_sent(const ProcessGroup& group, const char* user, const std::vector<NamedTensor>& tensors,
                       const char* otherwise) {
  const auto& state = comm::state_of(group);
  for (const auto& [name, tensor] : tensors) {
    const auto refuse = [&, &name = name, &tensor = tensor](const std::string& complaint) {
      throw_error<ArgumentError>(comm::reporter_of(group), "{}: the tensor {}, {}[{}], {}{}", user, name,
                                 c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                                 complaint, otherwise);
    };
    const auto dtype = c10::isComplexType(tensor.scalar_type()) ? c10::toRealValueType(tensor.scalar_type())
                                                                : tensor.scalar_type();
    const auto& of_device = state.info().traits.on(tensor.device().type());
    const auto& [devices, dtypes] = std::tie(of_device.devices, of_device.dtypes);
    if (!devices.empty() && !devices.contains(tensor.device().type())) {
      refuse(
          fmt::format("is on {}, which backend {} does not carry; move the module to another device before",
                      tensor.device().str(), state.backend_name()));
    }
    if (tensor.layout() != c10::kStrided) refuse("is not a dense tensor; replace it by its to_dense()");
    if (!dtypes.empty() && !dtypes.contains(dtype)) {
      refuse(fmt::format("is of a dtype that backend {} does not carry; convert it", state.backend_name()));
    }
    if (comm::has_shared_elements(tensor)) {
      refuse(fmt::format(
          "has several elements in one place of memory (strides [{}]), as after expand(); replace it "
          "by its clone()",
          fmt::join(tensor.strides(), ", ")));
    }
  }
}

void broadcast_from(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                    std::source_location where) {
  if (comm::has_python_ranks(group)) {
    broadcast_with_python(group, source, tensors, where);
    return;
  }
  const c10::NoGradGuard no_grad;
  std::map<std::pair<c10::ScalarType, std::string>, std::vector<at::Tensor>> kinds;
  std::map<std::pair<c10::ScalarType, std::string>, std::int64_t> bytes;
  for (const auto& item : tensors) {
    const auto tensor = item.tensor.detach();
    if (tensor.nbytes() >= kDirectBytes && can_be_sent_itself(tensor)) {
      broadcast_in_place(group, source, tensor, where);
      continue;
    }
    const auto kind = std::pair(tensor.scalar_type(), tensor.device().str());
    kinds[kind].push_back(tensor);
    bytes[kind] += static_cast<std::int64_t>(tensor.nbytes());
    if (bytes[kind] >= kFlattenedBytes) {
      broadcast_flattened(group, source, std::exchange(kinds[kind], {}), where);
      bytes[kind] = 0;
    }
  }
  for (const auto& [kind, together] : kinds) broadcast_flattened(group, source, together, where);
}

}  // namespace lockstep::modules
