// SPDX-License-Identifier: BSD-3-Clause
// Wrong arguments are refused before the backend sees the call.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/backends/backends.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "comm/group_state.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = std::vector<at::Tensor>;

class ArgumentChecks : public ::testing::Test {
 protected:
  // Rejected with a text that names rank, group, file and `complaint`; nothing was recorded or sent.
  void expect_refused(const std::function<void()>& call, const std::string& complaint) const {
    EXPECT_THAT(call, ThrowsMessage<ArgumentError>(AllOf(HasSubstr("rank 1 of 3 (group checked, fake)"),
                                                         HasSubstr("argument_checks_test.cpp:"),
                                                         HasSubstr(complaint))));
    EXPECT_TRUE(backend->calls().empty());
    EXPECT_TRUE(group.recent_calls().empty());
  }

  c10::intrusive_ptr<backends::FakeBackend> backend = c10::make_intrusive<backends::FakeBackend>(1, 3);
  // The traits of a backend for the CPU and a few types.
  ProcessGroup group{backend,
                     {.name = "checked",
                      .traits = {.devices = {c10::DeviceType::CPU},
                                 .dtypes = {at::kFloat, at::kLong, at::kBool},
                                 .device_advice = "move it"}}};
  at::Tensor x = torch::ones({4});
};

TEST_F(ArgumentChecks, Tensors) {
  expect_refused([&] { group.all_reduce(at::Tensor()); }, "tensor is an undefined tensor");
  expect_refused([&] { group.all_reduce(torch::ones({2}).to_sparse()); }, "layout Sparse");
  expect_refused([&] { group.all_reduce(torch::ones({2}, at::kMeta)); }, "is on meta");
  expect_refused([&] { group.all_reduce(torch::ones({2}, at::kShort)); }, "dtype Short");
  expect_refused([&] { group.all_reduce(torch::ones({4, 4}).select(1, 0)); }, "holes or overlaps");
  expect_refused(
      [&] {
        group.all_gather_into_tensor(torch::ones({12}), torch::ones({2, 2}).t());
      },
      "not contiguous");
  expect_refused([&] { group.broadcast(torch::ones({1}).expand({3}), 0); }, "holes or overlaps");
  expect_refused([&] { group.all_reduce(torch::ones({2}, at::kComplexFloat).conj()); }, "lazy conjugate");
}

// As over nccl alone, where a tensor of the CPU has to go through the GPU.
TEST_F(ArgumentChecks, TheDeviceThatCarriesATensor) {
  const ProcessGroup elsewhere{backend,
                               {.name = "elsewhere", .traits = {.devices = {c10::DeviceType::Meta}}}};
  EXPECT_EQ(comm::device_that_carries(elsewhere, at::kCPU), at::kMeta);
  EXPECT_EQ(comm::device_that_carries(elsewhere, at::kMeta), at::kMeta);
  EXPECT_EQ(comm::device_that_carries(group, at::kCPU), at::kCPU);
}

TEST_F(ArgumentChecks, Ranks) {
  for (const int wrong : {-1, 3}) {
    expect_refused([&] { group.broadcast(x, wrong); }, "src is " + std::to_string(wrong));
    expect_refused([&] { group.reduce(x, wrong); }, "dst is " + std::to_string(wrong));
    expect_refused([&] { group.gather(x, {}, wrong); }, "ranks 0 to 2");
    expect_refused([&] { group.scatter(x, {}, wrong); }, "ranks 0 to 2");
    expect_refused([&] { group.send(x, wrong); }, "ranks 0 to 2");
    expect_refused([&] { group.recv(x, wrong); }, "ranks 0 to 2");
    expect_refused([&] { (void)group.gather_object("x", wrong); }, "ranks 0 to 2");
    expect_refused([&] { (void)group.scatter_object({}, wrong); }, "ranks 0 to 2");
    expect_refused([&] { (void)group.broadcast_object("x", wrong); }, "ranks 0 to 2");
  }
  expect_refused([&] { group.send(x, 1); }, "this rank itself");
  expect_refused([&] { group.recv(x, 1); }, "this rank itself");
  expect_refused([&] { group.send(x, 0, -1); }, "tag is -1");
}

TEST_F(ArgumentChecks, Counts) {
  const Tensors two{x.clone(), x.clone()};
  expect_refused([&] { group.all_gather(two, x); }, "output has 2 tensors");
  expect_refused([&] { group.gather(x, two, 1); }, "output has 2 tensors");
  expect_refused([&] { group.gather(x, two, 0); }, "must be empty on every rank but dst (0)");
  expect_refused([&] { group.scatter(x, two, 1); }, "input has 2 tensors");
  expect_refused([&] { group.scatter(x, two, 2); }, "must be empty on every rank but src (2)");
  expect_refused([&] { group.reduce_scatter(x, two); }, "input has 2 tensors");
  expect_refused([&] { group.all_to_all(two, two); }, "output has 2 tensors");
}

TEST_F(ArgumentChecks, Shapes) {
  const Tensors three{x.clone(), x.clone(), torch::ones({5})};
  expect_refused([&] { group.all_gather(three, x); }, "shapes must be the same");
  expect_refused(
      [&] {
        group.all_gather({x, x, torch::ones({4}, at::kLong)}, x);
      },
      "dtypes must be the same");
  expect_refused([&] { group.reduce_scatter(x, three); }, "shapes must be the same");
  expect_refused([&] { group.all_gather_into_tensor(torch::ones({11}), x); }, "has 11 elements");
  expect_refused([&] { group.reduce_scatter_tensor(x, torch::ones({13})); }, "has 13 elements");
}

TEST_F(ArgumentChecks, Splits) {
  const auto nine = torch::ones({9});
  expect_refused([&] { group.all_to_all_single(torch::ones({9}), torch::ones({10})); }, "not divisible by 3");
  expect_refused([&] { group.all_to_all_single(nine, nine, {1, 8}, {3, 3, 3}); }, "2 entries for 3 ranks");
  expect_refused([&] { group.all_to_all_single(nine, nine, {1, 1, 1}, {3, 3, 3}); }, "sums to 3");
  expect_refused([&] { group.all_to_all_single(nine, nine, {3, 3, 3}, {-1, 5, 5}); }, "negative entry -1");
  expect_refused([&] { group.all_to_all_single(torch::ones({}), nine); }, "no dimension to split");
}

TEST_F(ArgumentChecks, Operations) {
  const auto integers = torch::ones({2}, at::kLong);
  expect_refused([&] { group.all_reduce(x, ReduceOp::BAND); }, "BAND needs integers or bool");
  expect_refused([&] { group.all_reduce(integers, ReduceOp::AVG); }, "AVG needs floating point");
  expect_refused([&] { group.reduce(torch::ones({2}, at::kComplexFloat), 0, ReduceOp::MAX); },
                 "MAX of complex");
  expect_refused([&] { group.reduce_scatter_tensor(x, torch::ones({12}), ReduceOp::BXOR); },
                 "BXOR needs integers");
}

TEST_F(ArgumentChecks, OutputsThatShareMemory) {
  const std::string complaint = "output[0] and output[1] share memory; each output needs memory of its own";
  const Tensors copies(3, torch::zeros({4}));
  expect_refused([&] { group.all_gather(copies, x); }, complaint);
  expect_refused([&] { group.all_gather_async(copies, x); }, complaint);
  expect_refused([&] { group.gather(x, copies, 1); }, complaint);
  expect_refused([&] { group.all_to_all(copies, {x, x, x}); }, complaint);
  const auto nine = torch::zeros({9});
  const auto part = [&](std::int64_t begin) { return nine.slice(0, begin, begin + 4); };
  expect_refused([&] { group.all_gather({part(0), part(3), x.clone()}, x); }, complaint);
  expect_refused(
      [&] {
        group.all_gather({part(3), x.clone(), part(0)}, x);
      },
      "output[0] and output[2] share");
  // One memory in two storages.
  const auto alias = torch::from_blob(nine.data_ptr<float>() + 3, {4});
  expect_refused([&] { group.all_gather({part(0), alias, x.clone()}, x); }, complaint);
  group.all_gather({part(5), x.clone(), part(1)}, x);
}

// Few tensors are compared in pairs, more are sorted.
TEST_F(ArgumentChecks, ListsOfAnyLength) {
  for (const int size : {2, 4, 7, 8, 9, 12}) {
    const ProcessGroup many(c10::make_intrusive<backends::FakeBackend>(1, size), {.name = "many"});
    Tensors output;
    for (int i = 0; i < size; ++i) output.push_back(torch::zeros({4}));
    many.all_gather(output, x);
    many.all_gather(output, output[1]);
    EXPECT_THAT([&] { many.all_gather(output, output[0]); },
                ThrowsMessage<ArgumentError>(HasSubstr("output[0] and input share memory")));
    output.back() = output.front();
    EXPECT_THAT([&] { many.all_gather(output, x); },
                ThrowsMessage<ArgumentError>(
                    HasSubstr("output[0] and output[" + std::to_string(size - 1) + "] share memory")));
  }
}

TEST_F(ArgumentChecks, OutputsThatShareMemoryWithInputs) {
  const auto whole = torch::zeros({12});
  const auto part = [&](std::int64_t i) { return whole.slice(0, 4 * i, 4 * i + 4); };
  const Tensors parts{part(0), part(1), part(2)};
  expect_refused([&] { group.all_gather(parts, part(0)); },
                 "output[0] and input share memory; input may only be output[1] itself. Pass input.clone()");
  expect_refused([&] { group.all_gather(parts, whole.slice(0, 5, 9)); }, "output[1] and input share memory");
  expect_refused([&] { group.all_gather_into_tensor(whole, part(2)); },
                 "output and input share memory; input may only be part [1] of output, elements 4 to 7");
  expect_refused([&] { group.gather(part(2), parts, 1); }, "output[2] and input share memory");
  expect_refused([&] { group.scatter(part(2), parts, 1); },
                 "output and input[2] share memory; output may only be input[1] itself");
  expect_refused([&] { group.reduce_scatter(part(0), parts); }, "output and input[0] share memory");
  expect_refused([&] { group.reduce_scatter_tensor(part(0), whole); },
                 "output may only be part [1] of input, elements 4 to 7");
  expect_refused([&] { group.all_to_all(parts, parts); },
                 "output[0] and input[0] share memory; only output[1] may be input[1] itself");
  expect_refused([&] { group.all_to_all_single(whole, whole); }, "this call does not work in place");
}

// Rank 1's part of one argument is the other one.
TEST_F(ArgumentChecks, InPlaceFormsPass) {
  const auto whole = torch::zeros({12});
  const auto part = [&](std::int64_t i) { return whole.slice(0, 4 * i, 4 * i + 4); };
  const Tensors parts{part(0), part(1), part(2)};
  const Tensors inputs(3, x);  // that share memory with each other
  group.all_gather(parts, part(1));
  group.all_gather_into_tensor(whole, part(1));
  group.gather(part(1), parts, 1);
  group.scatter(part(1), parts, 1);
  group.reduce_scatter(part(1), parts);
  group.reduce_scatter_tensor(part(1), whole);
  group.all_to_all(parts, {x, part(1), x});
  group.reduce_scatter(torch::zeros({4}), inputs);
  // Nothing is shared where there are no elements, and the stride of one row has no meaning.
  const auto none = torch::empty({0});
  group.all_gather({none, none, none}, none);
  group.all_to_all_single(whole.slice(0, 3, 3), whole.slice(0, 3, 3));
  group.all_reduce(torch::ones({1}).expand({1, 1}).as_strided({1, 1}, {0, 7}));
  EXPECT_EQ(backend->calls().size(), 11U);
}

TEST_F(ArgumentChecks, TensorsWithoutMemory) {
  const auto freed = torch::ones({4});
  freed.storage().unsafeGetStorageImpl()->set_nbytes(8);
  expect_refused([&] { group.all_reduce(freed); },
                 "tensor needs 16 bytes of its storage, which was resized to 8");
  expect_refused([&] { group.all_gather_into_tensor(torch::ones({12}), freed); }, "input needs 16 bytes");
}

TEST_F(ArgumentChecks, ObjectsOfScatter) {
  expect_refused([&] { (void)group.scatter_object({"a", "b"}, 1); }, "objects has 2 entries");
  expect_refused(
      [&] {
        (void)group.scatter_object({"a", "b", "c"}, 0);
      },
      "must be empty on every rank but src");
}

TEST_F(ArgumentChecks, ValidArgumentsPass) {
  group.all_reduce(torch::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  group.all_reduce(torch::ones({2}, at::kComplexFloat));
  group.all_reduce(torch::empty({0}));
  group.all_reduce(torch::ones({}));
  EXPECT_EQ(backend->calls().size(), 4U);
}

}  // namespace
}  // namespace lockstep
