// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "launch/options.h"

namespace lockstep::launch {
namespace {

TEST(WorkerCount, UnderstandsNumbersAndWords) {
  const Machine with_gpus{.cores = 6, .gpus = 2};
  const Machine without_gpus{.cores = 6, .gpus = 0};
  EXPECT_EQ(worker_count("17", without_gpus), 17);
  EXPECT_EQ(worker_count("cpu", with_gpus), 6);
  EXPECT_EQ(worker_count("gpu", with_gpus), 2);
  EXPECT_EQ(worker_count("auto", with_gpus), 2);
  EXPECT_EQ(worker_count("auto", without_gpus), 6);
  EXPECT_THROW(worker_count("gpu", without_gpus), ArgumentError);
}

TEST(WorkerCount, RejectsAnythingElse) {
  for (const char* text : {"0", "-1", "", "abc", "2x", " 2", "1.5", "99999999999"}) {
    EXPECT_THROW(worker_count(text, {.cores = 6, .gpus = 2}), ArgumentError) << '"' << text << '"';
  }
}

}  // namespace
}  // namespace lockstep::launch
