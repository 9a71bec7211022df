// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_ckpt/progress.h"

#include <gtest/gtest.h>

namespace lockstep::ckpt {
namespace {

TEST(Progress, SaysHowMuchOfHowMuch) {
  EXPECT_EQ(progress_text("writing a.pt", 1'200'000'000, 5'000'000'000),
            "writing a.pt: 1.2 GB of 5.0 GB, 24%");
  EXPECT_EQ(progress_text("reading", 999, 0), "reading: 999 B");
}

TEST(Progress, NeverSaysMoreThanAll) {
  EXPECT_EQ(progress_text("reading", 3000, 2000), "reading: 2.0 kB of 2.0 kB, 100%");
}

TEST(Progress, ChoosesUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(999'999), "1.0 MB");
  EXPECT_EQ(bytes_text(123'456'789), "123.5 MB");
  EXPECT_EQ(bytes_text(5'000'000'000'000'000), "5000.0 TB");
}

TEST(Progress, EndsAtOnceWhenTheWorkDoes) {
  for (int i = 0; i < 100; ++i) const Progress progress("nothing", 1, [] { return 0; });
}

}  // namespace
}  // namespace lockstep::ckpt
