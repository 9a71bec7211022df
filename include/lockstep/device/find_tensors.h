// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep {

/// Tells where the tensors of a type lie, be it a batch or what a module's forward() returns: `visit(value,
/// f)` calls `f` with a reference to each at::Tensor in it; `f` may replace them. There for tensors,
/// optionals, pairs, tuples, arrays, vectors, maps, variants, smart pointers, c10::IValue, and numbers,
/// strings and enums (which hold none), nested as you like. For a struct of your own either give it a member
/// function
///
///     template <typename F> void visit_tensors(F&& f) { f(logits); f(state.hidden); }
///
/// or specialize this template. DistributedDataParallel needs it for find_unused_parameters and static_graph,
/// a data loader to pin batches and to bring them to a device.
template <typename T>
struct TensorVisitor;

namespace device {

struct AnyVisitor {
  void operator()(at::Tensor&) const {}
};

template <typename T>
concept VisitsItself = requires(T& value, AnyVisitor f) { value.visit_tensors(f); };

template <typename T>
concept HoldsNone = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                    std::is_same_v<T, std::nullptr_t> || std::is_same_v<T, std::monostate>;

template <typename T>
concept Findable = requires(T& value, AnyVisitor f) { TensorVisitor<T>::visit(value, f); };

}  // namespace device

/// Calls `f(at::Tensor&)` for each tensor in `value`.
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

template <device::HoldsNone T>
struct TensorVisitor<T> {
  template <typename F>
  static void visit(T&, F&) {}
};

template <device::VisitsItself T>
struct TensorVisitor<T> {
  template <typename F>
  static void visit(T& value, F& f) {
    value.visit_tensors(f);
  }
};

template <device::Findable T>
struct TensorVisitor<std::optional<T>> {
  template <typename F>
  static void visit(std::optional<T>& value, F& f) {
    if (value) visit_tensors(*value, f);
  }
};

template <device::Findable T>
struct TensorVisitor<std::shared_ptr<T>> {
  template <typename F>
  static void visit(std::shared_ptr<T>& value, F& f) {
    if (value) visit_tensors(*value, f);
  }
};

template <device::Findable T>
struct TensorVisitor<std::unique_ptr<T>> {
  template <typename F>
  static void visit(std::unique_ptr<T>& value, F& f) {
    if (value) visit_tensors(*value, f);
  }
};

template <device::Findable T>
struct TensorVisitor<std::vector<T>> {
  template <typename F>
  static void visit(std::vector<T>& values, F& f) {
    for (auto& value : values) visit_tensors(value, f);
  }
};

template <>
struct TensorVisitor<std::vector<bool>> {
  template <typename F>
  static void visit(std::vector<bool>&, F&) {}
};

template <device::Findable T, std::size_t N>
struct TensorVisitor<std::array<T, N>> {
  template <typename F>
  static void visit(std::array<T, N>& values, F& f) {
    for (auto& value : values) visit_tensors(value, f);
  }
};

template <typename Key, device::Findable T>
struct TensorVisitor<std::map<Key, T>> {
  template <typename F>
  static void visit(std::map<Key, T>& values, F& f) {
    for (auto& [key, value] : values) visit_tensors(value, f);
  }
};

template <typename Key, device::Findable T>
struct TensorVisitor<std::unordered_map<Key, T>> {
  template <typename F>
  static void visit(std::unordered_map<Key, T>& values, F& f) {
    for (auto& [key, value] : values) visit_tensors(value, f);
  }
};

template <device::Findable First, device::Findable Second>
struct TensorVisitor<std::pair<First, Second>> {
  template <typename F>
  static void visit(std::pair<First, Second>& value, F& f) {
    visit_tensors(value.first, f);
    visit_tensors(value.second, f);
  }
};

template <device::Findable... Ts>
struct TensorVisitor<std::tuple<Ts...>> {
  template <typename F>
  static void visit(std::tuple<Ts...>& value, F& f) {
    std::apply([&](auto&... each) { (visit_tensors(each, f), ...); }, value);
  }
};

template <device::Findable... Ts>
struct TensorVisitor<std::variant<Ts...>> {
  template <typename F>
  static void visit(std::variant<Ts...>& value, F& f) {
    std::visit([&](auto& each) { visit_tensors(each, f); }, value);
  }
};

/// Tensors inside lists and tuples can be replaced; those in dictionaries and objects are found only.
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

}  // namespace lockstep
