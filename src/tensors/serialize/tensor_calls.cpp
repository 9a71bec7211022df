// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/tensor_calls.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "serialize/dtensor.h"
#include "serialize/dtypes.h"
#include "serialize/plain_values.h"

namespace lockstep::serialize {
namespace {

using pickle::Kind;
using pickle::Node;
using pickle::Ref;

std::uint64_t byte_count(const Value& elements, std::uint64_t element) {
  const auto count = elements.as_int();
  std::uint64_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(count), element, &bytes))
    throw_error<CheckpointError>("the checkpoint has a storage of {} elements", count);
  return bytes;
}

void check_requires_grad(const at::Tensor& tensor, bool requires_grad) {
  if (requires_grad && !tensor.is_floating_point() && !tensor.is_complex())
    throw CheckpointError("the checkpoint has a tensor of integers that requires a gradient");
}

at::Tensor with_requires_grad(at::Tensor tensor, bool requires_grad) {
  check_requires_grad(tensor, requires_grad);
  return requires_grad ? tensor.set_requires_grad(true) : tensor;
}

Value parameter_of(const Value& data, bool requires_grad) {
  const auto& tensor = data.as_tensor();
  check_requires_grad(tensor, requires_grad);
  return Parameter{.data = tensor, .requires_grad = requires_grad};
}

[[noreturn]] void refuse_quantized(std::string_view storage) {
  throw_error<CheckpointError>(
      "the checkpoint has a quantized tensor{}; Lockstep holds none: dequantize it in Python first", storage);
}

void refuse_kind(std::string_view name) {
  if (name == "_rebuild_qtensor") refuse_quantized("");
  if (name == "_rebuild_nested_tensor") {
    throw CheckpointError(
        "the checkpoint has a nested tensor; Lockstep holds none: save its parts as a list");
  }
}

constexpr std::size_t kMostDimensions = 1000;

// One past the last element that is reached; throws when a number is negative or does not fit.
std::int64_t reach(std::int64_t offset, const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides) {
  const auto impossible = [&] {
    return CheckpointError(fmt::format(
        "the checkpoint has a tensor of impossible shape [{}], strides [{}], offset {}",
        fmt::join(sizes.begin(), sizes.begin() + std::min<std::ptrdiff_t>(std::ssize(sizes), 20), ", "),
        fmt::join(strides.begin(), strides.begin() + std::min<std::ptrdiff_t>(std::ssize(strides), 20), ", "),
        offset));
  };
  if (offset < 0 || sizes.size() != strides.size() || sizes.size() > kMostDimensions) throw impossible();
  std::int64_t count = 1;
  std::int64_t last = offset;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) throw impossible();
    if (sizes[i] == 0) empty = true;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(sizes[i], 1), &count) ||
        __builtin_mul_overflow(std::max<std::int64_t>(sizes[i] - 1, 0), strides[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      throw impossible();
    }
  }
  if (last == std::numeric_limits<std::int64_t>::max()) throw impossible();
  return empty ? 0 : last + 1;
}

// Validating a sparse tensor reads all of its parts, so they must not be larger than the file.
const at::Tensor& part(const std::vector<Value>& parts, std::size_t i) {
  const auto& tensor = parts[i].as_tensor();
  if (tensor.is_meta()) return tensor;
  const auto there = tensor.has_storage() ? tensor.storage().nbytes() / tensor.element_size() : 0;
  if (std::cmp_greater(tensor.numel(), there))
    throw CheckpointError("the checkpoint has a sparse tensor whose parts are larger than their storage");
  return tensor;
}

at::Tensor rebuild_sparse(at::Layout layout, const std::vector<Value>& parts) {
  const CheckpointError damaged("the checkpoint has a damaged sparse tensor");
  if (layout == at::kSparse) {
    if (parts.size() < 3 || parts.size() > 4) throw damaged;
    const auto sizes = int_list(parts[2]);
    std::optional<bool> coalesced;
    if (parts.size() == 4 && !parts[3].is<None>()) coalesced = parts[3].as_bool();
    at::_validate_sparse_coo_tensor_args(part(parts, 0), part(parts, 1), sizes, coalesced, false);
    return at::_sparse_coo_tensor_unsafe(part(parts, 0), part(parts, 1), sizes,
                                         part(parts, 1).options().layout(at::kSparse), coalesced);
  }
  if (layout == at::kStrided || layout == at::kMkldnn || parts.size() != 4) throw damaged;
  const auto sizes = int_list(parts[3]);
  at::_validate_sparse_compressed_tensor_args(part(parts, 0), part(parts, 1), part(parts, 2), sizes, layout,
                                              false);
  return at::_sparse_compressed_tensor_unsafe(part(parts, 0), part(parts, 1), part(parts, 2), sizes,
                                              part(parts, 2).options().layout(layout));
}

}  // namespace

std::string storage_key(const Value& key) {
  return key.is<std::string>() ? key.as_string() : fmt::format("{}", key.as_int());
}

at::Tensor rebuild_strided(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                           const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  const auto there = static_cast<std::int64_t>(storage.nbytes() / c10::elementSize(dtype));
  const auto wanted = reach(offset, sizes, strides);
  if (wanted > there) {
    throw_error<CheckpointError>(
        "the checkpoint has a tensor of shape [{}] that reaches to element {} of a storage of {}",
        fmt::join(sizes, ", "), wanted, there);
  }
  const auto options = at::TensorOptions().dtype(dtype).device(storage.device());
  return at::empty({0}, options).set_(storage, offset, sizes, strides);
}

at::Tensor rebuild_meta(at::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                        const std::vector<std::int64_t>& strides, bool requires_grad) {
  reach(0, sizes, strides);
  return with_requires_grad(
      at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(at::kMeta)), requires_grad);
}

bool TensorCalls::makes_tensor(std::string_view callee) {
  return callee.starts_with("torch._utils ") || callee.starts_with("torch._tensor ") ||
         callee == "torch.nn.parameter Parameter";
}

Value TensorCalls::call(std::string_view callee, const Args& args) const {
  struct Function {
    std::string_view name;
    std::size_t least;
    std::size_t most;
    Value (TensorCalls::*make)(const Args&) const;
  };
  static constexpr std::array kFunctions = {
      Function{"_rebuild_tensor", 4, 4, &TensorCalls::strided<false>},
      Function{"_rebuild_tensor_v2", 6, 7, &TensorCalls::strided<false>},
      Function{"_rebuild_tensor_v3", 7, 8, &TensorCalls::strided<true>},
      Function{"_rebuild_parameter", 3, 4, &TensorCalls::parameter},
      Function{"_rebuild_parameter_with_state", 3, 4, &TensorCalls::parameter},
      Function{"Parameter", 1, 2, &TensorCalls::parameter},
      Function{"_rebuild_from_type_v2", 4, 4, &TensorCalls::from_type},
      Function{"_rebuild_sparse_tensor", 2, 2, &TensorCalls::sparse},
      Function{"_rebuild_meta_tensor_no_storage", 4, 4, &TensorCalls::meta},
      Function{"_rebuild_device_tensor_from_cpu_tensor", 4, 4, &TensorCalls::of_device},
  };
  const auto name = callee.substr(callee.find(' ') + 1);
  refuse_kind(name);
  const auto* found = std::ranges::find(kFunctions, name, &Function::name);
  if (found == kFunctions.end() || args.size() < found->least || args.size() > found->most)
    refuse_call(callee);
  return (this->*found->make)(args);
}

StorageRecord TensorCalls::storage_record(Ref ref) const {
  const Node& node = pickle_[ref];
  const auto malformed = [] {
    return CheckpointError("the checkpoint describes a storage in a way that PyTorch does not use");
  };
  if (node.kind != Kind::persistent || pickle_[node.args].kind != Kind::tuple) throw malformed();
  const auto& id = pickle_[node.args].items;
  if (id.size() < 5 || value_(id[0]).as_string() != "storage") throw malformed();
  StorageRecord record{.key = storage_key(value_(id[2])), .dtype = storage_dtype(id[1])};
  const auto element = static_cast<std::uint64_t>(c10::elementSize(record.dtype));
  record.bytes = byte_count(value_(id[4]), element);
  if (id.size() == 5) return record;
  const auto view = value_(id[5]);
  if (view.is<None>()) return record;
  const auto& parts = view.as_items();
  if (parts.size() != 3) throw malformed();
  record.view_key = storage_key(parts[0]);
  record.view_offset = byte_count(parts[1], element);
  record.view_bytes = byte_count(parts[2], element);
  return record;
}

at::ScalarType TensorCalls::dtype_arg(Ref ref) const {
  const auto given = value_(ref);
  if (const auto* dtype = given.get_if<at::ScalarType>()) return *dtype;
  refuse_call("a tensor's rebuilding, where a dtype is expected,");
}

at::ScalarType TensorCalls::storage_dtype(Ref ref) const {
  const Node& node = pickle_[ref];
  if (node.kind != Kind::global) throw CheckpointError("the checkpoint has a storage without a type");
  if (node.text == "torch.storage UntypedStorage") return at::kByte;
  const auto name = node.text.substr(node.text.find(' ') + 1);
  if (const auto* dtype = dtype_of_storage_class(name)) return dtype->type;
  refuse_quantized(fmt::format(" ({})", name));
}

// Adds the conj and neg bits: {"conj": True}.
void TensorCalls::set_bits(at::Tensor& tensor, Ref ref) const {
  const auto metadata = value_(ref);
  if (metadata.is<None>()) return;
  const auto has = [&](const char* name) {
    const auto* bit = metadata.as_dict().find(name);
    return bit != nullptr && bit->as_bool();
  };
  const bool conjugate = has("conj");
  const bool negative = has("neg");
  if ((conjugate && !tensor.is_complex()) || (negative && c10::isIntegralType(tensor.scalar_type(), true)))
    throw CheckpointError("the checkpoint has a tensor whose dtype cannot be conjugated or negated");
  if (conjugate) tensor._set_conj(true);
  if (negative) tensor._set_neg(true);
}

// (storage, offset, sizes, strides), then requires_grad, hooks, the dtype if `has_dtype`, and bits.
template <bool has_dtype>
Value TensorCalls::strided(const Args& args) const {
  constexpr std::size_t bits = has_dtype ? 7 : 6;
  const auto record = storage_record(args[0]);
  const auto storage = load_storage_(record);
  auto tensor =
      rebuild_strided(storage, has_dtype ? dtype_arg(args[6]) : record.dtype, value_(args[1]).as_int(),
                      int_list(value_(args[2])), int_list(value_(args[3])));
  if (args.size() > bits) set_bits(tensor, args[bits]);
  return with_requires_grad(std::move(tensor), args.size() > 4 && flag(args[4]));
}

Value TensorCalls::parameter(const Args& args) const {
  return parameter_of(value_(args[0]), args.size() < 2 || flag(args[1]));
}

// A tensor with Python attributes: (function, type, its arguments, attributes). The attributes stay behind.
Value TensorCalls::from_type(const Args& args) const {
  const Node& function = pickle_[args[0]];
  const Node& type = pickle_[args[1]];
  const Node& inner = pickle_[args[2]];
  if (function.text == "torch._utils _rebuild_wrapper_subclass" && type.text == kDTensor) {
    return read_dtensor(pickle_, args[3], value_);
  }
  const bool known = function.kind == Kind::global && function.text.starts_with("torch._utils ") &&
                     type.kind == Kind::global && inner.kind == Kind::tuple &&
                     (type.text == "torch Tensor" || type.text == "torch.nn.parameter Parameter");
  if (!known) refuse_call("_rebuild_from_type_v2");
  auto made = call(function.text, inner.items);
  if (type.text == "torch Tensor" || made.is<Parameter>()) return made;
  const auto& tensor = made.as_tensor();
  return Parameter{.data = tensor, .requires_grad = tensor.requires_grad()};
}

Value TensorCalls::sparse(const Args& args) const {
  const auto layout = value_(args[0]);
  const auto* kind = layout.get_if<at::Layout>();
  if (kind == nullptr) refuse_call("_rebuild_sparse_tensor");
  return rebuild_sparse(*kind, value_(args[1]).as_items());
}

Value TensorCalls::meta(const Args& args) const {
  return rebuild_meta(dtype_arg(args[0]), int_list(value_(args[1])), int_list(value_(args[2])),
                      flag(args[3]));
}

Value TensorCalls::of_device(const Args& args) const {
  return with_requires_grad(value_(args[0]).as_tensor(), flag(args[3]));
}

}  // namespace lockstep::serialize
