// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/Functions.h>

#include <lockstep/serialize/value.h>

#include "serialize/dtypes.h"

namespace lockstep {
namespace {

bool equal_tensors(const at::Tensor& left, const at::Tensor& right);

std::vector<at::Tensor> parts_of(const at::Tensor& sparse) {
  switch (sparse.layout()) {
    case at::kSparse: {
      const auto coalesced = sparse.coalesce();
      return {coalesced.indices(), coalesced.values()};
    }
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {sparse.crow_indices(), sparse.col_indices(), sparse.values()};
    case at::kSparseCsc:
    case at::kSparseBsc:
      return {sparse.ccol_indices(), sparse.row_indices(), sparse.values()};
    default:
      return {sparse.to_dense()};
  }
}

bool equal_strided(const at::Tensor& left, const at::Tensor& right) {
  // torch.equal does not know all of the small types.
  const auto type = left.scalar_type();
  if (type == at::kComplexHalf)
    return at::view_as_real(left.resolve_conj()).equal(at::view_as_real(right.resolve_conj()));
  if (c10::isFloat8Type(type)) return left.to(at::kFloat).equal(right.to(at::kFloat));
  if (type == at::kFloat4_e2m1fn_x2 || c10::isBarebonesUnsignedType(type)) {
    return left.reshape(-1).contiguous().view(at::kByte).equal(
        right.reshape(-1).contiguous().view(at::kByte));
  }
  return left.equal(right);
}

bool equal_tensors(const at::Tensor& left, const at::Tensor& right) {
  if (left.is_same(right)) return true;
  if (!left.defined() || !right.defined()) return false;
  if (left.scalar_type() != right.scalar_type() || left.layout() != right.layout() ||
      left.device() != right.device() || left.sizes() != right.sizes()) {
    return false;
  }
  if (left.is_meta()) return true;
  if (left.layout() == at::kStrided) return equal_strided(left, right);
  return std::ranges::equal(parts_of(left.detach()), parts_of(right.detach()), equal_tensors);
}

bool equal_items(const std::vector<Value>& left, const std::vector<Value>& right) {
  return std::ranges::equal(left, right, equal);
}

bool has_all(const Set& set, const Set& wanted) {
  return std::ranges::all_of(wanted.items, [&](const Value& item) {
    return std::ranges::any_of(set.items, [&](const Value& other) { return equal(item, other); });
  });
}

struct SameContents {
  bool operator()(const at::Tensor& left, const at::Tensor& right) const {
    return equal_tensors(left, right);
  }
  bool operator()(const Parameter& left, const Parameter& right) const {
    return left.requires_grad == right.requires_grad && equal_tensors(left.data, right.data);
  }
  bool operator()(const List& left, const List& right) const { return equal_items(left.items, right.items); }
  bool operator()(const Tuple& left, const Tuple& right) const {
    return equal_items(left.items, right.items);
  }
  bool operator()(const Set& left, const Set& right) const {
    return left.items.size() == right.items.size() && has_all(left, right) && has_all(right, left);
  }
  bool operator()(const Dict& left, const Dict& right) const {
    if (left.kind() != right.kind() || left.size() != right.size()) return false;
    // As in Python, the order counts for an OrderedDict only.
    if (left.kind() == DictKind::ordered_dict) {
      return std::equal(
          left.begin(), left.end(), right.begin(), right.end(),
          [](const auto& a, const auto& b) { return equal(a.key, b.key) && equal(a.value, b.value); });
    }
    return std::all_of(left.begin(), left.end(), [&](const Dict::Item& item) {
      const auto* other = right.find(item.key);
      return other != nullptr && equal(item.value, *other);
    });
  }
  bool operator()(const ShardedTensor& left, const ShardedTensor& right) const {
    return left.size == right.size && serialize::dtype_of(left) == serialize::dtype_of(right) &&
           std::ranges::equal(left.local_shards, right.local_shards, [](const Shard& a, const Shard& b) {
             return a.shard_offsets == b.shard_offsets && equal_tensors(a.tensor, b.tensor);
           });
  }
  template <typename Same>
  bool operator()(const Same& left, const Same& right) const {
    return left == right;
  }
  template <typename Left, typename Right>
    requires(!std::same_as<Left, Right>)
  bool operator()(const Left& /*left*/, const Right& /*right*/) const {
    return false;
  }
};

}  // namespace

bool equal(const Value& left, const Value& right) {
  return std::visit(SameContents{}, left.variant(), right.variant());
}

}  // namespace lockstep
