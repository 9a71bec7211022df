// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <c10/util/Type.h>

#include <lockstep/device/pytree.h>

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

std::optional<AnyPyTree> AnyPyTree::try_with_tensors(const Tensors& tensors) const {
  const auto before = this->tensors();
  if (before.size() != tensors.size())
    throw_error<ArgumentError>("a value with {} tensors cannot have {} others", before.size(),
                               tensors.size());
  auto copy = *this;
  const auto replace = [&copy](const Tensors& others) {
    std::size_t next = 0;
    copy.visit_(copy.value_, [&](at::Tensor& tensor) { tensor = others[next++]; });
  };
  replace(tensors);
  if (!are_same(this->tensors(), before)) {
    replace(before);  // the copy refers to the same tensors
    return std::nullopt;
  }
  return are_same(copy.tensors(), tensors) ? std::optional(copy) : std::nullopt;
}

AnyPyTree AnyPyTree::with_tensors(const Tensors& tensors) const {
  if (auto copy = try_with_tensors(tensors)) return *std::move(copy);
  throw_error<ArgumentError>(
      "the tensors of {} cannot be replaced in a copy: they are behind a shared pointer, or in a list or "
      "dictionary of an IValue",
      c10::demangle(value_.type().name()));
}

void AnyPyTree::refuse(const std::type_info& wanted) const {
  throw_error<ArgumentError>("a value of type {} with {} tensors is not a {}",
                             c10::demangle(value_.type().name()), tensors().size(),
                             c10::demangle(wanted.name()));
}

}  // namespace lockstep
