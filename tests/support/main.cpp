// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (const int code = lockstep::testing::run_scenario_if_asked(); code >= 0) return code;
  return RUN_ALL_TESTS();
}
