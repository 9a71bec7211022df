// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <map>
#include <string>
#include <variant>
#include <vector>

// The types that a Value converts to: see serialize/value.h.
namespace lockstep::serialize {

/// The index of a type among the alternatives of a variant, or their number.
template <typename T, typename Variant>
constexpr std::size_t kIndexIn = 0;
template <typename T, typename... Types>
constexpr std::size_t kIndexIn<T, std::variant<Types...>> = [] {
  std::size_t index = 0;
  (void)((std::same_as<T, Types> || (++index, false)) || ...);
  return index;
}();

/// Every integer type but char, and floating-point types.
template <typename T>
concept Number = (std::integral<T> && !std::same_as<T, char>) || std::floating_point<T>;

/// The type of the items of a std::vector, or of the values of a std::map with strings as keys, else T.
template <typename T>
struct ItemOf {
  using type = T;  ///< T
};
template <typename Item>
struct ItemOf<std::vector<Item>> {
  using type = Item;  ///< of the items
};
template <typename Item>
struct ItemOf<std::map<std::string, Item>> {
  using type = Item;  ///< of the values
};

/// A type that a Value converts to: a number, one of the variant, or a vector or a map of one of them.
template <typename T, typename Variant>
concept Readable = Number<typename ItemOf<T>::type> ||
                   kIndexIn<typename ItemOf<T>::type, Variant> < std::variant_size_v<Variant>;

}  // namespace lockstep::serialize
