// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/tcp.h"

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/error_of.h"
#include "unit/base/child.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Value;

rlim_t soft_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

void serve(int world_size) { serve_store(listen_on(0, "127.0.0.1"), "127.0.0.1", world_size, Deadline(60s)); }

// In processes of their own, because a hard limit cannot be raised again.
TEST(StoreServer, RaisesItsLimitOfFileDescriptorsForManyRanks) {
  lockstep::testing::Child child([] {
    const rlimit low{.rlim_cur = 300, .rlim_max = 1500};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return false;
    serve(10);
    if (soft_limit() != 300) return false;
    serve(1000);
    return soft_limit() == 1500;
  });
  EXPECT_TRUE(child.passed());
}

TEST(StoreServer, ReportsAHardLimitThatIsTooLow) {
  lockstep::testing::Child child([] {
    const rlimit low{.rlim_cur = 300, .rlim_max = 1500};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return false;
    const auto error = lockstep::testing::error_of<RendezvousError>([] { serve(4000); });
    return Value(error, AllOf(HasSubstr("4000 ranks"), HasSubstr("hard limit is 1500"), HasSubstr("ulimit")));
  });
  EXPECT_TRUE(child.passed());
}

}  // namespace
}  // namespace lockstep::rendezvous
