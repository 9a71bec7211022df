// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/literal.h>
#include <lockstep/serialize/value.h>

#include "base/throw_error.h"
#include "serialize/plain_values.h"

namespace lockstep::optim {

inline Value to_value(const std::vector<double>& numbers) {
  return List(std::vector<Value>(numbers.begin(), numbers.end()));
}
inline Value to_value(const std::vector<std::int64_t>& numbers) {
  return List(std::vector<Value>(numbers.begin(), numbers.end()));
}
template <typename... Items>
Value to_value(const std::tuple<Items...>& items);
template <typename Enum>
Value to_value(const OptionalLiteral<Enum>& field) {
  return field ? Value(std::string(Literal(*field).text())) : Value();
}
Value to_value(const auto& field) { return Value(field); }
template <typename Item>
Value to_value(const std::optional<Item>& item) {
  return item ? Value(*item) : Value();
}
template <typename... Items>
Value to_value(const std::tuple<Items...>& items) {
  return std::apply([](const auto&... each) { return Value(Tuple{to_value(each)...}); }, items);
}

inline void from_value(const Value& value, bool& field) { field = value.as_bool(); }
inline void from_value(const Value& value, std::int64_t& field) { field = value.as_int(); }
inline void from_value(const Value& value, double& field) { field = serialize::number_of(value); }
inline void from_value(const Value& value, std::string& field) { field = value.as_string(); }
template <typename Item>
void from_value(const Value& value, std::optional<Item>& field) {
  field.reset();
  if (!value.is<None>()) from_value(value, field.emplace());
}
template <typename Enum>
void from_value(const Value& value, OptionalLiteral<Enum>& field) {
  field.reset();
  if (value.is<None>()) return;
  const auto known = parse_literal<Enum>(value.as_string());
  if (!known) throw_error<CheckpointError>("{} is unknown to this optimizer", repr(value, 100));
  field = *known;
}
template <typename Item>
void from_value(const Value& list, std::vector<Item>& field) {
  field.clear();
  for (const auto& item : list.as_items()) from_value(item, field.emplace_back());
}
template <typename... Items>
void from_value(const Value& value, std::tuple<Items...>& field) {
  const auto& items = value.as_items();
  if (items.size() != sizeof...(Items))
    throw_error<CheckpointError>("{} should be {} values", repr(value, 100), sizeof...(Items));
  std::size_t next = 0;
  std::apply([&](auto&... each) { (from_value(items[next++], each), ...); }, field);
}

// How the tensors of a state are read: as copies with the device and dtype of the parameter, or as they are,
// on its device.
enum class TensorsRead : std::uint8_t { converted, adopted };

// A parameter's state in memory.
struct StateParts {
  std::vector<at::Tensor> tensors;  // undefined ones, too
  std::int64_t* steps = nullptr;    // the count of steps, where it is a number
};

// Writes the fields of an object into a dict, reads them from one, or lists the parts of a state: the object
// visits each of its fields once, under Python's name, for all of these.
class Fields {
 public:
  explicit Fields(Dict& into) : into_(&into) {}
  // `owner` begins the messages. `complete`: the dict must have every field that is not optional.
  Fields(const Dict& from, std::string owner, bool complete)
      : from_(&from), owner_(std::move(owner)), complete_(complete) {}
  // Reads the state of a parameter.
  Fields(const Dict& from, std::string owner, const at::Tensor& parameter, TensorsRead tensors)
      : from_(&from), owner_(std::move(owner)), complete_(true), parameter_(parameter), tensors_(tensors) {}

  explicit Fields(StateParts& into) : parts_(&into) {}

  bool writing() const { return into_ != nullptr; }
  bool reads_all() const { return from_ != nullptr && complete_; }

  template <typename Field>
  void operator()(const char* name, Field& field) {
    if (complete_) return required(name, field);
    optional(name, field);
  }
  template <typename Field>
  void required(const char* name, Field& field) {
    if (from_ != nullptr) require(name);
    optional(name, field);
  }
  template <typename Field>
  void optional(const char* name, Field& field) {
    if (writing()) {
      into_->set(name, to_value(field));
    } else {
      read(name, [&](const Value& value) { from_value(value, field); });
    }
  }
  // What only Python needs, or what the reader need not change.
  void constant(const char* name, Value value) {
    if (writing()) into_->set(name, std::move(value));
  }
  // A field that `read` converts.
  template <typename Read>
  void read(const char* name, const Read& read) {
    if (from_ == nullptr) return;
    const auto* value = from_->find(name);
    if (value == nullptr) return;
    try {
      read(*value);
    } catch (const CheckpointError& error) {
      throw_error<CheckpointError>("{}: '{}': {}", owner_, name, error.what());
    }
  }
  // Written as an int, read from any number.
  void count(const char* name, std::int64_t& field);

  // Fields of a parameter's state.
  // A count of steps, which Python has as a tensor.
  void steps(const char* name, std::int64_t& field);
  void steps(const char* name, at::Tensor& field);
  // An undefined tensor is not written, and one that the dict does not have stays undefined.
  void tensor(const char* name, at::Tensor& field, bool shaped_like_parameter = true);
  void tensors(const char* name, std::deque<at::Tensor>& field);
  void tensors(const char* name, std::optional<std::vector<at::Tensor>>& field);
  // A state that has nothing but tensors. Before reading it contains those of a new state, whose shapes
  // count; on device meta they stand for tensors on the device of the parameter.
  void named_tensors(std::map<std::string, at::Tensor>& all);

 private:
  void require(const std::string& name) const;
  void read_items(const char* name, const std::function<void(const Value&)>& add);
  at::Tensor own(const at::Tensor& given) const;
  at::Tensor own(const at::Tensor& given, at::Device device, at::ScalarType dtype) const;
  void check_shape(const std::string& name, const at::Tensor& given, const at::Tensor& like) const;

  Dict* into_ = nullptr;
  const Dict* from_ = nullptr;
  StateParts* parts_ = nullptr;
  std::string owner_;
  bool complete_ = false;
  at::Tensor parameter_;
  TensorsRead tensors_ = TensorsRead::converted;
};

}  // namespace lockstep::optim
