// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/tensor_calls.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "serialize/dtypes.h"
#include "serialize/errors.h"
#include "serialize/plain_values.h"
#include "serialize/rebuild_tensor.h"

namespace lockstep::serialize {
namespace {

using pickle::Kind;
using pickle::Node;
using pickle::Ref;

std::string storage_key(const Value& key) {
  return key.is<std::string>() ? key.as_string() : fmt::format("{}", key.as_int());
}

std::uint64_t byte_count(const Value& elements, std::uint64_t element) {
  const auto count = elements.as_int();
  std::uint64_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(count), element, &bytes))
    throw_error("the checkpoint has a storage of {} elements", count);
  return bytes;
}

Value parameter_of(const Value& data, bool requires_grad) {
  const auto& tensor = data.as_tensor();
  check_requires_grad(tensor, requires_grad);
  return Parameter{.data = tensor, .requires_grad = requires_grad};
}

[[noreturn]] void refuse_quantized(std::string_view storage) {
  throw_error("the checkpoint has a quantized tensor{}; Lockstep holds none: dequantize it in Python first",
              storage);
}

void refuse_kind(std::string_view name) {
  if (name == "_rebuild_qtensor") refuse_quantized("");
  if (name == "_rebuild_nested_tensor") {
    throw CheckpointError(
        "the checkpoint has a nested tensor; Lockstep holds none: save its parts as a list");
  }
}

}  // namespace

bool TensorCalls::makes_tensor(std::string_view callee) {
  return callee.starts_with("torch._utils ") || callee.starts_with("torch._tensor ") ||
         callee == "torch.nn.parameter Parameter";
}

Value TensorCalls::call(std::string_view callee, const Args& args) {
  struct Function {
    std::string_view name;
    std::size_t least;
    std::size_t most;
    Value (TensorCalls::*make)(const Args&);
  };
  static constexpr std::array kFunctions = {
      Function{"_rebuild_tensor", 4, 4, &TensorCalls::rebuild_tensor},
      Function{"_rebuild_tensor_v2", 6, 7, &TensorCalls::rebuild_tensor_v2},
      Function{"_rebuild_tensor_v3", 7, 8, &TensorCalls::rebuild_tensor_v3},
      Function{"_rebuild_parameter", 3, 4, &TensorCalls::rebuild_parameter},
      Function{"_rebuild_parameter_with_state", 3, 4, &TensorCalls::rebuild_parameter},
      Function{"Parameter", 1, 2, &TensorCalls::parameter_class},
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

StorageRecord TensorCalls::storage_record(Ref ref) {
  const Node& node = pickle_[ref];
  const auto malformed = [] {
    return CheckpointError("the checkpoint describes a storage in a way that PyTorch does not use");
  };
  if (node.kind != Kind::persistent || pickle_[node.args].kind != Kind::tuple) throw malformed();
  const auto& id = pickle_[node.args].items;
  if (id.size() < 5 || value(id[0]).as_string() != "storage") throw malformed();
  StorageRecord record{.key = storage_key(value(id[2])), .dtype = storage_dtype(id[1])};
  const auto element = static_cast<std::uint64_t>(c10::elementSize(record.dtype));
  record.bytes = byte_count(value(id[4]), element);
  if (id.size() == 5) return record;
  const auto view = value(id[5]);
  if (view.is<None>()) return record;
  const auto& parts = view.as_items();
  if (parts.size() != 3) throw malformed();
  record.view_key = storage_key(parts[0]);
  record.view_offset = byte_count(parts[1], element);
  record.view_bytes = byte_count(parts[2], element);
  return record;
}

at::ScalarType TensorCalls::dtype_arg(Ref ref) const {
  const auto given = value(ref);
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

TensorCalls::LoadedStorage TensorCalls::storage(Ref ref) {
  const auto record = storage_record(ref);
  return {.storage = storages_.load(record), .dtype = record.dtype};
}

at::Tensor TensorCalls::strided(const c10::Storage& storage_of, at::ScalarType dtype,
                                const Args& args) const {
  return rebuild_strided(storage_of, dtype, value(args[1]).as_int(), int_list(value(args[2])),
                         int_list(value(args[3])));
}

// The conj and neg bits: {"conj": True}.
void TensorCalls::set_bits(at::Tensor& tensor, Ref ref) const {
  const auto metadata = value(ref);
  if (metadata.is<None>()) return;
  const auto set = [&](const char* name) {
    const auto* bit = metadata.as_dict().find(name);
    return bit != nullptr && bit->as_bool();
  };
  set_view_bits(tensor, set("conj"), set("neg"));
}

Value TensorCalls::rebuild_tensor(const Args& args) {
  const auto [storage_of, dtype] = storage(args[0]);
  return strided(storage_of, dtype, args);
}

Value TensorCalls::rebuild_tensor_v2(const Args& args) {
  const auto [storage_of, dtype] = storage(args[0]);
  auto tensor = strided(storage_of, dtype, args);
  if (args.size() == 7) set_bits(tensor, args[6]);
  set_requires_grad(tensor, flag(args[4]));
  return tensor;
}

Value TensorCalls::rebuild_tensor_v3(const Args& args) {
  const auto storage_of = storage(args[0]).storage;
  auto tensor = strided(storage_of, dtype_arg(args[6]), args);
  if (args.size() == 8) set_bits(tensor, args[7]);
  set_requires_grad(tensor, flag(args[4]));
  return tensor;
}

Value TensorCalls::rebuild_parameter(const Args& args) { return parameter_of(value(args[0]), flag(args[1])); }

Value TensorCalls::parameter_class(const Args& args) {
  return parameter_of(value(args[0]), args.size() < 2 || flag(args[1]));
}

// A tensor with Python attributes: (function, type, its arguments, attributes). The attributes stay behind.
Value TensorCalls::from_type(const Args& args) {
  const Node& function = pickle_[args[0]];
  const Node& type = pickle_[args[1]];
  const Node& inner = pickle_[args[2]];
  const bool known = function.kind == Kind::global && function.text.starts_with("torch._utils ") &&
                     type.kind == Kind::global && inner.kind == Kind::tuple &&
                     (type.text == "torch Tensor" || type.text == "torch.nn.parameter Parameter");
  if (!known) refuse_call("_rebuild_from_type_v2");
  auto made = call(function.text, inner.items);
  if (type.text == "torch Tensor" || made.is<Parameter>()) return made;
  const auto& tensor = made.as_tensor();
  return Parameter{.data = tensor, .requires_grad = tensor.requires_grad()};
}

Value TensorCalls::sparse(const Args& args) {
  const auto layout = value(args[0]);
  const auto* kind = layout.get_if<at::Layout>();
  if (kind == nullptr) refuse_call("_rebuild_sparse_tensor");
  return rebuild_sparse(*kind, value(args[1]).as_items());
}

Value TensorCalls::meta(const Args& args) {
  return rebuild_meta(dtype_arg(args[0]), int_list(value(args[1])), int_list(value(args[2])), flag(args[3]));
}

Value TensorCalls::of_device(const Args& args) {
  auto tensor = value(args[0]).as_tensor();
  set_requires_grad(tensor, flag(args[3]));
  return tensor;
}

}  // namespace lockstep::serialize
