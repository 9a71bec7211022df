// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <any>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <lockstep/device/pytree.h>

namespace lockstep {

/// A value of any PyTree type that can be copied. It converts from and to that type.
class AnyPyTree {
 public:
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
