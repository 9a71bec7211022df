// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/unpickler.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include "base/throw_error.h"
#include "serialize/dtypes.h"
#include "serialize/plain_values.h"
#include "serialize/tensor_calls.h"

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

using Names = std::map<std::string_view, std::set<std::string_view>>;

// By module. Names of dtypes and of their storages are in the table of dtypes. Quantized storages are known
// so that the error can name them.
const Names& plain_names() {
  static const Names names = {
      {"_codecs", {"encode"}},
      {"builtins", {"bytearray", "bytes", "complex", "set"}},
      {"collections", {"Counter", "OrderedDict"}},
      {"numpy", {"dtype"}},
      {"numpy._core.multiarray", {"scalar"}},
      {"numpy.core.multiarray", {"scalar"}},
      {"torch",
       {"QInt32Storage", "QInt8Storage", "QUInt2x4Storage", "QUInt4x2Storage", "QUInt8Storage", "Size",
        "Tensor", "device", "per_channel_affine", "per_channel_affine_float_qparams", "per_tensor_affine"}},
      {"torch._tensor", {"_rebuild_from_type_v2"}},
      {"torch._utils",
       {"_rebuild_device_tensor_from_cpu_tensor", "_rebuild_meta_tensor_no_storage", "_rebuild_nested_tensor",
        "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_sparse_tensor",
        "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_wrapper_subclass"}},
      {"torch.distributed._mesh_layout", {"_FlatLayout", "_MeshLayout"}},
      {"torch.distributed.device_mesh", {"DeviceMesh"}},
      {"torch.distributed.tensor", {"DTensor"}},
      {"torch.distributed.tensor._dtensor_spec", {"DTensorSpec", "ShardOrderEntry", "TensorMeta"}},
      {"torch.distributed.tensor.placement_types", {"Partial", "Replicate", "Shard", "_StridedShard"}},
      {"torch.nn.parameter", {"Parameter"}},
      {"torch.serialization", {"_get_layout"}},
      {"torch.storage", {"UntypedStorage"}}};
  return names;
}

const Names& distributed_names() {
  static const Names names = {
      {"builtins", {"getattr"}},  // of an enum and a name, to Python 3.11.3
      {"pathlib", {"PosixPath"}},
      {"pathlib._local", {"PosixPath"}},  // of Python 3.13
      {"torch.distributed.checkpoint.filesystem", {"_StorageInfo", "_StoragePrefix"}},
      {"torch.distributed.checkpoint.metadata",
       {"BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"}}};
  return names;
}

bool is_in(const Names& names, std::string_view module, std::string_view name) {
  const auto found = names.find(module);
  return found != names.end() && found->second.contains(name);
}

class Unpickler {
 public:
  Unpickler(const pickle::Pickle& pickle, const LoadStorage& load_storage)
      : pickle_(pickle),
        tensor_calls_(pickle, load_storage, [this](Ref ref) { return value(ref); }),
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
            "the checkpoint holds a bare torch storage, which has no equivalent here: save the tensor "
            "instead");
      default:
        return container(ref, node);
    }
  }

  StorageRecord storage_record(Ref ref) const { return tensor_calls_.storage_record(ref); }

 private:
  void spend(std::size_t values) {
    if (values > budget_)
      throw CheckpointError("the checkpoint repeats its parts beyond any reasonable size");
    budget_ -= values;
  }

  static Value global(std::string_view name) {
    if (name.starts_with("torch ")) {
      if (const auto* dtype = dtype_named(name.substr(6))) return dtype->type;
    }
    throw_error<CheckpointError>("the checkpoint holds {} itself, which is not a value", name);
  }

  Value container(Ref ref, const Node& node) {
    if (open_[ref]) throw CheckpointError("the checkpoint has a container that holds itself");
    if (depth_ >= kDeepest)
      throw_error<CheckpointError>("the checkpoint is nested more than {} deep", kDeepest);
    open_[ref] = true;
    ++depth_;
    const auto close = c10::make_scope_exit([&] {
      open_[ref] = false;
      --depth_;
    });
    switch (node.kind) {
      case Kind::list:
        return List(values(node.items));
      case Kind::tuple:
        return Tuple(values(node.items));
      case Kind::set:
        return Set(values(node.items));
      case Kind::dict:
        return dict(node, Dict());
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

  // `dict` with the items of a node.
  Dict dict(const Node& node, Dict dict) {
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
    if (callee == "builtins getattr") return enum_member(args);
    if (callee == "pathlib PosixPath" || callee == "pathlib._local PosixPath") return Tuple(values(args));
    if (callee.starts_with("torch.distributed.")) {
      throw_error<CheckpointError>(
          "the checkpoint holds a {} outside of a DTensor, which is not a value; save the state_dict without it",
          callee.substr(callee.find(' ') + 1));
    }
    if (node.state != pickle::kNoRef && callee != "numpy dtype") refuse_call(callee);
    if (TensorCalls::makes_tensor(callee)) {
      // The same object in two places stays one tensor.
      if (const auto known = tensors_.find(ref); known != tensors_.end()) return known->second;
      auto made = tensor_calls_.call(callee, args);
      tensors_.emplace(ref, made);
      return made;
    }
    if (callee.starts_with("numpy")) return numpy_call(callee, args);
    return make_plain(callee, values(args));
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

  Value enum_member(const std::vector<Ref>& args) {
    constexpr std::string_view kEnum = "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING";
    const bool is_enum = args.size() == 2 && pickle_[args[0]].kind == Kind::global &&
                         pickle_[args[0]].text == kEnum && pickle_[args[1]].kind == Kind::text;
    if (!is_enum) refuse_call("builtins getattr");
    return Tuple{kEnum, Tuple{value(args[1])}};
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
    made = dict(node, std::move(made));
    if (node.state != pickle::kNoRef) made.set_attributes(value(node.state).as_dict());
    return made;
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

  const pickle::Pickle& pickle_;
  TensorCalls tensor_calls_;
  std::vector<bool> open_;
  std::size_t budget_;
  int depth_ = 0;
  std::unordered_map<Ref, Value> tensors_;
};

}  // namespace

bool is_in_checkpoints(std::string_view module, std::string_view name) {
  const bool is_dtype = dtype_named(name) != nullptr || dtype_of_storage_class(name) != nullptr;
  return (module == "torch" && is_dtype) || is_in(plain_names(), module, name);
}

bool is_in_distributed_checkpoints(std::string_view module, std::string_view name) {
  return is_in_checkpoints(module, name) || is_in(distributed_names(), module, name);
}

c10::Storage no_storages(const StorageRecord& /*record*/) {
  throw CheckpointError("the checkpoint has a storage where none belongs");
}

std::vector<StorageRecord> storages_of(const pickle::Pickle& pickle) {
  const LoadStorage none = no_storages;
  Unpickler unpickler(pickle, none);
  std::vector<StorageRecord> records;
  for (Ref ref = 0; ref < pickle.nodes.size(); ++ref) {
    if (pickle[ref].kind == Kind::persistent) records.push_back(unpickler.storage_record(ref));
  }
  return records;
}

Value unpickle(const pickle::Pickle& pickle, const LoadStorage& load_storage) {
  try {
    return Unpickler(pickle, load_storage).value(pickle.root);
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("the checkpoint holds a value that LibTorch rejects: {}",
                                 error.what_without_backtrace());
  }
}

}  // namespace lockstep::serialize
