// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include "ddp/bucket.h"

namespace lockstep::ddp {
namespace {

// Ranks have different numbers of rows; each sends as many as the one that has most.
struct Gathered {
  at::Tensor counts;   // [ranks], of rows
  at::Tensor indices;  // [ranks, rows, sparse dimensions]
  at::Tensor values;   // [ranks, rows, ...]
};

at::Tensor padded(const at::Tensor& rows, std::int64_t count) {
  auto sizes = rows.sizes().vec();
  sizes.front() = count;
  auto all = at::zeros(sizes, rows.options());
  all.narrow(0, 0, rows.size(0)).copy_(rows);
  return all;
}

at::Tensor room_for_all(const at::Tensor& own, int ranks) {
  auto sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks);
  return at::empty(sizes, own.options());
}

at::Tensor sum(const Gathered& all, const at::Tensor& like) {
  at::Tensor total;
  const auto counts = all.counts.to(at::kCPU);
  for (std::int64_t rank = 0; rank < counts.numel(); ++rank) {
    const auto rows = counts[rank].item<std::int64_t>();
    const auto part = at::sparse_coo_tensor(all.indices[rank].narrow(0, 0, rows).t().contiguous(),
                                            all.values[rank].narrow(0, 0, rows), like.sizes());
    total = total.defined() ? total + part : part;
  }
  return total.coalesce();
}

}  // namespace

BucketWork sum_sparse(const at::Tensor& tensor, const ProcessGroup& group, std::source_location where) {
  const auto own = tensor.coalesce();
  const auto count = at::zeros({1}, own.indices().options());
  count.fill_(own.indices().size(1));
  const auto counts = at::empty({group.size()}, count.options());

  const auto gather_rows = [own, counts, group, where] {
    const auto most = counts.max().item<std::int64_t>();
    const auto indices = padded(own.indices().t().contiguous(), most);
    const auto values = padded(own.values().contiguous(), most);
    const Gathered all{counts, room_for_all(indices, group.size()), room_for_all(values, group.size())};
    const auto gather_values = [=] {
      auto work = group.all_gather_into_tensor_async(all.values, values, where);
      return BucketWork(std::move(work), [=] { return BucketWork(sum(all, own)); });
    };
    auto work = group.all_gather_into_tensor_async(all.indices, indices, where);
    return BucketWork(std::move(work), gather_values);
  };
  return {group.all_gather_into_tensor_async(counts, count, where), gather_rows};
}

}  // namespace lockstep::ddp
