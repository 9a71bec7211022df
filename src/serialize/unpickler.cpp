// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/unpickler.h"

#include <algorithm>
#include <unordered_map>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "serialize/dtypes.h"
#include "serialize/numpy_scalar.h"
#include "serialize/plain_values.h"
#include "serialize/rebuild_tensor.h"

namespace lockstep::serialize {
namespace {

using pickle::Kind;
using pickle::Node;
using pickle::Ref;

// Python itself writes no deeper.
constexpr int kDeepest = 1200;
// What the text of a value counts for.
constexpr std::size_t kBytesPerValue = 16;
// Values that a pickle of few bytes may stand for all the same.
constexpr std::size_t kLeastBudget = 1 << 20;
constexpr std::size_t kValuesPerByte = 4;

class Unpickler {
 public:
  Unpickler(const pickle::Pickle& pickle, StorageSource& storages)
      : pickle_(pickle),
        storages_(storages),
        open_(pickle.nodes.size(), false),
        budget_(std::max(kLeastBudget, kValuesPerByte * pickle.size)) {}

  Value value(Ref ref) {
    const Node& node = pickle_[ref];
    spend(1 + node.text.size() / kBytesPerValue);
    switch (node.kind) {
      case Kind::none:
        return None{};
      case Kind::boolean:
        return node.flag;
      case Kind::integer:
        return node.integer;
      case Kind::big_integer:
        return make_integer(node.text);
      case Kind::real:
        return node.real;
      case Kind::text:
        return node.text;
      case Kind::bytes:
        return Bytes{.data = std::string(node.text)};
      case Kind::byte_array:
        return Bytes{.data = std::string(node.text), .mutable_array = true};
      case Kind::global:
        return global(node.text);
      case Kind::persistent:
        throw CheckpointError(
            "the checkpoint holds a bare torch storage, which has no equal here: save the tensor instead");
      default:
        return container(ref, node);
    }
  }

  StorageRecord storage_record(Ref ref) {
    const Node& node = pickle_[ref];
    const auto malformed = [] {
      return CheckpointError("the checkpoint describes a storage as PyTorch does not");
    };
    if (node.kind != Kind::persistent || pickle_[node.args].kind != Kind::tuple) throw malformed();
    const auto& id = pickle_[node.args].items;
    if (id.size() < 5 || value(id[0]).as_string() != "storage") throw malformed();
    StorageRecord record{.key = text_key(value(id[2])), .dtype = storage_dtype(id[1])};
    const auto element = static_cast<std::uint64_t>(c10::elementSize(record.dtype));
    record.bytes = byte_count(value(id[4]), element);
    if (id.size() > 5) {
      const auto view = value(id[5]);
      if (!view.is<None>()) {
        const auto& parts = view.as_items();
        if (parts.size() != 3) throw malformed();
        record.view_key = text_key(parts[0]);
        record.view_offset = byte_count(parts[1], element);
        record.view_bytes = byte_count(parts[2], element);
      }
    }
    return record;
  }

 private:
  // Marks a container while what it holds is read.
  class Visit {
   public:
    Visit(Unpickler& owner, Ref ref) : owner_(owner), ref_(ref) {
      if (owner_.open_[ref_]) throw CheckpointError("the checkpoint has a container that holds itself");
      if (owner_.depth_ >= kDeepest) {
        throw CheckpointError(fmt::format("the checkpoint is nested more than {} deep", kDeepest));
      }
      owner_.open_[ref_] = true;
      ++owner_.depth_;
    }
    ~Visit() {
      owner_.open_[ref_] = false;
      --owner_.depth_;
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Unpickler& owner_;
    Ref ref_;
  };

  void spend(std::size_t values) {
    if (values > budget_)
      throw CheckpointError("the checkpoint repeats its parts beyond any reasonable size");
    budget_ -= values;
  }

  static Value global(std::string_view name) {
    if (name.starts_with("torch ")) {
      if (const auto* dtype = dtype_named(name.substr(6))) return dtype->type;
    }
    throw CheckpointError(fmt::format("the checkpoint holds {} itself, which is no value", name));
  }

  Value container(Ref ref, const Node& node) {
    const Visit visit(*this, ref);
    switch (node.kind) {
      case Kind::list:
        return List(values(node.items));
      case Kind::tuple:
        return Tuple(values(node.items));
      case Kind::set:
        return Set(values(node.items));
      case Kind::dict:
        return dict(node, DictKind::dict);
      default:
        return call(ref, node);
    }
  }

  std::vector<Value> values(const std::vector<Ref>& refs) {
    std::vector<Value> items;
    items.reserve(refs.size());
    for (const Ref ref : refs) items.push_back(value(ref));
    return items;
  }

  Dict dict(const Node& node, DictKind kind) {
    Dict dict(kind);
    dict.reserve(node.items.size() / 2);
    for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
      dict.set(value(node.items[i]), value(node.items[i + 1]));
    }
    return dict;
  }

  Value call(Ref ref, const Node& node) {
    const auto callee = pickle_[node.callee].text;
    const auto& args = pickle_[node.args].items;
    if (callee == "collections OrderedDict") return ordered_dict(node, args);
    if (!node.items.empty()) refuse_call(callee);
    if (callee.starts_with("torch.distributed.checkpoint.")) return record(callee, node, args);
    if (callee == "pathlib PosixPath") return Tuple(values(args));
    const bool tensor = callee.starts_with("torch._utils ") || callee.starts_with("torch._tensor ") ||
                        callee == "torch.nn.parameter Parameter";
    if (node.state != pickle::kNoRef && callee != "numpy dtype") refuse_call(callee);
    if (tensor) {
      // The same object in two places stays one tensor.
      if (const auto known = tensors_.find(ref); known != tensors_.end()) return known->second;
      auto made = tensor_call(callee, args);
      tensors_.emplace(ref, made);
      return made;
    }
    return plain_call(callee, args);
  }

  // An object of the tables of distributed checkpoints: ("module name", state), the state of most being the
  // tuple of (field, value), so that a record can be a key.
  Value record(std::string_view callee, const Node& node, const std::vector<Ref>& args) {
    if (node.state == pickle::kNoRef) return Tuple{callee, Tuple(values(args))};
    auto state = value(node.state);
    if (!state.is<Dict>()) return Tuple{callee, std::move(state)};
    Tuple fields;
    for (const auto& [key, item] : state.as_dict()) fields.items.emplace_back(Tuple{key, item});
    return Tuple{callee, std::move(fields)};
  }

  Value ordered_dict(const Node& node, const std::vector<Ref>& args) {
    Dict made(DictKind::ordered_dict);
    if (args.size() > 1) refuse_call("OrderedDict");
    if (args.size() == 1) {  // Python 2: OrderedDict([[key, value], ...])
      const auto pairs = value(args[0]);
      for (const auto& pair : pairs.as_items()) {
        if (pair.as_items().size() != 2) refuse_call("OrderedDict");
        made.set(pair.as_items()[0], pair.as_items()[1]);
      }
    }
    auto entries = dict(node, DictKind::ordered_dict);
    if (made.empty()) {
      made = std::move(entries);
    } else {
      for (const auto& [key, item] : entries) made.set(key, item);
    }
    if (node.state != pickle::kNoRef) made.set_attributes(value(node.state).as_dict());
    return made;
  }

  Value plain_call(std::string_view callee, const std::vector<Ref>& args) {
    if (callee.starts_with("numpy")) return numpy_call(callee, args);
    return make_plain(callee, values(args));
  }

  Value numpy_call(std::string_view callee, const std::vector<Ref>& args) {
    if (callee == "numpy dtype" || args.size() != 2) refuse_call(callee);
    const Node& dtype = pickle_[args[0]];
    const bool is_dtype = dtype.kind == Kind::call && pickle_[dtype.callee].text == "numpy dtype" &&
                          !pickle_[dtype.args].items.empty();
    if (!is_dtype) refuse_call(callee);
    const auto type = value(pickle_[dtype.args].items[0]);
    std::string order = "|";
    if (dtype.state != pickle::kNoRef) {
      const auto state = value(dtype.state);
      if (state.as_items().size() > 1 && state.as_items()[1].is<std::string>()) {
        order = state.as_items()[1].as_string();
      }
    }
    const auto data = value(args[1]);
    const auto* raw = data.get_if<Bytes>();
    if (raw == nullptr) refuse_call(callee);
    return numpy_scalar(type.as_string(), order, raw->data);
  }

  // Tensors.

  at::ScalarType dtype_arg(Ref ref) {
    const auto given = value(ref);
    if (const auto* dtype = given.get_if<at::ScalarType>()) return *dtype;
    refuse_call("a tensor's rebuilding, where a dtype is expected,");
  }

  // The conj and neg bits: {"conj": True}.
  void set_bits(at::Tensor& tensor, Ref ref) {
    const auto metadata = value(ref);
    if (metadata.is<None>()) return;
    const auto set = [&](const char* name) {
      const auto* bit = metadata.as_dict().find(name);
      return bit != nullptr && bit->as_bool();
    };
    set_view_bits(tensor, set("conj"), set("neg"));
  }

  static std::string text_key(const Value& key) {
    return key.is<std::string>() ? key.as_string() : fmt::format("{}", key.as_int());
  }

  struct LoadedStorage {
    c10::Storage storage;
    at::ScalarType dtype;
  };

  LoadedStorage storage(Ref ref) {
    auto record = storage_record(ref);
    return {storages_.load(record), record.dtype};
  }

  static std::uint64_t byte_count(const Value& elements, std::uint64_t element) {
    const auto count = elements.as_int();
    std::uint64_t bytes = 0;
    if (count < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(count), element, &bytes)) {
      throw CheckpointError(fmt::format("the checkpoint has a storage of {} elements", count));
    }
    return bytes;
  }

  at::ScalarType storage_dtype(Ref ref) const {
    const Node& node = pickle_[ref];
    if (node.kind != Kind::global) throw CheckpointError("the checkpoint has a storage of no type");
    if (node.text == "torch.storage UntypedStorage") return at::kByte;
    const auto name = node.text.substr(node.text.find(' ') + 1);
    if (const auto* dtype = dtype_of_storage_class(name)) return dtype->type;
    throw CheckpointError(
        fmt::format("the checkpoint has a quantized tensor ({}); Lockstep holds none: dequantize it "
                    "in Python first",
                    name));
  }

  Value tensor_call(std::string_view callee, const std::vector<Ref>& args) {
    const auto need = [&](std::size_t least, std::size_t most) {
      if (args.size() < least || args.size() > most) refuse_call(callee);
    };
    const auto name = callee.substr(callee.find(' ') + 1);
    if (name == "_rebuild_tensor_v2" || name == "_rebuild_tensor") {
      const bool second = name == "_rebuild_tensor_v2";
      need(second ? 6 : 4, second ? 7 : 4);
      const auto [storage_of, dtype] = storage(args[0]);
      auto tensor = strided(storage_of, dtype, args);
      if (args.size() == 7) set_bits(tensor, args[6]);
      if (second) set_requires_grad(tensor, value(args[4]).as_bool());
      return tensor;
    }
    if (name == "_rebuild_tensor_v3") {
      need(7, 8);
      const auto storage_of = storage(args[0]).storage;
      auto tensor = strided(storage_of, dtype_arg(args[6]), args);
      if (args.size() == 8) set_bits(tensor, args[7]);
      set_requires_grad(tensor, value(args[4]).as_bool());
      return tensor;
    }
    if (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state") {
      need(3, 4);
      return parameter(value(args[0]), value(args[1]).as_bool());
    }
    if (name == "Parameter") {
      need(1, 2);
      return parameter(value(args[0]), args.size() < 2 || value(args[1]).as_bool());
    }
    if (name == "_rebuild_from_type_v2") return from_type(args);
    if (name == "_rebuild_sparse_tensor") {
      need(2, 2);
      const auto layout = value(args[0]);
      const auto* kind = layout.get_if<at::Layout>();
      if (kind == nullptr) refuse_call(callee);
      return rebuild_sparse(*kind, value(args[1]).as_items());
    }
    if (name == "_rebuild_meta_tensor_no_storage") {
      need(4, 4);
      return rebuild_meta(dtype_arg(args[0]), int_list(value(args[1])), int_list(value(args[2])),
                          value(args[3]).as_bool());
    }
    if (name == "_rebuild_device_tensor_from_cpu_tensor") {
      need(4, 4);
      auto tensor = value(args[0]).as_tensor();
      set_requires_grad(tensor, value(args[3]).as_bool());
      return tensor;
    }
    if (name == "_rebuild_qtensor") {
      throw CheckpointError(
          "the checkpoint has a quantized tensor; Lockstep holds none: dequantize it in Python first");
    }
    if (name == "_rebuild_nested_tensor") {
      throw CheckpointError(
          "the checkpoint has a nested tensor; Lockstep holds none: save its parts as a list");
    }
    refuse_call(callee);
  }

  static Value parameter(const Value& data, bool requires_grad) {
    const auto& tensor = data.as_tensor();
    check_requires_grad(tensor, requires_grad);
    return Parameter{.data = tensor, .requires_grad = requires_grad};
  }

  at::Tensor strided(const c10::Storage& storage_of, at::ScalarType dtype, const std::vector<Ref>& args) {
    return rebuild_strided(storage_of, dtype, value(args[1]).as_int(), int_list(value(args[2])),
                           int_list(value(args[3])));
  }

  // A tensor with Python attributes: (function, type, its arguments, attributes). The attributes stay behind.
  Value from_type(const std::vector<Ref>& args) {
    if (args.size() != 4) refuse_call("_rebuild_from_type_v2");
    const Node& function = pickle_[args[0]];
    const Node& type = pickle_[args[1]];
    const Node& inner = pickle_[args[2]];
    const bool known = function.kind == Kind::global && function.text.starts_with("torch._utils ") &&
                       type.kind == Kind::global && inner.kind == Kind::tuple &&
                       (type.text == "torch Tensor" || type.text == "torch.nn.parameter Parameter");
    if (!known) refuse_call("_rebuild_from_type_v2");
    auto made = tensor_call(function.text, inner.items);
    if (type.text == "torch Tensor" || made.is<Parameter>()) return made;
    const auto& tensor = made.as_tensor();
    return Parameter{.data = tensor, .requires_grad = tensor.requires_grad()};
  }

  const pickle::Pickle& pickle_;
  StorageSource& storages_;
  std::vector<bool> open_;
  std::size_t budget_;
  int depth_ = 0;
  std::unordered_map<Ref, Value> tensors_;
};

}  // namespace

c10::Storage NoStorages::load(const StorageRecord& /*record*/) {
  throw CheckpointError("the checkpoint has a storage where none belongs");
}

std::vector<StorageRecord> storages_of(const pickle::Pickle& pickle) {
  NoStorages none;
  Unpickler unpickler(pickle, none);
  std::vector<StorageRecord> records;
  for (Ref ref = 0; ref < pickle.nodes.size(); ++ref) {
    if (pickle[ref].kind == Kind::persistent) records.push_back(unpickler.storage_record(ref));
  }
  return records;
}

Value unpickle(const pickle::Pickle& pickle, StorageSource& storages) {
  try {
    return Unpickler(pickle, storages).value(pickle.root);
  } catch (const c10::Error& error) {
    throw CheckpointError(
        fmt::format("the checkpoint holds what LibTorch refuses: {}", error.what_without_backtrace()));
  }
}

}  // namespace lockstep::serialize
