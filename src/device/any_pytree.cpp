// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <c10/util/Type.h>

#include <lockstep/device/any_pytree.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

bool are_same(const AnyPyTree::Tensors& left, const AnyPyTree::Tensors& right) {
  return std::ranges::equal(left, right, [](const auto& a, const auto& b) { return a.is_same(b); });
}

}  // namespace

AnyPyTree::Tensors AnyPyTree::tensors() const {
  Tensors all;
  auto copy = value_;
  visit_(copy, [&all](at::Tensor& tensor) { all.push_back(tensor); });
  return all;
}

AnyPyTree AnyPyTree::with_tensors(const Tensors& tensors) const {
  const auto before = this->tensors();
  if (before.size() != tensors.size())
    throw_error<ArgumentError>("a value with {} tensors cannot have {} others", before.size(),
                               tensors.size());
  auto copy = *this;
  std::size_t next = 0;
  visit_(copy.value_, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
  const bool has_changed_this = !are_same(this->tensors(), before);
  if (has_changed_this) {
    next = 0;
    visit_(copy.value_, [&](at::Tensor& tensor) { tensor = before[next++]; });
  }
  if (has_changed_this || !are_same(copy.tensors(), tensors))
    throw_error<ArgumentError>(
        "the tensors of {} cannot be replaced in a copy: they are behind a shared pointer or in a dictionary "
        "of "
        "an IValue",
        c10::demangle(value_.type().name()));
  return copy;
}

void AnyPyTree::refuse(const std::type_info& wanted) const {
  throw_error<ArgumentError>("a value of type {} with {} tensors is not a {}",
                             c10::demangle(value_.type().name()), tensors().size(),
                             c10::demangle(wanted.name()));
}

}  // namespace lockstep
