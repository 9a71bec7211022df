// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/serialize/readable.h>

namespace lockstep {

/// A tensor whose parts are distributed over the ranks. Each rank has any number of parts. Together they
/// cover every element once; identical parts may be on several ranks. PyTorch: `ShardedTensor`, and `DTensor`
/// with the placement `Shard`; load() returns it for the DTensors of a file that one rank saved.
struct ShardedTensor {
  /// A part that this rank owns. PyTorch: `torch.distributed._shard.sharded_tensor.Shard`.
  struct Shard {
    at::Tensor tensor;                        ///< the values of the shard
    std::vector<std::int64_t> shard_offsets;  ///< of its first element, per dimension
  };

  std::vector<std::int64_t> size;  ///< of the whole tensor, equal on all ranks
  /// Equal on all ranks. Default: the dtype of local_shards or, without any, of the other ranks' parts.
  std::optional<at::ScalarType> dtype = {};
  std::vector<Shard> local_shards = {};  ///< the shards of this rank
};

class Value;

/// Python's None.
struct None {
  bool operator==(const None&) const = default;
};

/// A Python int of more than 64 bits, in two's complement, least significant byte first.
struct BigInteger {
  std::string bytes;  ///< two's complement, least significant byte first
  bool operator==(const BigInteger&) const = default;
};

/// Python's bytes, or bytearray when `mutable_array` is set.
struct Bytes {
  std::string data;            ///< the bytes
  bool mutable_array = false;  ///< a bytearray in Python
  bool operator==(const Bytes&) const = default;
};

/// A torch.nn.Parameter.
struct Parameter {
  at::Tensor data;            ///< the values
  bool requires_grad = true;  ///< whether gradients are computed
};

/// A torch.Size.
struct Size {
  std::vector<std::int64_t> sizes;  ///< by dimension
  bool operator==(const Size&) const = default;
};

/// Python's list.
struct List {
  std::vector<Value> items;  ///< in order
  List();
  List(std::initializer_list<Value> values);
  explicit List(std::vector<Value> values);
  List(const List& other);
  List(List&& other) noexcept;
  List& operator=(const List& other);
  List& operator=(List&& other) noexcept;
  ~List();
};

/// Python's tuple.
struct Tuple : List {
  using List::List;
};

/// Python's set.
struct Set : List {
  using List::List;
};

/// Which Python class the dict has: dict, collections.OrderedDict or collections.Counter.
enum class DictKind : std::uint8_t {
  dict,          ///< dict
  ordered_dict,  ///< collections.OrderedDict
  counter,       ///< collections.Counter
};

/// Python's dict, collections.OrderedDict or Counter. Keeps insertion order. Keys compare as in Python:
/// 1, 1.0 and True are one key.
class Dict {
 public:
  struct Item;

  Dict();
  explicit Dict(DictKind kind);
  Dict(std::initializer_list<Item> items, DictKind kind = DictKind::dict);
  Dict(const Dict& other);
  Dict(Dict&& other) noexcept;
  Dict& operator=(const Dict& other);
  Dict& operator=(Dict&& other) noexcept;
  ~Dict();

  /// Which Python class the dict has.
  DictKind kind() const { return kind_; }
  /// The number of entries.
  std::size_t size() const;
  /// Whether it has no entries.
  bool empty() const { return size() == 0; }
  /// Whether it has an entry of this key.
  bool contains(const Value& key) const { return find(key) != nullptr; }
  /// The value of `key`, or nullptr.
  const Value* find(const Value& key) const;
  Value* find(const Value& key);
  /// The value of `key`. Throws CheckpointError that lists the existing keys when there is no such key.
  const Value& at(const Value& key) const;
  Value& at(const Value& key);
  /// Python's `dict[key] = value`: an existing key keeps its position.
  void set(Value key, Value value);
  /// The value of `key`; inserts None when there is no such key.
  Value& operator[](const Value& key);
  /// Returns whether the key existed. The other keys keep their order.
  bool erase(const Value& key);
  /// Prepares for this number of entries.
  void reserve(std::size_t count);

  /// The entries, in the order in which they were added.
  const Item* begin() const;
  /// The end of the entries.
  const Item* end() const;

  /// Writes the whole dict, as repr() prints it.
  friend std::ostream& operator<<(std::ostream& stream, const Dict& dict);

  /// The `__dict__` of a Python OrderedDict, which holds a state dict's `_metadata`.
  const Dict& attributes() const;
  /// Sets the attributes of the Python object, such as `_metadata`.
  void set_attributes(Dict attributes);

 private:
  std::size_t position(const Value& key) const;
  void index_from(std::size_t first);

  DictKind kind_ = DictKind::dict;
  std::vector<Item> items_;
  std::unordered_multimap<std::size_t, std::size_t> index_;
  std::shared_ptr<const Dict> attributes_;
};

/// An OrderedDict with these entries, the type that `state_dict()` returns.
Dict ordered_dict(std::initializer_list<Dict::Item> items = {});

/// A value in a checkpoint: anything that Python's `torch.load(weights_only=True)` returns, and
/// ShardedTensor, which only distributed_checkpoint can save. Copies are deep except that tensors share their
/// data, like copies of at::Tensor.
///
/// Numbers, strings, tensors, dicts and so on convert to a Value, and a Value converts back to the type that
/// it is assigned to. Such a conversion copies, and throws CheckpointError as the as_ functions do:
///
///     Value saved = load("net.pt");
///     load_state_dict(net, saved["model"]);
///     int epoch = saved["epoch"];
///     double lr = saved["optimizer"]["param_groups"][0]["lr"];
///     for (const auto& [key, value] : saved) std::cout << key << ": " << value << "\n";
class Value {
 public:
  /// The types that a value can have.
  using Variant = std::variant<None, bool, std::int64_t, BigInteger, double, std::complex<double>,
                               std::string, Bytes, at::Tensor, Parameter, List, Tuple, Set, Dict, Size,
                               at::ScalarType, at::Device, at::Layout, ShardedTensor>;

  Value() = default;
  Value(None) {}
  template <std::same_as<bool> Bool>  // no implicit conversion, above all not from pointers
  Value(Bool value) : variant_(value) {}
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool> && !std::same_as<Integer, char>)
  Value(Integer value) : variant_(integer(value)) {}
  template <std::floating_point Real>
  Value(Real value) : variant_(static_cast<double>(value)) {}
  Value(std::complex<double> value) : variant_(value) {}
  Value(std::string value) : variant_(std::move(value)) {}
  Value(std::string_view value) : variant_(std::string(value)) {}
  Value(const char* value) : variant_(std::string(value)) {}
  Value(at::Tensor value) : variant_(std::move(value)) {}
  Value(at::ScalarType value) : variant_(value) {}
  Value(at::Device value) : variant_(value) {}
  Value(at::Layout value) : variant_(value) {}
  Value(BigInteger value) : variant_(std::move(value)) {}
  Value(Bytes value) : variant_(std::move(value)) {}
  Value(Parameter value) : variant_(std::move(value)) {}
  Value(Size value) : variant_(std::move(value)) {}
  Value(List value) : variant_(std::move(value)) {}
  Value(Tuple value) : variant_(std::move(value)) {}
  Value(Set value) : variant_(std::move(value)) {}
  Value(Dict value) : variant_(std::move(value)) {}
  Value(ShardedTensor value) : variant_(std::move(value)) {}
  /// A dict: {{"epoch", 1}, {"model", state_dict(net)}}.
  Value(std::initializer_list<Dict::Item> entries);
  /// A list.
  template <typename Item>
    requires std::convertible_to<const Item&, Value>
  Value(const std::vector<Item>& items) : variant_(List(std::vector<Value>(items.begin(), items.end()))) {}
  /// A dict.
  template <typename Item>
    requires std::convertible_to<const Item&, Value>
  Value(const std::map<std::string, Item>& entries) : variant_(Dict()) {
    for (const auto& [key, value] : entries) as_dict().set(key, value);
  }

  /// Whether the value has the type T.
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(variant_);
  }
  /// The value as T, or nullptr if it has another type.
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&variant_);
  }
  template <typename T>
  T* get_if() {
    return std::get_if<T>(&variant_);
  }
  /// The value as a std::variant.
  const Variant& variant() const { return variant_; }
  Variant& variant() { return variant_; }

  // Each throws CheckpointError that names the actual type and value.
  /// The value as a bool. Throws CheckpointError if it has another type.
  bool as_bool() const;
  std::int64_t as_int() const;  ///< an int or a bool
  double as_double() const;     ///< a float, an int or a bool
  /// The value as a string. Throws CheckpointError if it has another type.
  const std::string& as_string() const&;
  const at::Tensor& as_tensor() const&;  ///< a tensor, or the data of a parameter
  /// The value as a dict. Throws CheckpointError if it has another type.
  const Dict& as_dict() const&;
  Dict& as_dict() &;
  /// The items of a list, a tuple or a set.
  const std::vector<Value>& as_items() const&;
  // From a temporary Value, such as load("net.pt").as_dict().
  std::string as_string() && { return std::as_const(*this).as_string(); }
  at::Tensor as_tensor() && { return std::as_const(*this).as_tensor(); }
  Dict as_dict() && { return std::move(as_dict()); }
  std::vector<Value> as_items() && { return std::as_const(*this).as_items(); }

  /// A number, a type of Variant, or a std::vector or std::map<std::string, ...> of one of them. Throws CheckpointError
  /// that names the actual type and value, also for an int that does not fit into `T`.
  template <typename T>
    requires serialize::Readable<T, Variant>
  operator T() const& {
    return to<T>();
  }
  template <typename T>
    requires serialize::Readable<T, Variant>
  operator T() && {
    if constexpr (std::same_as<T, Dict>) return std::move(*this).as_dict();
    return to<T>();
  }

  /// The value as a T: `saved["epoch"].to<int>()`. Throws CheckpointError that names the actual type and value.
  template <typename T>
    requires serialize::Readable<T, Variant>
  T to() const {
    if constexpr (std::same_as<T, bool>) {
      return as_bool();
    } else if constexpr (std::integral<T>) {
      return static_cast<T>(int_within(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(as_double());
    } else if constexpr (std::same_as<T, at::Tensor>) {
      return as_tensor();
    } else if constexpr (requires { typename T::mapped_type; }) {
      T entries;
      const auto read = [&entries](const auto& dict) {  // generic: Dict::Item is not complete here
        for (const auto& [key, value] : dict)
          entries.emplace(key.as_string(), value.template to<typename T::mapped_type>());
      };
      read(as_dict());
      return entries;
    } else if constexpr (!std::same_as<T, typename serialize::ItemOf<T>::type>) {
      T items;
      for (const auto& item : as_items()) items.push_back(item.to<typename serialize::ItemOf<T>::type>());
      return items;
    } else {
      if (const auto* value = get_if<T>()) return *value;
      refuse_type(serialize::kIndexIn<T, Variant>);
    }
  }

  // LibTorch's names, those of c10::IValue.
  /// As as_int().
  std::int64_t toInt() const { return as_int(); }
  double toDouble() const { return as_double(); }                  ///< As as_double().
  bool toBool() const { return as_bool(); }                        ///< As as_bool().
  at::Tensor toTensor() const { return as_tensor(); }              ///< As as_tensor().
  const std::string& toStringRef() const& { return as_string(); }  ///< As as_string().
  std::string toStringRef() && { return std::move(*this).as_string(); }
  /// A number, or the element of a tensor that has one. Throws CheckpointError for other values, and
  /// LibTorch's error for a tensor of several elements. PyTorch: `Tensor.item()`.
  template <serialize::Number T>
  T item() const {
    if (is<at::Tensor>() || is<Parameter>()) return as_tensor().item<T>();
    return to<T>();
  }

  /// The entry of a dict, or the item of a list or a tuple; -1 is the last item. Throws CheckpointError when
  /// there is no such key or item, or this has neither.
  template <std::convertible_to<Value> Key>  // with a Value, the built-in subscript of a string is as good
  const Value& operator[](const Key& key) const& {
    return entry(key);
  }
  template <std::convertible_to<Value> Key>
  Value operator[](const Key& key) && {
    return entry(key);
  }

  // The entries of a dict; loops over a list take as_items(). Each throws CheckpointError for other types.
  /// The entries of a dict.
  const Dict::Item* begin() const;
  /// The end of the entries.
  const Dict::Item* end() const;

  /// Writes the whole value, as repr() prints it.
  friend std::ostream& operator<<(std::ostream& stream, const Value& value);

  /// The Python name of the type: "int", "OrderedDict", "Tensor".
  std::string_view type_name() const;

 private:
  template <std::integral Integer>
  static Variant integer(Integer value) {
    if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
    return big_integer(static_cast<std::uint64_t>(value));
  }
  static BigInteger big_integer(std::uint64_t value);

  const Value& entry(const Value& key) const;
  std::int64_t int_within(std::int64_t min, std::uint64_t max) const;
  [[noreturn]] void refuse_type(std::size_t wanted) const;

  Variant variant_;
};

/// An entry of a Dict.
struct Dict::Item {
  Value key;    ///< a string, in most dicts
  Value value;  ///< the value of the key
};

/// The value as Python prints it, tensors as "Tensor(float32, [2, 3])". Truncated after `max_length`
/// characters.
std::string repr(const Value& value, std::size_t max_length = 1000);

/// Whether type and contents are equal. Tensors compare as in torch.equal and must have one dtype. NaN equals
/// NaN only within the same tensor object.
bool equal(const Value& left, const Value& right);
inline bool equal(const Value& left, const at::Tensor& right) { return equal(left, Value(right)); }
inline bool equal(const at::Tensor& left, const Value& right) { return equal(Value(left), right); }

}  // namespace lockstep
