// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include <lockstep/runtime/collectives.h>
#include <lockstep/serialize/value.h>

// The functions of runtime/collectives.h that carry objects, for lists of one C++ type.
namespace lockstep {

/// A type of objects that a Value holds and converts back to, such as double and std::map<std::string, double>.
template <typename Object>
concept ValueObject = std::convertible_to<const Object&, Value> &&
                      serialize::Readable<Object, Value::Variant> && !std::same_as<Object, std::string>;

/// With objects of one type: `std::vector<double> losses(get_world_size()); all_gather_object(losses, loss);`. For
/// other classes it does not compile.
template <typename Object>
  requires(!std::same_as<Object, Value> && !std::same_as<Object, std::string>)
void all_gather_object(std::vector<Object>& object_list, const std::type_identity_t<Object>& obj,
                       const CollectiveOptions& options = {},
                       std::source_location where = std::source_location::current()) {
  static_assert(
      ValueObject<Object>,
      "all_gather_object: gather a std::vector of numbers, tensors, strings, std::map<std::string, T> or "
      "lockstep::Value, such as Value{{\"loss\", loss}}");
  if constexpr (ValueObject<Object>) {
    std::vector<Value> values;
    all_gather_object(values, Value(obj), options, where);
    if (values.empty()) return;  // this rank is outside of the group
    object_list.clear();
    for (const auto& value : values) object_list.push_back(value.to<Object>());
  }
}

/// With objects of one type: `std::vector<double> best{accuracy}; broadcast_object_list(best);`.
template <ValueObject Object>
void broadcast_object_list(std::vector<Object>& object_list, int src = 0,
                           const CollectiveOptions& options = {},
                           std::source_location where = std::source_location::current()) {
  std::vector<Value> values;
  for (const Object& object : object_list) values.emplace_back(object);
  broadcast_object_list(values, src, options, where);
  for (std::size_t i = 0; i < values.size(); ++i) object_list[i] = values[i].to<Object>();
}

}  // namespace lockstep
