// SPDX-License-Identifier: BSD-3-Clause
// Calls that move as many bytes of as many numbers on all ranks and are different calls all the same.
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep::fingerprint_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Call = std::function<void(const ProcessGroup&)>;

// Small calls, made directly, asynchronous ones, and large ones: on both ranks an error that tells both
// tensors.
void expect_desync(const Call& zeroth, const Call& first, const std::string& tensor,
                   const std::string& other) {
  const auto context = init({.backend = "shm", .timeout = 20s});
  context.barrier();
  EXPECT_THAT([&] { (context.rank() == 0 ? zeroth : first)(context.group()); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("the ranks make different calls"),
                                               HasSubstr("alike in size, but not in shape"),
                                               HasSubstr(tensor), HasSubstr(other))));
}

Call reduce(std::vector<std::int64_t> shape, at::ScalarType dtype = at::kFloat) {
  return [=](const ProcessGroup& group) { group.all_reduce(torch::ones(shape, dtype)); };
}

const testing::Scenario shapes("form: shape", [] {
  expect_desync(reduce({3, 4}), reduce({4, 3}), "Float[3, 4]", "Float[4, 3]");
});
TEST(DisagreementOfForm, ShapesWithEqualElementCounts) {
  testing::expect_all_passed(testing::run_ranks(shapes));
}

// Of one shape, but other elements would be added to each other.
const testing::Scenario formats("form: formats", [] {
  const auto reduce_in = [](at::MemoryFormat format) {
    return [=](const ProcessGroup& group) { group.all_reduce(torch::ones({2, 3, 4, 4}).contiguous(format)); };
  };
  expect_desync(reduce_in(at::MemoryFormat::Contiguous), reduce_in(at::MemoryFormat::ChannelsLast),
                "not in shape, memory format", "Float[2, 3, 4, 4]");
});
TEST(DisagreementOfForm, MemoryFormats) { testing::expect_all_passed(testing::run_ranks(formats)); }

const testing::Scenario large("form: large", [] {
  expect_desync(reduce({1000, 3000}), reduce({3000, 1000}), "Float[1000, 3000]", "Float[3000, 1000]");
});
TEST(DisagreementOfForm, LargeTensors) { testing::expect_all_passed(testing::run_ranks(large)); }

const testing::Scenario complex_and_real("form: complex", [] {
  expect_desync(reduce({6}, at::kComplexFloat), reduce({12}), "ComplexFloat[6]", "Float[12]");
});
TEST(DisagreementOfForm, ComplexAndRealNumbers) {
  testing::expect_all_passed(testing::run_ranks(complex_and_real));
}

const testing::Scenario asynchronous("form: async", [] {
  expect_desync(
      [](const ProcessGroup& group) {
        group.broadcast_async(torch::ones({2, 6}), 0).wait();
      },
      [](const ProcessGroup& group) { group.broadcast(torch::ones({12}), 0); }, "Float[2, 6]", "Float[12]");
});
TEST(DisagreementOfForm, AnAsynchronousCallAndABlockingOne) {
  testing::expect_all_passed(testing::run_ranks(asynchronous));
}

// The message names the other rank's call although that rank does not wait for it.
const testing::Scenario not_waited_for("form: not waited for", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  context.barrier();
  if (context.rank() == 1) {
    const auto work = context.group().all_reduce_async(torch::ones({3000, 1000}));
    while (!work.is_completed()) std::this_thread::yield();  // until the other one has failed
    return;
  }
  EXPECT_THAT(
      [&] {
        context.group().all_reduce(torch::ones({1000, 3000}));
      },
      ThrowsMessage<DesyncError>(
          AllOf(AnyOf(HasSubstr("is in none of the group's calls"), HasSubstr("has finished")),
                HasSubstr("all_reduce #2 of Float[3000, 1000]"))));
});
TEST(DisagreementOfForm, ReportsACallThatIsNotWaitedFor) {
  testing::expect_all_passed(testing::run_ranks(not_waited_for));
}

// These kinds allow a different shape on each rank. The blocking and the asynchronous form of one call have
// the same fingerprint.
const testing::Scenario allowed("form: allowed", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto& group = context.group();
  const bool first = context.rank() == 0;
  std::vector<at::Tensor> parts{torch::zeros({2, 3}), torch::zeros({6})};
  group.all_gather(parts, first ? torch::ones({2, 3}) : torch::ones({6}));
  EXPECT_EQ(parts[1].sum().item<float>(), 6);
  for (const auto count : {6, 100'000}) {
    const auto tensor = torch::ones({count});
    const auto half = torch::ones({count / 2});
    if (first) {
      group.all_reduce(tensor);
      group.reduce_scatter_tensor(half, tensor);
      group.all_gather_into_tensor(tensor, half);
    } else {
      group.all_reduce_async(tensor).wait();
      group.reduce_scatter_tensor_async(half, tensor).wait();
      group.all_gather_into_tensor_async(tensor, half).wait();
    }
    EXPECT_TRUE(tensor.eq(4).all().item<bool>());
  }
});
TEST(DisagreementOfForm, AllowsShapesThatMayDiffer) {
  testing::expect_all_passed(testing::run_ranks(allowed));
}

}  // namespace
}  // namespace lockstep::fingerprint_test
