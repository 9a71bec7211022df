// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/torch_format.h"

#include <system_error>
#include <unordered_map>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "base/throw_error.h"
#include "base/version.h"
#include "serialize/dtypes.h"
#include "serialize/pickle.h"
#include "serialize/storage.h"

namespace lockstep::serialize {
namespace {

using pickle::Opcode;

class Pickler {
 public:
  Pickled pickle(const Value& value) {
    add(value);
    result_.pickle = writer_.finish();
    return std::move(result_);
  }

  void operator()(None) { writer_.none(); }
  void operator()(bool value) { writer_.boolean(value); }
  void operator()(std::int64_t value) { writer_.integer(value); }
  void operator()(const BigInteger& value) { writer_.big_integer(value.bytes); }
  void operator()(double value) { writer_.real(value); }
  void operator()(const std::complex<double>& value) {
    writer_.call("__builtin__", "complex", [&] {
      writer_.real(value.real());
      writer_.real(value.imag());
    });
  }
  void operator()(const std::string& value) {
    if (!pickle::is_utf8(value))
      throw_error<CheckpointError>("{} is not UTF-8, so Python cannot read it as a str: save it as Bytes",
                                   repr(value, 100));
    writer_.text(value);
  }
  void operator()(const Bytes& value) {
    const auto latin1 = [&] {
      std::string text;
      for (const char letter : value.data) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte < 0x80) {
          text.push_back(letter);
        } else {
          text.push_back(static_cast<char>(0xc0 | (byte >> 6)));
          text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
        }
      }
      writer_.call("_codecs", "encode", [&] {
        writer_.text(text);
        writer_.text("latin1");
      });
    };
    value.mutable_array ? writer_.call("__builtin__", "bytearray", latin1) : latin1();
  }
  void operator()(const at::Tensor& value) {
    once(value, kPlain, [&] { add_tensor(value); });
  }
  void operator()(const Parameter& value) {
    once(value.data, value.requires_grad ? kTrained : kFrozen, [&] { add_parameter(value); });
  }
  void operator()(const List& value) {
    writer_.op(Opcode::empty_list);
    if (value.items.empty()) return;
    writer_.op(Opcode::mark);
    for (const auto& item : value.items) add(item);
    writer_.op(Opcode::appends);
  }
  void operator()(const Tuple& value) {
    writer_.tuple([&] {
      for (const auto& item : value.items) add(item);
    });
  }
  void operator()(const Set& value) {
    writer_.call("__builtin__", "set", [&] { (*this)(static_cast<const List&>(value)); });
  }
  void operator()(const Dict& value) {
    const auto items = [&] {
      if (value.empty()) return;
      writer_.op(Opcode::mark);
      for (const auto& [key, item] : value) {
        add(key);
        add(item);
      }
      writer_.op(Opcode::set_items);
    };
    const auto plain = [&] {
      writer_.op(Opcode::empty_dict);
      items();
    };
    if (value.kind() == DictKind::dict) return plain();
    if (value.kind() == DictKind::counter) return writer_.call("collections", "Counter", plain);
    empty_ordered_dict();
    items();
    if (value.attributes().empty()) return;
    (*this)(value.attributes());
    writer_.op(Opcode::build);
  }
  void operator()(const Size& value) {
    writer_.call("torch", "Size", [&] { writer_.integers(value.sizes); });
  }
  void operator()(at::ScalarType value) { writer_.global("torch", dtype(value).name); }
  void operator()(const at::Device& value) {
    writer_.call("torch", "device", [&] {
      writer_.text(c10::DeviceTypeName(value.type(), true));
      if (value.has_index()) writer_.integer(value.index());
    });
  }
  void operator()(at::Layout value) {
    writer_.call("torch.serialization", "_get_layout", [&] { writer_.text(layout_name(value)); });
  }

  void operator()(const ShardedTensor& value) {
    throw_error<CheckpointError>(
        "{} is in parts on several ranks, which a single file cannot hold: save it with "
        "distributed_checkpoint::save(), or a CheckpointManager with CheckpointWriting::every_rank",
        repr(value, 100));
  }

 private:
  // One tensor object can be saved as three different Python objects.
  enum As : std::uint8_t { kPlain, kTrained, kFrozen };

  void add(const Value& value) { std::visit(*this, value.variant()); }

  void empty_ordered_dict() {
    writer_.call("collections", "OrderedDict", [] {});
  }

  template <typename Add>
  void once(const at::Tensor& tensor, As as, Add add_it) {
    if (!tensor.defined())
      throw CheckpointError("an undefined tensor cannot be saved: leave it out, or save None");
    auto& known = tensors_[as];
    const auto* identity = tensor.unsafeGetTensorImpl();
    if (const auto found = known.find(identity); found != known.end()) return writer_.recall(found->second);
    add_it();
    known.emplace(identity, writer_.memoize());
  }

  static const Dtype& dtype(at::ScalarType type) {
    if (const auto* known = find_dtype(type)) return *known;
    throw_error<CheckpointError>("dtype {} cannot be saved", c10::toString(type));
  }

  void add_parameter(const Parameter& parameter) {
    writer_.call("torch._utils", "_rebuild_parameter", [&] {
      const auto data = parameter.data.detach();
      add_tensor(data);
      writer_.boolean(parameter.requires_grad);
      empty_ordered_dict();
    });
  }

  void add_tensor(const at::Tensor& tensor) {
    if (tensor.is_quantized())
      throw CheckpointError("a quantized tensor cannot be saved: dequantize() it first");
    if (tensor.is_nested()) throw CheckpointError("a nested tensor cannot be saved: unbind() it first");
    if (tensor.is_mkldnn()) throw CheckpointError("an MKL-DNN tensor cannot be saved: to_dense() it first");
    if (tensor.is_meta()) {
      writer_.call("torch._utils", "_rebuild_meta_tensor_no_storage", [&] {
        writer_.global("torch", dtype(tensor.scalar_type()).name);
        writer_.integers(tensor.sizes());
        writer_.integers(tensor.strides());
        writer_.boolean(tensor.requires_grad());
      });
    } else if (tensor.layout() != at::kStrided) {
      add_sparse(tensor);
    } else {
      add_strided(tensor);
    }
  }

  void add_strided(const at::Tensor& tensor) {
    const auto& type = dtype(tensor.scalar_type());
    const auto known = storages_.find(tensor.storage().unsafeGetStorageImpl());
    // Python takes a storage's dtype from the first tensor on it, unless a tensor specifies its own.
    const bool whole = tensor.storage().nbytes() % c10::elementSize(type.type) == 0;
    const bool typed = whole && !type.storage_class.empty() &&
                       (known == storages_.end() || known->second.dtype == type.type);
    writer_.call("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3", [&] {
      add_storage(tensor, type, typed);
      writer_.integer(tensor.storage_offset());
      writer_.integers(tensor.sizes());
      writer_.integers(tensor.strides());
      // What was computed from parameters comes back as data.
      writer_.boolean(tensor.requires_grad() && tensor.is_leaf());
      empty_ordered_dict();
      if (!typed) writer_.global("torch", type.name);
      add_view_bits(tensor);
    });
  }

  void add_sparse(const at::Tensor& tensor) {
    const auto layout = tensor.layout();
    const auto data = tensor.detach();
    const auto parts = sparse_parts(data);
    kept_.insert(kept_.end(), parts.begin(), parts.end());
    writer_.call("torch._utils", "_rebuild_sparse_tensor", [&] {
      (*this)(layout);
      writer_.tuple([&] {
        for (const auto& part : parts) add_tensor(part);
        (*this)(Size{tensor.sizes().vec()});
        if (layout == at::kSparse) writer_.boolean(data.is_coalesced());
      });
    });
  }

  void add_storage(const at::Tensor& tensor, const Dtype& type, bool typed) {
    const auto& storage = tensor.storage();
    const auto [entry, is_new] = storages_.try_emplace(storage.unsafeGetStorageImpl(),
                                                       KnownStorage{result_.storages.size(), type.type});
    if (is_new) result_.storages.push_back(storage);
    writer_.tuple([&] {
      writer_.text("storage");
      typed ? writer_.global("torch", type.storage_class) : writer_.global("torch.storage", "UntypedStorage");
      writer_.text(fmt::format("{}", entry->second.key));
      writer_.text(storage.device().str());
      const auto element = typed ? c10::elementSize(type.type) : 1;
      writer_.integer(static_cast<std::int64_t>(storage.nbytes() / element));
    });
    writer_.op(Opcode::bin_persistent_id);
  }

  void add_view_bits(const at::Tensor& tensor) {
    if (!tensor.is_conj() && !tensor.is_neg()) return;
    Dict bits;
    if (tensor.is_conj()) bits.set("conj", true);
    if (tensor.is_neg()) bits.set("neg", true);
    (*this)(bits);
  }

  struct KnownStorage {
    std::size_t key;
    at::ScalarType dtype;
  };

  pickle::Writer writer_;
  Pickled result_;
  std::unordered_map<const void*, KnownStorage> storages_;
  std::unordered_map<const void*, std::uint32_t> tensors_[3];
  // Tensors made on the way, so that no other object gets their address.
  std::vector<at::Tensor> kept_;
};

// Only files have the number of their format: what is in memory or a part of a folder is read by this version,
// or with the number of the folder.
enum class Whole { file, part };

// `add_storage(zip, key, name)` adds the record of a storage.
template <typename AddStorage>
void write_records(const Pickled& pickled, Whole whole, const Sink& sink, const AddStorage& add_storage) {
  ZipWriter zip(sink);
  zip.add("data.pkl", pickled.pickle);
  zip.add(".format_version", "1");
  zip.add(".storage_alignment", "64");
  zip.add("byteorder", "little");
  for (std::size_t key = 0; key < pickled.storages.size(); ++key)
    add_storage(zip, key, fmt::format("data/{}", key));
  if (whole == Whole::file)
    zip.add(fmt::format(".{}", kFormatField), std::to_string(formats::kCheckpoints.number));
  zip.finish();
}

void write_zip_of(const Pickled& pickled, Whole whole, const Sink& sink) {
  Checksums checksums(pickled.storages);
  write_records(pickled, whole, sink, [&](ZipWriter& zip, std::size_t key, const std::string& name) {
    auto storage = pickled.storages[key];
    if (!storage.device().is_cpu()) storage = storage_bytes(storage).cpu().storage();
    const auto bytes = bytes_of(storage);
    zip.add(name, bytes, [&] { return checksums.of(key, bytes); });
  });
}

}  // namespace

Pickled pickle_value(const Value& value) {
  try {
    return Pickler().pickle(value);
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("a tensor cannot be saved: {}", error.what_without_backtrace());
  }
}

void write_zip(const Pickled& pickled, const Sink& sink) { write_zip_of(pickled, Whole::part, sink); }

std::uint64_t zip_size(const Pickled& pickled) {
  std::uint64_t size = 0;
  const auto count = [&](std::span<const std::byte> bytes) { size += bytes.size(); };
  write_records(pickled, Whole::part, count, [&](ZipWriter& zip, std::size_t key, const std::string& name) {
    zip.add(name, {static_cast<const std::byte*>(nullptr), pickled.storages[key].nbytes()}, [] { return 0; });
  });
  return size;
}

void replace_file(const std::filesystem::path& file, bool sync,
                  const std::function<void(AtomicFile&)>& write) {
  try {
    AtomicFile target(file, {.sync = sync, .for_one_rank = true});
    write(target);
    target.commit();
  } catch (const NotOnDisk& error) {
    throw_error<CheckpointError>(
        "{}: the new file replaced the old one, but may not have reached the disk: {}; save it again",
        file.string(), errno_text(error.code().value()));
  } catch (const std::system_error& error) {
    throw_error<CheckpointError>("{}: cannot be written: {}; an existing file of this name is unchanged",
                                 file.string(), errno_text(error.code().value()));
  }
}

void write_file(const Pickled& pickled, const std::filesystem::path& file, const SaveOptions& options) {
  const ErrorFile about(file);
  replace_file(file, options.sync, [&](AtomicFile& target) {
    write_zip_of(pickled, Whole::file, [&](std::span<const std::byte> bytes) { target.write(bytes); });
  });
}

}  // namespace lockstep::serialize
