// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

namespace lockstep::testing {

// Rank 1 refuses a call with `Refusal`. Rank 0 learns it from the comparison of modules, and does not wait for it.
template <typename Refusal = std::exception>
void expect_told(const Context& context, const std::function<void()>& call, const std::string& reason) {
  using ::testing::HasSubstr;
  if (context.rank() == 1) {
    EXPECT_THAT(call, ::testing::ThrowsMessage<Refusal>(HasSubstr(reason)));
  } else {
    EXPECT_THAT(call, ::testing::ThrowsMessage<DesyncError>(
                          ::testing::AllOf(HasSubstr("rank 1 has"), HasSubstr(reason))));
  }
}

}  // namespace lockstep::testing
