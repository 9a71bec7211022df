// SPDX-License-Identifier: BSD-3-Clause
// What the core of shm is asked for by a call on tensors, and which calls take the eager path.
#include "backends/shm/call_request.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "backends/shm/layout.h"
#include "backends/shm/request.h"
#include "backends/shm/shm_backend.h"
#include "comm/call_rules.h"

namespace lockstep::shm {
namespace {

using comm::Call;
using Tensors = std::vector<at::Tensor>;

constexpr int kSize = 3;
constexpr int kRank = 1;

at::Tensor rows(std::int64_t count, c10::ScalarType dtype = at::kFloat) {
  return at::zeros({count, 2}, dtype);
}

// Whether the call passes all checks of its arguments.
bool is_right(const Call& call) {
  static const comm::CallRules rules(kRank, kSize, "rank 1 of 3", "shm", backends::ShmBackend::traits());
  try {
    rules.check(call);
    return true;
  } catch (const ArgumentError&) {
    return false;
  }
}

// Whether it takes the eager path.
bool fits(const Call& call) { return is_right(call) && is_eager(call, kSize); }

std::vector<std::size_t> lengths(const auto& parts) {
  std::vector<std::size_t> all;
  for (const auto& part : parts) all.push_back(part.bytes);
  return all;
}

Request filled(const Call& call) {
  Request request{.kind = Kind::reduce,  // left by another call
                  .element = Element::i64,
                  .reduction = Reduction::max,
                  .root = 2,
                  .inputs = {{}, {}},
                  .outputs = {{}, {}}};
  fill(request, call, kSize);
  return request;
}

TEST(CallRequest, NamesKindElementsAndParts) {
  const auto one = rows(4);
  const auto whole = rows(12);
  const Tensors each{rows(4), rows(4), rows(4)};
  const std::vector<std::size_t> thirds(3, 32);

  const auto reduced = filled({.kind = CallKind::reduce, .outputs = one, .op = ReduceOp::MAX, .root = 2});
  EXPECT_EQ(describe(packed(reduced), size_of(reduced)), "reduce of 8 x f32 (max), root 2");
  EXPECT_TRUE(reduced.inputs.empty());
  EXPECT_EQ(reduced.outputs.front().data, static_cast<std::byte*>(one.data_ptr()));

  const auto gathered = filled({.kind = CallKind::all_gather_into_tensor, .inputs = one, .outputs = whole});
  EXPECT_EQ(describe(packed(gathered), size_of(gathered)), "all_gather of 8 x f32");
  EXPECT_EQ(lengths(gathered.outputs), thirds);
  EXPECT_EQ(gathered.outputs[2].data, static_cast<std::byte*>(whole.data_ptr()) + 64);

  const auto scattered =
      filled({.kind = CallKind::reduce_scatter_tensor, .inputs = whole, .outputs = one, .op = ReduceOp::AVG});
  EXPECT_EQ(describe(packed(scattered), size_of(scattered)), "reduce_scatter of 8 x f32 (average)");
  EXPECT_EQ(lengths(scattered.inputs), thirds);

  const auto exchanged = filled({.kind = CallKind::all_to_all_single, .inputs = whole, .outputs = rows(12)});
  EXPECT_EQ(lengths(exchanged.inputs), thirds);
  EXPECT_EQ(lengths(exchanged.outputs), thirds);

  EXPECT_EQ(lengths(filled({.kind = CallKind::all_to_all, .inputs = each, .outputs = each}).inputs), thirds);
  const auto barrier = filled({});
  EXPECT_EQ(packed(barrier), packed(Request{.kind = Kind::barrier}));
  EXPECT_EQ(size_of(barrier), 0U);
}

TEST(CallRequest, IsEagerForSmallTensors) {
  const auto broadcast = [](const at::Tensor& tensor) {
    return fits({.kind = CallKind::broadcast, .outputs = tensor, .root = 0});
  };
  EXPECT_TRUE(broadcast(rows(4)));
  EXPECT_TRUE(broadcast(rows(4, at::kBool)));
  EXPECT_TRUE(broadcast(at::zeros({static_cast<std::int64_t>(kSmallBytes)}, at::kByte)));
  EXPECT_FALSE(broadcast(at::zeros({static_cast<std::int64_t>(kSmallBytes) + 1}, at::kByte)));
  EXPECT_FALSE(broadcast(at::Tensor()));
  EXPECT_TRUE(broadcast(at::empty({0})));
  EXPECT_TRUE(broadcast(rows(4).t()));
  EXPECT_FALSE(broadcast(rows(4).to_sparse()));
  EXPECT_TRUE(broadcast(rows(4, at::kComplexFloat)));
  EXPECT_FALSE(broadcast(at::empty({8}, at::kFloat8_e5m2)));
  EXPECT_FALSE(broadcast(rows(4)._neg_view()));
  EXPECT_FALSE(broadcast(at::empty({4}, at::TensorOptions(at::kMeta))));
}

TEST(CallRequest, ReservesSpaceForTheTablesOfUnevenCalls) {
  constexpr auto kTables = 2 * kSize * sizeof(std::uint64_t);
  const auto most = static_cast<std::int64_t>(kSmallBytes - kTables);
  const auto all_gather = [](std::int64_t bytes) {
    const auto input = at::zeros({bytes}, at::kByte);
    const Tensors output{input.clone(), input.clone(), input.clone()};
    return fits({.kind = CallKind::all_gather, .inputs = input, .outputs = output});
  };
  EXPECT_TRUE(all_gather(most));
  EXPECT_FALSE(all_gather(most + 1));
}

TEST(CallRequest, RejectsInvalidReductions) {
  const auto reduced = [](c10::ScalarType dtype, ReduceOp op) {
    return fits({.kind = CallKind::all_reduce, .outputs = rows(4, dtype), .op = op});
  };
  EXPECT_TRUE(reduced(at::kFloat, ReduceOp::AVG));
  EXPECT_FALSE(reduced(at::kInt, ReduceOp::AVG));
  EXPECT_TRUE(reduced(at::kInt, ReduceOp::BXOR));
  EXPECT_FALSE(reduced(at::kFloat, ReduceOp::BXOR));
}

TEST(CallRequest, RejectsInvalidArguments) {
  const auto one = rows(4);
  const Tensors three{rows(4), rows(4), rows(4)};
  const Tensors two{rows(4), rows(4)};
  const Tensors odd{rows(4), rows(5), rows(4)};
  const Tensors mixed{rows(4), rows(4), rows(4, at::kInt)};
  const auto kinds = [](CallKind kind, at::TensorList in, at::TensorList out, int root = -1) {
    return fits({.kind = kind, .inputs = in, .outputs = out, .root = root});
  };
  EXPECT_FALSE(kinds(CallKind::broadcast, {}, one, 3));
  EXPECT_FALSE(kinds(CallKind::broadcast, {}, one, -1));

  EXPECT_TRUE(kinds(CallKind::all_gather, one, three));
  EXPECT_FALSE(kinds(CallKind::all_gather, one, two));
  EXPECT_FALSE(kinds(CallKind::all_gather, one, odd)) << "the own one differs";
  EXPECT_FALSE(kinds(CallKind::all_gather, one, mixed));
  EXPECT_TRUE(kinds(CallKind::all_gather_into_tensor, one, rows(12)));
  EXPECT_FALSE(kinds(CallKind::all_gather_into_tensor, one, rows(11)));

  EXPECT_TRUE(kinds(CallKind::gather, one, three, kRank));
  EXPECT_FALSE(kinds(CallKind::gather, one, odd, kRank));
  EXPECT_FALSE(kinds(CallKind::gather, one, {}, kRank));
  EXPECT_TRUE(kinds(CallKind::gather, one, {}, 0));
  EXPECT_FALSE(kinds(CallKind::gather, one, three, 0));

  EXPECT_TRUE(kinds(CallKind::scatter, three, one, kRank));
  EXPECT_FALSE(kinds(CallKind::scatter, two, one, kRank));
  EXPECT_TRUE(kinds(CallKind::scatter, {}, one, 0));
  EXPECT_FALSE(kinds(CallKind::scatter, three, one, 0));

  EXPECT_TRUE(kinds(CallKind::reduce_scatter, three, one));
  EXPECT_FALSE(kinds(CallKind::reduce_scatter, odd, one));
  EXPECT_FALSE(kinds(CallKind::reduce_scatter_tensor, rows(11), one));

  EXPECT_TRUE(kinds(CallKind::all_to_all, three, {rows(4), rows(4), rows(4)}));
  EXPECT_FALSE(kinds(CallKind::all_to_all, three, odd)) << "the own ones differ";
  EXPECT_FALSE(kinds(CallKind::all_to_all, three, two));
  EXPECT_TRUE(kinds(CallKind::all_to_all_single, rows(3), rows(6)));
  EXPECT_FALSE(kinds(CallKind::all_to_all_single, rows(4), rows(4)));
}

TEST(CallRequest, IsEagerForAMessageOfOneChunkToAnotherRank) {
  const auto most = static_cast<std::int64_t>(kMessageChunkBytes);
  const auto sends = [](const at::Tensor& tensor, int peer, int tag = 0) {
    return fits({.kind = CallKind::send, .inputs = tensor, .peer = peer, .tag = tag});
  };
  EXPECT_TRUE(sends(at::zeros({most}, at::kByte), 0));
  EXPECT_FALSE(sends(at::zeros({most + 1}, at::kByte), 0));
  EXPECT_FALSE(sends(rows(4), kRank));
  EXPECT_FALSE(sends(rows(4), -1));
  EXPECT_FALSE(sends(rows(4), kSize));
  EXPECT_FALSE(sends(rows(4), 0, -1));
  EXPECT_FALSE(sends(at::empty({0}), 0));
  EXPECT_TRUE(fits({.kind = CallKind::recv, .outputs = rows(4), .peer = 0}));
  EXPECT_TRUE(fits({.kind = CallKind::recv, .outputs = rows(4).t(), .peer = 0}));
}

}  // namespace
}  // namespace lockstep::shm
