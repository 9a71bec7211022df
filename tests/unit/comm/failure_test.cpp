// SPDX-License-Identifier: BSD-3-Clause
// What backends throw comes out as a member of our family that names rank, group, call and source line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/backends/backends.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename Expected>
void expect_as(const std::exception_ptr& failure, const std::string& text) {
  const auto backend = c10::make_intrusive<backends::FakeBackend>(0, 2);
  const ProcessGroup group(backend, {.name = "failing", .traits = backends::FakeBackend::traits()});
  backend->fail_next_call(failure);
  EXPECT_THAT([&] { group.all_reduce(torch::ones({3})); },
              ThrowsMessage<Expected>(AllOf(HasSubstr("rank 0 of 2 (group failing, fake)"),
                                            HasSubstr("all_reduce #1 of Float[3] at failure_test.cpp:"),
                                            HasSubstr(text))));
  EXPECT_EQ(group.recent_calls().front().state, CallState::failed);
}

template <typename Thrown>
std::exception_ptr thrown(const std::string& text) {
  return std::make_exception_ptr(Thrown(text));
}

TEST(Failure, TimeoutsAreTimeoutErrors) {
  expect_as<TimeoutError>(thrown<std::runtime_error>("Timed out waiting 1000ms for recv operation"),
                          "1000ms");
  expect_as<TimeoutError>(thrown<std::runtime_error>("Operation timed out!"), "did not finish in time");
}

TEST(Failure, LostConnectionsArePeerLost) {
  for (const auto* text :
       {"Connection closed by peer [127.0.0.1]:9", "Connection reset by peer", "Broken pipe"}) {
    expect_as<PeerLost>(thrown<std::runtime_error>(text), "another rank is gone");
  }
}

TEST(Failure, RejectionsAreArgumentErrors) {
  expect_as<ArgumentError>(thrown<std::invalid_argument>("no such thing"), "no such thing");
}

TEST(Failure, OtherFailuresAreErrors) {
  expect_as<Error>(thrown<std::logic_error>("surprise\nsecond line"), "surprise");
}

}  // namespace
}  // namespace lockstep
