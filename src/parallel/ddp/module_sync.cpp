// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/module_sync.h"

#include <algorithm>
#include <map>
#include <sstream>

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <lockstep/ddp/utils.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/memory_overlap.h"
#include "ddp/python_sync.h"
#include "optim/unaveraged.h"
#include "runtime/run.h"

namespace lockstep::ddp {

namespace {

// Bounds the memory for flattened copies; PyTorch uses the same limit.
constexpr std::int64_t kFlattenedBytes = 250LL * 1024 * 1024;
// Tensors from this size on are sent without a copy.
constexpr std::size_t kDirectBytes = std::size_t{1024} * 1024;

// Buckets hold gradients in the memory order of the parameters.
std::string strides_of(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) return " (not strided)";
  return tensor.is_contiguous() ? "" : fmt::format(" strides [{}]", fmt::join(tensor.strides(), ", "));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string readable(const std::vector<std::string>& lines, std::size_t at) {
  if (at >= lines.size()) return "nothing";
  std::string line = lines[at];
  std::ranges::replace(line, '\t', ' ');
  return line;
}

// The first line in which some rank differs from rank 0.
std::string first_difference(const std::vector<std::string>& texts) {
  const auto reference = lines_of(texts.front());
  std::size_t earliest = std::string::npos;
  std::size_t culprit = 0;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto lines = lines_of(texts[rank]);
    const auto [left, right] = std::ranges::mismatch(reference, lines);
    const auto at = static_cast<std::size_t>(left - reference.begin());
    if ((left != reference.end() || right != lines.end()) && at < earliest) {
      earliest = at;
      culprit = rank;
    }
  }
  return fmt::format("rank 0 has {}, rank {} has {}", readable(reference, earliest), culprit,
                     readable(lines_of(texts[culprit]), earliest));
}

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
      throw_error<ArgumentError>("rank {} of {}: {}: the tensor {}, {}[{}], {}{}", group.rank(), group.size(),
                                 user, name, c10::toString(tensor.scalar_type()),
                                 fmt::join(tensor.sizes(), ", "), complaint, otherwise);
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

std::string describe(const std::string& kind, const NamedTensor& item) {
  return fmt::format("{} {}\t{}[{}]{} on {}", kind, item.name, c10::toString(item.tensor.scalar_type()),
                     fmt::join(item.tensor.sizes(), ", "), strides_of(item.tensor),
                     c10::DeviceTypeName(item.tensor.device().type(), true));
}

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

void check_same_on_all_ranks(const ProcessGroup& group, const ModuleText& own, std::source_location where) {
  // The long texts are sent only if the hashes differ.
  const auto sums = group.all_gather_object(fmt::format("{:x}", std::hash<std::string>{}(own.lines)), where);
  if (std::ranges::all_of(sums, [&](const auto& sum) { return sum == sums.front(); })) return;
  const auto texts = group.all_gather_object(own.lines, where);
  throw_error<DesyncError>("rank {} of {}: {}: the ranks' modules differ: {}. {}", group.rank(), group.size(),
                           own.user, first_difference(texts), own.advice);
}

void tell_failure(const std::vector<ProcessGroup>& groups, const char* user, const std::exception& reason,
                  std::source_location where) {
  const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&reason);
  ModuleText why{.user = user,
                 .lines = fmt::format("an error: {}",
                                      of_libtorch ? of_libtorch->what_without_backtrace() : reason.what()),
                 .advice = ""};
  std::ranges::replace(why.lines, '\n', ' ');
  for (const auto& group : groups) {
    try {
      if (group.size() > 1 && !comm::state_of(group).info().with_python)
        check_same_on_all_ranks(group, why, where);
    } catch (const Error&) {
      // Expected: others have no error, another one, or are not there.
    }
  }
}

void broadcast_from(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                    std::source_location where) {
  if (comm::state_of(group).info().with_python) {
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

}  // namespace lockstep::ddp

namespace lockstep {

void broadcast_module(const torch::nn::Module& module, int src, std::optional<ProcessGroup> process_group,
                      std::source_location where) {
  const auto group = runtime::required_group(process_group, "broadcast_module()");
  auto tensors = nn::distinct(module.named_parameters());
  for (auto& buffer : nn::distinct(module.named_buffers())) tensors.push_back(std::move(buffer));
  std::string lines;
  for (const auto& item : tensors) lines += ddp::describe("tensor", item) + "\n";
  ddp::check_same_on_all_ranks(
      group, {.user = "broadcast_module", .lines = lines, .advice = "Build the same module on every rank"},
      where);
  ddp::check_can_be_sent(group, "broadcast_module", tensors);
  ddp::broadcast_from(group, src, tensors, where);
  for (const auto& each : tensors) optim::unmark_unaveraged(each.tensor);
}

}  // namespace lockstep
