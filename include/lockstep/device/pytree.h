// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <any>
#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep {

/// Visits the tensors in a value of type T: `visit(value, f)` calls `f(at::Tensor&)` for each defined tensor,
/// and `f` may replace it. Defined for tensors, optionals, smart pointers, pairs, tuples, arrays, vectors,
/// maps, variants and c10::IValue, nested in any way, and for numbers, strings and enums, which hold no
/// tensors. For your own struct, add the member function
/// visit_tensors():
///
///     struct Output {
///       at::Tensor logits, hidden;
///       template <typename F> void visit_tensors(F&& f) { f(logits); f(hidden); }
///     };
///
/// or specialize this template. DistributedDataParallel uses it for find_unused_parameters and static_graph,
/// the data loader to pin batches and to copy them to a device. PyTorch: `torch.utils._pytree`.
template <typename T>
struct TensorVisitor;

/// A type whose tensors TensorVisitor can visit.
template <typename T>
concept PyTree = requires(T& value, void (*f)(at::Tensor&)) { TensorVisitor<T>::visit(value, f); };

/// A PyTree type that never holds a tensor.
template <typename T>
concept NonTensorLeaf = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                        std::is_same_v<T, std::nullptr_t> || std::is_same_v<T, std::monostate>;

/// A type with a member function visit_tensors().
template <typename T>
concept HasVisitTensors = requires(T& value, void (*f)(at::Tensor&)) { value.visit_tensors(f); };

/// Calls `f(at::Tensor&)` for each tensor in `value`. PyTorch: `torch.utils._pytree.tree_map_only_`.
template <typename T, typename F>
void visit_tensors(T& value, F&& f) {
  TensorVisitor<T>::visit(value, f);
}

template <>
struct TensorVisitor<at::Tensor> {
  template <typename F>
  static void visit(at::Tensor& value, F& f) {
    if (value.defined()) f(value);
  }
};

template <NonTensorLeaf T>
struct TensorVisitor<T> {
  /// Calls `f` with each tensor of the value, by reference.
  template <typename F>
  static void visit(T&, F&) {}
};

template <HasVisitTensors T>
struct TensorVisitor<T> {
  template <typename F>
  static void visit(T& value, F& f) {
    value.visit_tensors(f);
  }
};

/// Visits what an optional or a smart pointer holds.
struct PointeeVisitor {
  /// Calls `f` with each tensor of the value, by reference.
  template <typename Pointer, typename F>
  static void visit(Pointer& value, F& f) {
    if (value) visit_tensors(*value, f);
  }
};

template <PyTree T>
struct TensorVisitor<std::optional<T>> : PointeeVisitor {};
template <PyTree T>
struct TensorVisitor<std::shared_ptr<T>> : PointeeVisitor {};
template <PyTree T>
struct TensorVisitor<std::unique_ptr<T>> : PointeeVisitor {};

/// Visits the elements of a sequence.
struct SequenceVisitor {
  /// Calls `f` with each tensor of the value, by reference.
  template <typename Sequence, typename F>
  static void visit(Sequence& values, F& f) {
    for (auto& value : values) visit_tensors(value, f);
  }
};

template <PyTree T>
struct TensorVisitor<std::vector<T>> : SequenceVisitor {};
template <PyTree T, std::size_t N>
struct TensorVisitor<std::array<T, N>> : SequenceVisitor {};

template <>
struct TensorVisitor<std::vector<bool>> {
  template <typename F>
  static void visit(std::vector<bool>&, F&) {}
};

/// Visits the values of a map.
struct MapVisitor {
  /// Calls `f` with each tensor of the value, by reference.
  template <typename Map, typename F>
  static void visit(Map& values, F& f) {
    for (auto& [key, value] : values) visit_tensors(value, f);
  }
};

template <typename Key, PyTree T>
struct TensorVisitor<std::map<Key, T>> : MapVisitor {};
template <typename Key, PyTree T>
struct TensorVisitor<std::unordered_map<Key, T>> : MapVisitor {};

/// Visits the members of a pair or a tuple.
struct TupleVisitor {
  /// Calls `f` with each tensor of the value, by reference.
  template <typename Tuple, typename F>
  static void visit(Tuple& value, F& f) {
    std::apply([&](auto&... each) { (visit_tensors(each, f), ...); }, value);
  }
};

template <PyTree First, PyTree Second>
struct TensorVisitor<std::pair<First, Second>> : TupleVisitor {};
template <PyTree... Ts>
struct TensorVisitor<std::tuple<Ts...>> : TupleVisitor {};

template <PyTree... Ts>
struct TensorVisitor<std::variant<Ts...>> {
  template <typename F>
  static void visit(std::variant<Ts...>& value, F& f) {
    std::visit([&](auto& each) { visit_tensors(each, f); }, value);
  }
};

/// `f` can replace tensors in lists and tuples. In dictionaries and objects replacement has no effect.
template <>
struct TensorVisitor<c10::IValue> {
  template <typename F>
  static void visit(c10::IValue& value, F& f) {
    if (value.isTensor()) {
      auto tensor = value.toTensor();
      if (!tensor.defined()) return;
      f(tensor);
      value = tensor;
    } else if (value.isTuple()) {
      auto elements = value.toTupleRef().elements().vec();
      for (auto& element : elements) visit(element, f);
      value = c10::ivalue::Tuple::create(std::move(elements));
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) f(tensor);
      value = list;
    } else {
      value.visit([&](const c10::IValue& inner) {
        if (inner.isTensor() && inner.toTensor().defined()) {
          auto tensor = inner.toTensor();
          f(tensor);
        }
        return false;
      });
    }
  }
};

/// A type whose copies can hold other tensors.
template <typename T>
concept MapsTensors = PyTree<T> && !NonTensorLeaf<T> && std::copy_constructible<T>;

/// Forwards the value if its type holds no tensors that can be replaced; otherwise returns a copy with
/// `f(const at::Tensor&)` in place of each defined tensor. A copied shared_ptr points at the same value,
/// whose tensors are replaced. PyTorch: `torch.utils._pytree.tree_map_only`.
template <typename T, typename F>
decltype(auto) map_tensors(T&& value, const F& f) {
  if constexpr (MapsTensors<std::remove_cvref_t<T>>) {
    std::remove_cvref_t<T> copy = std::forward<T>(value);
    visit_tensors(copy, [&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = f(tensor);
    });
    return copy;
  } else {
    return std::forward<T>(value);
  }
}

/// A value of any PyTree type that can be copied. It converts from and to that type.
class AnyPyTree {
 public:
  /// A list of tensors.
  using Tensors = std::vector<at::Tensor>;

  AnyPyTree() = default;
  /// A vector of tensors.
  template <std::same_as<at::Tensor> Tensor>
  AnyPyTree(std::initializer_list<Tensor> tensors) : AnyPyTree(Tensors(tensors)) {}
  template <PyTree T>
    requires std::copy_constructible<T>
  AnyPyTree(T value) : value_(std::move(value)), visit_(&visit_held<T>) {}

  /// The tensors in the order of TensorVisitor, without undefined ones.
  Tensors tensors() const;
  /// The same value with other tensors, as many as tensors() has. Throws ArgumentError where TensorVisitor
  /// cannot replace them in a copy: behind a shared_ptr, or in a list or dictionary of an IValue.
  AnyPyTree with_tensors(const Tensors& tensors) const;
  /// The same, but nothing where it cannot replace them.
  std::optional<AnyPyTree> try_with_tensors(const Tensors& tensors) const;

  /// The value. A value with one tensor also gives that tensor, and each value the vector of its tensors.
  /// Throws ArgumentError for another type.
  template <PyTree T>
  T get() const {
    if (const T* held = std::any_cast<T>(&value_)) return *held;
    if constexpr (std::same_as<T, Tensors>) return tensors();
    if constexpr (std::same_as<T, at::Tensor>)
      if (auto only = tensors(); only.size() == 1) return only.front();
    refuse(typeid(T));
  }
  template <PyTree T>
    requires(!NonTensorLeaf<T>)
  operator T() const {
    return get<T>();
  }

 private:
  using Visitor = std::function<void(at::Tensor&)>;

  template <typename T>
  static void visit_held(std::any& value, const Visitor& visitor) {
    visit_tensors(std::any_cast<T&>(value), [&visitor](at::Tensor& tensor) {
      if (tensor.defined()) visitor(tensor);
    });
  }
  [[noreturn]] void refuse(const std::type_info& wanted) const;

  std::any value_ = Tensors{};
  void (*visit_)(std::any&, const Visitor&) = &visit_held<Tensors>;
};

}  // namespace lockstep
